"""Formulas compute what Python computes, or say that they cannot."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import triton

from tzero.symbolic.formulas import (
    COMPARISONS,
    OPERATIONS,
    Condition,
    Formulas,
    Node,
    Source,
    computed,
    holds,
)

PYTHON: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "negative": lambda a: -a,
    "invert": lambda a: ~a,
    "abs": abs,
    "min": min,
    "max": max,
    "cdiv": triton.cdiv,
    "next_power_of_2": triton.next_power_of_2,
    "bit_length": lambda a: a.bit_length(),
    "ceil": lambda a, b: math.ceil(a / b),
    "floor": lambda a, b: math.floor(a / b),
    "trunc": lambda a, b: int(a / b),
}
VALUES = (0, 1, 2, 3, 5, 7, 15, 16, 63, 64, 100, 4095, 4096, 1 << 31, (1 << 53) + 1, (1 << 62) + 3)
"""Tried with both signs."""


def inputs(*values: int) -> Callable[[Source], int]:
    return lambda source: values[source.leaf]


def arity(operation: str) -> int:
    return OPERATIONS[operation].text.count("{}")


def any_value(chance: random.Random) -> int:
    value = chance.choice(VALUES) if chance.random() < 0.5 else chance.randint(0, 200)
    return -value if chance.random() < 0.3 else value


def test_every_operation_is_compared_with_python():
    assert set(PYTHON) == set(OPERATIONS)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_gives_the_integer_of_python_or_raises(operation: str):
    chance = random.Random(operation)
    count = arity(operation)
    nodes = [*(Node("input", Source("number", k)) for k in range(count))]
    nodes.append(Node(operation, tuple(range(count))))
    computes = 0
    for _ in range(2000):
        values = [any_value(chance) for _ in range(count)]
        if operation in ("<<", "**") and values[1] > 100:
            values[1] %= 100
        try:
            wanted: Any = PYTHON[operation](*values)
        except (ArithmeticError, ValueError):
            wanted = None
        try:
            found = computed(nodes, inputs(*values))[-1]
        except ArithmeticError:
            is_exact = count == 1 or max(map(abs, values)) < 1 << 53
            fits = type(wanted) is int and -(1 << 63) <= wanted < 1 << 63
            assert not fits or not is_exact, values
            continue
        assert (found, type(found)) == (wanted, int), values
        computes += 1
    assert computes > 200


@pytest.mark.parametrize("seed", range(20))
def test_formulas_of_other_inputs_are_what_python_computes(seed: int):
    chance = random.Random(seed)
    these = Formulas()
    first = [any_value(chance) for _ in range(4)]
    made = [these.input(Source("number", k), value) for k, value in enumerate(first)]
    made += [these.constant(value) for value in (0, 1, 2, 16)]
    recipe: list[tuple[str, tuple[int, ...]]] = []
    while len(recipe) < 40:
        operation = chance.choice(list(OPERATIONS))
        args = tuple(chance.randrange(len(made)) for _ in range(arity(operation)))
        try:
            made.append(these.apply(operation, *(made[k] for k in args)))
            recipe.append((operation, args))
        except ArithmeticError:
            continue
    met = 0
    for _ in range(300):
        values = [v if chance.random() < 0.5 else any_value(chance) for v in first]
        try:
            found = computed(these.nodes, inputs(*values))
        except ArithmeticError:
            continue
        if not holds(list(these.conditions), found):
            continue
        met += 1
        wanted: list[Any] = [*values, 0, 1, 2, 16]
        for operation, args in recipe:
            wanted.append(PYTHON[operation](*(wanted[k] for k in args)))
        assert [found[number] for number in made] == wanted
        assert all(type(each) is int for each in wanted)
    assert met > 0


def test_comparisons_are_conditions_on_other_calls():
    for comparison, compare in COMPARISONS.items():
        for pair in [(3, 4), (4, 4), (5, 4)]:
            these = Formulas()
            n, m = (these.input(Source("number", k), value) for k, value in enumerate(pair))
            assert these.compare(comparison, n, m) == compare(*pair)
            for other in [(3, 4), (4, 4), (5, 4)]:
                same = compare(*other) == compare(*pair)
                assert holds(list(these.conditions), list(other)) == same


def test_equal_formulas_have_one_number_and_constants_are_folded():
    these = Formulas()
    n, two = these.input(Source("size", 0), 6), these.constant(2)
    assert these.apply("*", n, two) == these.apply("*", two, n)
    assert these.apply("+", n, these.constant(0)) == n
    assert these.apply("max", n, n) == n
    assert these.is_constant(these.apply("+", two, two))
    assert these.apply("-", these.constant(0), n) != n
    assert these.text(these.apply("cdiv", n, two)) == "cdiv(size(0, 0), 2)"
    assert not these.conditions


def test_a_divisor_that_may_be_zero_and_a_shift_that_may_be_negative_are_conditions():
    these = Formulas()
    n, m = these.input(Source("size", 0), 6), these.input(Source("size", 1), 2)
    these.apply("//", n, m)
    these.apply("<<", n, m)
    zero = these.constant(0)
    assert list(these.conditions) == [
        Condition("!=", m, zero, True),
        Condition(">=", m, zero, True),
    ]


def test_a_pinned_formula_has_one_value():
    these = Formulas()
    n = these.input(Source("size", 0), 6)
    half = these.apply("//", n, these.constant(2))
    assert these.pin(half) == 3
    for value, same in [(6, True), (7, True), (8, False)]:
        found = computed(these.nodes, inputs(value))
        assert holds(list(these.conditions), found) == same
    these.pin_inputs()
    assert not holds(list(these.conditions), computed(these.nodes, inputs(7)))


def test_integers_of_more_than_64_bits_are_refused():
    these = Formulas()
    n = these.input(Source("size", 0), 1 << 40)
    with pytest.raises(ArithmeticError):
        these.apply("*", n, n)
    with pytest.raises(ArithmeticError):
        computed([Node("input", Source("number", 0))], inputs(1 << 63))
