"""The version of subcut: imported by all, imports nothing."""

__version__ = "0.1.0"
