"""What is in a model, and known troubles."""
