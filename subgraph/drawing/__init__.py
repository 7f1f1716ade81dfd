"""A graph, and numbers -> pictures.

The layout is plain data with positions in pixels, from which SVG is written. No module of this
package reads ONNX or files.
"""
