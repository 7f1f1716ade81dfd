"""Parts of a search; each narrows a failing set of items in one way."""
