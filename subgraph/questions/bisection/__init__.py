"""Nodes as items of a search; the finding as document and folder."""
