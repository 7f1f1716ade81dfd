"""Tensors, folders and stored results on disk."""
