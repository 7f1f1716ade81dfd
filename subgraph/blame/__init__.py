"""A region that goes wrong → the change that did it, and cures that are proven."""
