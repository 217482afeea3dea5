"""Arithmetic in text, exact for integers, within bounds: no formula takes long, whoever wrote it."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from fractions import Fraction

MOST_CHARS = 500
MOST_BITS = 4096
"""Of a number on the way; a result of 1,200 digits is no longer arithmetic that a task asks for."""

Number = Fraction | float

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b), ast.Mod: operator.mod,
}  # fmt: skip


class NoNumber(Exception):
    """The text has no value; the message says why."""


def calculate(text: str) -> str:
    """The value of an expression of numbers, ``+ - * / // % **`` and brackets; ``^`` and ``×`` are understood too.

    Raises NoNumber.
    """
    if len(text) > MOST_CHARS:
        raise NoNumber(f"the expression is longer than {MOST_CHARS} characters")
    readable = text.strip().replace("^", "**").replace("×", "*").replace("÷", "/").replace(",", "")
    try:
        return _text(_value(ast.parse(readable, mode="eval").body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise NoNumber("this is not an expression of numbers, + - * / // % ** and brackets") from None
    except ZeroDivisionError:
        raise NoNumber("division by zero") from None
    except OverflowError:
        raise NoNumber("the number is too large") from None


def _value(node: ast.expr) -> Number:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return _bounded(Fraction(str(node.value)))  # of a decimal its digits, not the nearest binary number
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in _BINARY:
            return _bounded(_BINARY[type(node.op)](left, right))
    raise NoNumber(f"only numbers, + - * / // % ** and brackets can be calculated, not {ast.unparse(node)[:40]!r}")


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        if _bits(base) * abs(exponent) > MOST_BITS:
            raise OverflowError
        power: Fraction = base ** int(exponent)
        return power
    value: float | complex = float(base) ** float(exponent)
    if isinstance(value, complex):
        raise NoNumber("the root of a negative number is not a real number")
    return value


def _bounded(value: Number) -> Number:
    if isinstance(value, Fraction) and _bits(value) > MOST_BITS:
        raise OverflowError
    return value


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _text(value: Number) -> str:
    if isinstance(value, Fraction):
        if value.denominator == 1:
            return str(value.numerator)
        value = float(value)
    return f"{value:.12g}"
