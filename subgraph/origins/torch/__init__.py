"""PyTorch, if the user has it: the values that a module computes, under the names of the model
exported from it."""
