"""The files of `subcut demo`: a small model, an input, and a candidate with a planted fault."""
