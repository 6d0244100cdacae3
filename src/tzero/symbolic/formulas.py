"""Integers of a call as formulas of the sizes of its arguments.

    x.size(0), n ──► inputs ── + - * // % min max cdiv ... ──► formulas ──► grids, sizes, arguments
                                         └─ comparisons ──► conditions that another call must meet

Enters: where an integer comes from, its value in the recorded call, and what is done with it.
Leaves: numbered formulas and conditions, which give the integers of another call. It must not know
who computes with them.

Formulas are numbered in the order in which they are computed, and equal ones have one number. Those
of constants are constants. A formula means what Python's integers mean. Where a replay cannot
compute that (a division by zero, more than 64 bits), the host function runs instead.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

__all__ = [
    "OPERATIONS",
    "Condition",
    "Formulas",
    "Node",
    "Source",
    "What",
    "computed",
    "holds",
    "shown",
]

What = Literal["size", "stride", "offset", "number"]
"""What an integer of a call is."""


class Source(NamedTuple):
    """Where an integer of a call comes from: a size, a stride or the offset of the tensor at a leaf
    of the arguments, or the number there.

    >>> Source("size", 0, 1)
    Source(what='size', leaf=0, dim=1)
    """

    what: What
    leaf: int
    dim: int = 0


class Node(NamedTuple):
    """One formula: an input, a constant, or an operation on formulas with smaller numbers."""

    operation: str
    args: tuple[Any, ...]


class Condition(NamedTuple):
    """A comparison of two formulas, and how it ended in the recorded call."""

    comparison: str
    left: int
    right: int
    truth: bool


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation on integers. ``text`` shows it, with its operands in place of ``{}``."""

    compute: Callable[..., int]
    text: str


def _cdiv(a: int, b: int) -> int:
    return (a + b - 1) // b


def _power(a: int, b: int) -> int:
    if b < 0:
        raise ArithmeticError("a power with a negative exponent is no integer")
    return a**b if abs(a) < 2 or b < 64 else _too_large()


def _left(a: int, b: int) -> int:
    if b < 0:
        raise ArithmeticError("a shift by a negative number raises an exception")
    return a << b if b < 64 or not a else _too_large()


def _right(a: int, b: int) -> int:
    if b < 0:
        raise ArithmeticError("a shift by a negative number raises an exception")
    return a >> b


def _too_large() -> int:
    raise ArithmeticError("it has more than 64 bits")


def _next_power_of_2(n: int) -> int:
    n -= 1
    for shift in (1, 2, 4, 8, 16, 32):
        n |= n >> shift
    return n + 1


def _ratio(a: int, b: int) -> float:
    if max(abs(a), abs(b)) >= 1 << 53:
        raise ArithmeticError("it has more than 53 bits")
    return a / b


OPERATIONS: Mapping[str, Operation] = {
    "+": Operation(operator.add, "({} + {})"),
    "-": Operation(operator.sub, "({} - {})"),
    "*": Operation(operator.mul, "({} * {})"),
    "//": Operation(operator.floordiv, "({} // {})"),
    "%": Operation(operator.mod, "({} % {})"),
    "**": Operation(_power, "({} ** {})"),
    "<<": Operation(_left, "({} << {})"),
    ">>": Operation(_right, "({} >> {})"),
    "&": Operation(operator.and_, "({} & {})"),
    "|": Operation(operator.or_, "({} | {})"),
    "^": Operation(operator.xor, "({} ^ {})"),
    "negative": Operation(operator.neg, "-{}"),
    "invert": Operation(operator.invert, "~{}"),
    "abs": Operation(abs, "abs({})"),
    "min": Operation(min, "min({}, {})"),
    "max": Operation(max, "max({}, {})"),
    "cdiv": Operation(_cdiv, "cdiv({}, {})"),
    "next_power_of_2": Operation(_next_power_of_2, "next_power_of_2({})"),
    "bit_length": Operation(int.bit_length, "{}.bit_length()"),
    "ceil": Operation(lambda a, b: math.ceil(_ratio(a, b)), "ceil({} / {})"),
    "floor": Operation(lambda a, b: math.floor(_ratio(a, b)), "floor({} / {})"),
    "trunc": Operation(lambda a, b: math.trunc(_ratio(a, b)), "int({} / {})"),
}
"""What can be done with integers so that the result is a formula. The numbers of operations in
native code are their places here."""

_DOMAINS: Mapping[str, str] = {
    **dict.fromkeys(["//", "%", "cdiv", "ceil", "floor", "trunc"], "!="),
    **dict.fromkeys(["<<", ">>", "**"], ">="),
}
"""How the second operand of an operation must compare with 0."""

_COMMUTATIVE = frozenset(["+", "*", "&", "|", "^", "min", "max"])
_NEUTRAL: Mapping[str, int] = {
    **dict.fromkeys(["+", "-", "|", "^", "<<", ">>"], 0),
    **dict.fromkeys(["*", "//", "**", "cdiv"], 1),
}
"""The second operand with which an operation returns the first one."""

COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class Formulas:
    """The formulas of one recorded call, and their values in it.

    >>> these = Formulas()
    >>> n = these.input(Source("size", 0), 1000)
    >>> blocks = these.apply("cdiv", n, these.constant(128))
    >>> these.value(blocks), these.text(blocks)
    (8, 'cdiv(size(0, 0), 128)')
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.conditions: dict[Condition, None] = {}
        self._values: list[int] = []
        self._numbers: dict[Node, int] = {}
        self._constants: dict[int, int] = {}

    def input(self, source: Source, value: int) -> int:
        """The formula of an integer that comes with the arguments."""
        return self._add(Node("input", source), value)

    def constant(self, value: int) -> int:
        """The formula of an integer that is the same in every call."""
        number = int(value)
        found = self._constants.get(number)
        if found is None:
            found = self._constants[number] = self._add(Node("constant", (number,)), number)
        return found

    def value(self, formula: int) -> int:
        """The value of a formula in the recorded call."""
        return self._values[formula]

    def is_constant(self, formula: int) -> bool:
        """Whether a formula has the same value in every call."""
        return self.nodes[formula].operation == "constant"

    def apply(self, operation: str, *args: int) -> int:
        """The formula of an operation. Raises ArithmeticError if it has no integer of 64 bits for
        these values."""
        value = OPERATIONS[operation].compute(*[self._values[each] for each in args])
        if not _LEAST <= value <= _MOST:
            _too_large()
        if all(map(self.is_constant, args)):
            return self.constant(value)
        domain = _DOMAINS.get(operation)
        if domain is not None:  # elsewhere Python raises an exception, or gives a float
            self.compare(domain, args[1], self.constant(0))
        if operation in _COMMUTATIVE:
            args = (min(args), max(args))
        same = self._same(operation, args)
        return self._add(Node(operation, args), value) if same is None else same

    def _same(self, operation: str, args: tuple[int, ...]) -> int | None:
        """The operand that an operation returns unchanged, for any value."""
        neutral = _NEUTRAL.get(operation)
        if neutral is not None and len(args) == 2:
            for k in (0, 1) if operation in _COMMUTATIVE else (1,):
                each = args[k]
                if self._values[each] == neutral and self.is_constant(each):
                    return args[1 - k]
        is_idempotent = operation in ("min", "max", "&", "|")
        return args[0] if is_idempotent and args[0] == args[1] else None

    def compare(self, comparison: str, left: int, right: int) -> bool:
        """Compare two formulas; another call must find the same."""
        truth = COMPARISONS[comparison](self._values[left], self._values[right])
        if left == right or (self.is_constant(left) and self.is_constant(right)):
            return truth
        self.conditions[Condition(comparison, left, right, truth)] = None
        return truth

    def pin(self, formula: int) -> int:
        """Let a formula have this value in every call; returns the value."""
        value = self._values[formula]
        self.compare("==", formula, self.constant(value))
        return value

    def pin_inputs(self) -> None:
        """Let all inputs have these values in every call."""
        for formula, node in enumerate(list(self.nodes)):
            if node.operation == "input":
                self.pin(formula)

    def text(self, formula: int) -> str:
        """A formula as text."""
        return shown(self.nodes, formula)

    def _add(self, node: Node, value: int) -> int:
        found = self._numbers.get(node)
        if found is None:
            found = self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
            self._values.append(value)
        return found


def shown(nodes: Sequence[Node], formula: int) -> str:
    """A formula as text."""
    node = nodes[formula]
    if node.operation == "input":
        what, leaf, dim = node.args
        return f"number({leaf})" if what == "number" else f"{what}({leaf}, {dim})"
    if node.operation == "constant":
        return str(node.args[0])
    return OPERATIONS[node.operation].text.format(*(shown(nodes, each) for each in node.args))


def computed(nodes: Sequence[Node], inputs: Callable[[Source], int]) -> list[int]:
    """The values of all formulas for other arguments. Raises ArithmeticError if one has no integer
    of 64 bits.

    >>> computed([Node("input", Source("size", 0)), Node("+", (0, 0))], lambda source: 7)
    [7, 14]
    """
    values: list[int] = []
    for node in nodes:
        if node.operation == "input":
            value = inputs(Source(*node.args))
        elif node.operation == "constant":
            value = node.args[0]
        else:
            value = OPERATIONS[node.operation].compute(*(values[each] for each in node.args))
        if not _LEAST <= value <= _MOST:
            _too_large()
        values.append(value)
    return values


def holds(conditions: Iterator[Condition] | Sequence[Condition], values: Sequence[int]) -> bool:
    """Whether all conditions are met by these values.

    >>> holds([Condition("<", 0, 1, True)], [3, 4]), holds([Condition("<", 0, 1, True)], [4, 4])
    (True, False)
    """
    return all(
        COMPARISONS[each.comparison](values[each.left], values[each.right]) == each.truth
        for each in conditions
    )
