"""Arithmetic on text, exact in decimal and safe to feed with anything.

The expression is parsed as Python and only the nodes listed here are evaluated, on decimals of 50
digits whose exponent is bounded: a tower of powers overflows at once instead of being computed.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from decimal import (
    Context,
    Decimal,
    DecimalException,
    DivisionByZero,
    InvalidOperation,
    Overflow,
    Underflow,
    localcontext,
)
from typing import Final

LONGEST: Final = 500
"""Characters of an expression; deeper nesting than this allows cannot exhaust the stack."""

SHOWN: Final = 28
"""Digits of a fraction in the result; calculating with more hides the rounding."""

_CONTEXT: Final = Context(
    prec=50, Emax=1000, Emin=-1000, traps=[DivisionByZero, InvalidOperation, Overflow, Underflow]
)

_BINARY: Final[dict[type[ast.operator], Callable[[Decimal, Decimal], Decimal]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: _floor(a / b),
    ast.Mod: lambda a, b: a - b * _floor(a / b),
    ast.Pow: operator.pow,
}
_UNARY: Final[dict[type[ast.unaryop], Callable[[Decimal], Decimal]]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_NAMES: Final = {"pi": Decimal("3.1415926535897932384626433832795"), "e": Decimal(1).exp(_CONTEXT)}


def evaluate(expression: str) -> str:
    """The value as plain decimal text; raises ValueError saying what is wrong."""
    if not isinstance(expression, str) or not expression.strip():
        raise ValueError("the expression is empty")
    if len(expression) > LONGEST:
        raise ValueError(f"the expression is longer than {LONGEST} characters")
    try:
        tree = ast.parse(expression.strip().replace("^", "**"), mode="eval")
        with localcontext(_CONTEXT):
            return _plain(_defined(tree.body))
    except DivisionByZero:
        raise ValueError("division by zero") from None
    except Underflow:
        raise ValueError("the result is too small, but not 0") from None
    except Overflow:
        raise ValueError("the result is too large") from None
    except (DecimalException, ArithmeticError):
        raise ValueError("the result is not defined") from None
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError(f"not an arithmetic expression: {expression!r}") from None


def _defined(node: ast.AST) -> Decimal:
    """The value of a part, which is a number: decimals also know infinity, and reach it without a word."""
    value = _value(node)
    if not value.is_finite():
        raise ValueError(f"{ast.unparse(node)!r} is not defined")
    return value


def _value(node: ast.AST) -> Decimal:
    match node:
        case ast.Constant(value=bool()):
            raise ValueError("only numbers can be calculated with")
        case ast.Constant(value=int() | float() as number):
            return _finite(Decimal(repr(number)))
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            return _BINARY[type(sign)](_defined(left), _defined(right))
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY:
            return _UNARY[type(sign)](_defined(operand))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _call(name, [_defined(argument) for argument in arguments])
    raise ValueError(f"{ast.unparse(node)!r} is not allowed in an expression")


def _call(name: str, arguments: list[Decimal]) -> Decimal:
    try:
        return _FUNCTIONS[name](*arguments)
    except TypeError:
        raise ValueError(f"{name} does not take {len(arguments)} arguments") from None


def _finite(value: Decimal) -> Decimal:
    if not value.is_finite():
        raise ValueError("the number is too large")
    return +value


def _floor(value: Decimal) -> Decimal:
    return value.to_integral_value("ROUND_FLOOR")


def _round(value: Decimal, digits: Decimal = Decimal(0)) -> Decimal:
    if not 0 <= digits <= 30:
        raise ValueError("round takes 0 to 30 digits")
    return value.quantize(Decimal(1).scaleb(-int(digits)), "ROUND_HALF_UP")


def _factorial(value: Decimal) -> Decimal:
    if value != _floor(value) or not 0 <= value <= 400:
        raise ValueError("factorial takes a whole number from 0 to 400")
    return +Decimal(math.factorial(int(value)))


def _log(value: Decimal, base: Decimal = Decimal(10)) -> Decimal:
    return value.log10() if base == 10 else value.ln() / base.ln()


def _floating(function: Callable[[float], float]) -> Callable[[Decimal], Decimal]:
    return lambda value: Decimal(repr(function(float(value))))


_FUNCTIONS: Final[dict[str, Callable[..., Decimal]]] = {
    "abs": abs,
    "ceil": lambda value: value.to_integral_value("ROUND_CEILING"),
    "cos": _floating(math.cos),
    "exp": lambda value: value.exp(),
    "factorial": _factorial,
    "floor": _floor,
    "ln": lambda value: value.ln(),
    "log": _log,
    "max": max,
    "min": min,
    "round": _round,
    "sin": _floating(math.sin),
    "sqrt": lambda value: value.sqrt(),
    "tan": _floating(math.tan),
}


def _plain(value: Decimal) -> str:
    """Fractions to `SHOWN` digits, no trailing zeros, and no exponent as long as that stays readable."""
    if value != _floor(value):
        value = Context(prec=SHOWN).plus(value)
    shortened = value.normalize() if value else Decimal(0)
    if -30 <= shortened.adjusted() <= 60:
        return f"{shortened:f}"
    return str(shortened)
