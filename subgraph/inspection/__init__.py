"""The content of a model, and known troubles."""
