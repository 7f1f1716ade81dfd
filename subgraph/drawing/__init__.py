"""A graph, and numbers -> pictures. Plain data first (positions in pixels), SVG after; knows no
ONNX and no files."""
