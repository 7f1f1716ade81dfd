"""Modules as syntax trees, parsed once per process: all of subcut takes 3 s of CPU."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def parse(path: Path) -> ast.Module:
    """Parse a module."""
    return ast.parse(path.read_text(encoding="utf-8"))
