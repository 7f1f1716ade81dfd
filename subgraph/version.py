"""The version of subcut: imported by all, imports nothing of ours."""

__version__ = "0.1.0"


def versions() -> dict[str, str]:
    """Of subcut, Python and the packages that take part, from the installed metadata, without importing anything."""
    import sys
    from importlib.metadata import version

    python = ".".join(map(str, sys.version_info[:3]))
    return {"subcut": __version__, "python": python} | {
        name: version(name) for name in ("onnx", "onnxruntime", "numpy")
    }
