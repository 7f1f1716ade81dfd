"""Symbolic sizes of dimensions, such as onnx infers them, in the few characters that a table has.

`floor(floor(height/2 - 1/2)/2) + 1` is a quarter of `height`, rounded: `height/4`.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

MAX_SIZE = 16  # characters of a size that is shown as it is
MAX_EXPRESSION = 1000  # characters of an expression that is parsed
LARGE = 720_720 << 20  # divisible by what networks divide sizes by
MAX_FACTOR = 4096
UNKNOWN = "…"

_OPERATORS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
}
_FUNCTIONS: Mapping[str, Callable[..., Fraction]] = {
    "floor": lambda x: Fraction(math.floor(x)),
    "ceiling": lambda x: Fraction(math.ceil(x)),
    "ceil": lambda x: Fraction(math.ceil(x)),
    "Max": max,
    "Min": min,
}


@lru_cache(maxsize=4096)
def short_size(size: str) -> str:
    """Return a symbolic size in a few characters.

    A long one is written as a multiple or part of its only symbol, without what is added or
    rounded; one that has several symbols, or cannot be read, as an ellipsis.

    >>> short_size("floor(floor(height/2 - 1/2)/2) + 1")
    'height/4'
    >>> short_size("batch")
    'batch'
    >>> short_size("floor(height/2)*floor(width/2) + height*width")
    '…'
    """
    if len(size) <= MAX_SIZE:
        return size
    if len(size) > MAX_EXPRESSION:
        return UNKNOWN
    try:
        tree = ast.parse(size, mode="eval").body
        symbols = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} - _FUNCTIONS.keys()
        (symbol,) = symbols
        share = _value(tree, {symbol: LARGE}) / LARGE
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError, TypeError):
        return UNKNOWN
    nearest = share.limit_denominator(MAX_FACTOR)
    is_share = 0 < nearest <= MAX_FACTOR and abs(share - nearest) < Fraction(1, 1 << 20)
    if not is_share:
        return UNKNOWN
    factor = "" if nearest.numerator == 1 else f"{nearest.numerator}·"
    divisor = "" if nearest.denominator == 1 else f"/{nearest.denominator}"
    return f"{factor}{symbol}{divisor}"


def known_dims(dims: Sequence[Any], sizes: Mapping[str, int]) -> list[Any]:
    """Return dimensions with numbers in place of expressions whose symbols have a size.

    >>> known_dims([1, "floor(height/2)", "width"], {"height": 33})
    [1, 16, 'width']
    """
    return [_evaluate(dim, sizes) if isinstance(dim, str) and sizes else dim for dim in dims]


def _evaluate(size: str, sizes: Mapping[str, int]) -> int | str:
    if len(size) > MAX_EXPRESSION:
        return size
    try:
        return int(_value(ast.parse(size, mode="eval").body, sizes))
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError, TypeError):
        return size


def _value(tree: ast.expr, sizes: Mapping[str, int]) -> Fraction:
    """Return the value of an expression.

    Raises:
        ValueError: it holds something else than numbers, symbols with a size and known functions.
    """
    match tree:
        case ast.Constant(value=int() | float() as number):
            return Fraction(number)
        case ast.Name(id=name) if name in sizes:
            return Fraction(sizes[name])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, sizes)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, sizes), _value(right, sizes))
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*(_value(one, sizes) for one in given))
    raise ValueError(ast.dump(tree))
