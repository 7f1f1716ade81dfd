"""What `subcut demo` writes: a small model, an input, and a candidate with a planted fault."""
