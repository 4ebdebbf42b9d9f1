"""Conditions of triggers: one small expression over values that a robot tells, read strictly, bounded in every way.

It has numbers, texts, comparisons, `and`, `or`, `not`, `+ - * /`, `abs`, `min` and `max`. It calls nothing else, reads
no attribute, and cannot loop. While a value that it asks for was never told, it does not hold.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TypeAlias, final

from mainspring.domain.errors import InvalidInput, nearest

Value: TypeAlias = bool | int | float | str
LENGTH_MAX = 500
PARTS_MAX = 100  # Of the tree: bounds what one look costs to microseconds.
NUMBER_MAX = 1e18  # Of whole numbers, so that multiplying them stays cheap.

_COMPARED: Mapping[type[ast.cmpop], Callable[[Value, Value], bool]] = MappingProxyType(
    {
        ast.Lt: operator.lt,
        ast.LtE: operator.le,
        ast.Gt: operator.gt,
        ast.GtE: operator.ge,
        ast.Eq: operator.eq,
        ast.NotEq: operator.ne,
    }
)
_COMPUTED: Mapping[type[ast.operator], Callable[[float, float], float]] = MappingProxyType(
    {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
)
_CALLED: Mapping[str, Callable[..., float]] = MappingProxyType({"abs": abs, "min": min, "max": max})
_WANTED = "numbers, 'texts', names of values, comparisons, and, or, not, + - * /, abs, min, max"


class _Unknown(Exception):
    """A value was not told yet, or is of another kind than the expression needs."""


@final
class Condition:
    """An expression that holds or does not.

    Args:
        text: The expression, such as "effort > 40 and not held".
        known: Names of the values that it may ask for.

    Raises:
        InvalidInput: It is none, asks for something else, or is too large.
    """

    def __init__(self, text: str, known: Collection[str]) -> None:
        if len(text) > LENGTH_MAX:
            raise InvalidInput("read a condition", got=f"{len(text)} letters", wanted=f"at most {LENGTH_MAX}")
        try:
            self._tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise InvalidInput("read a condition", on=text[:120], got=str(error)[:120], wanted=_WANTED) from error
        parts = list(ast.walk(self._tree))
        if len(parts) > PARTS_MAX:
            raise InvalidInput("read a condition", on=text[:120], got=f"{len(parts)} parts", wanted=f"{PARTS_MAX}")
        self.text = text
        called = {id(part.func) for part in parts if isinstance(part, ast.Call)}
        for part in parts:
            if isinstance(part, ast.Name) and id(part) not in called and part.id not in known:
                raise InvalidInput("read a condition", on=text[:120], got=part.id[:80], wanted=nearest(part.id, known))
        self._check(self._tree)

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Returns whether it holds of values; not while one of them is missing, or is of another kind."""
        try:
            return bool(self._value(self._tree, values))
        except (_Unknown, TypeError, ArithmeticError):
            return False

    def _check(self, part: ast.AST) -> None:
        match part:
            case ast.Constant(value=bool() | int() | float() | str()) | ast.Name():
                return
            case ast.BoolOp(values=values):
                inner: list[ast.expr] = values
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
                inner = [operand]
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMPUTED:
                inner = [left, right]
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARED for op in ops):
                inner = [left, *others]
            case ast.Call(func=ast.Name(id=name), args=given, keywords=[]) if name in _CALLED and given:
                inner = given
            case _:
                raise InvalidInput("read a condition", on=self.text[:120], got=ast.unparse(part)[:80], wanted=_WANTED)
        for each in inner:
            self._check(each)

    def _value(self, part: ast.AST, values: Mapping[str, Value]) -> Value:
        match part:
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return value
            case ast.Name(id=name):
                if name not in values:
                    raise _Unknown
                return values[name]
            case ast.BoolOp(op=op, values=each):
                held = (bool(self._value(one, values)) for one in each)
                return all(held) if isinstance(op, ast.And) else any(held)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._value(operand, values)
            case ast.UnaryOp(operand=operand):
                return -self._number(operand, values)
            case ast.BinOp(left=left, op=op, right=right):
                return _COMPUTED[type(op)](self._number(left, values), self._number(right, values))
            case ast.Compare(left=left, ops=ops, comparators=others):
                before = self._value(left, values)
                for compared, other in zip(ops, others, strict=True):
                    after = self._value(other, values)
                    if not _COMPARED[type(compared)](before, after):
                        return False
                    before = after
                return True
            case ast.Call(func=ast.Name(id=name), args=given):
                numbers = [self._number(one, values) for one in given]
                return _CALLED[name](*numbers) if name == "abs" or len(numbers) > 1 else numbers[0]
            case _:
                raise AssertionError(ast.dump(part))

    def _number(self, part: ast.AST, values: Mapping[str, Value]) -> float:
        value = self._value(part, values)
        if isinstance(value, str) or abs(value) > NUMBER_MAX:
            raise _Unknown
        return value
