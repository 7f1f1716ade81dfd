"""A region that fails → the change that caused it, and cures that are proven."""
