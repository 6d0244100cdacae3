"""Native code computes formulas of sizes as Python computes with integers, or not at all."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable

import pytest

native = pytest.importorskip("tzero._native", reason="the native extension is not built")

LEAST, MOST = -(1 << 63), (1 << 63) - 1


def next_power_of_2(n: int) -> int:
    """As `triton.next_power_of_2`."""
    n -= 1
    for shift in (1, 2, 4, 8, 16, 32):
        n |= n >> shift
    return n + 1


def power(a: int, b: int) -> int:
    """Without computing huge numbers, or floats."""
    if b < 0 or (abs(a) > 1 and b >= 64):
        raise OverflowError
    return a ** (b if abs(a) > 1 else min(b, 2 + b % 2))


def left(a: int, b: int) -> int:
    """Without computing huge numbers."""
    if b >= 64 and a:
        raise OverflowError
    return a << b if a or b < 0 else 0


def ratio(a: int, b: int) -> float:
    """Exact operands only."""
    if max(abs(a), abs(b)) >= 1 << 53:
        raise OverflowError
    return a / b


TWO: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": power,
    "<<": left,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "min": min,
    "max": max,
    "cdiv": lambda a, b: (a + b - 1) // b,
    "ceil": lambda a, b: math.ceil(ratio(a, b)),
    "floor": lambda a, b: math.floor(ratio(a, b)),
    "trunc": lambda a, b: math.trunc(ratio(a, b)),
}
ONE: dict[str, Callable[[int], int]] = {
    "negative": operator.neg,
    "invert": operator.invert,
    "abs": abs,
    "next_power_of_2": next_power_of_2,
    "bit_length": int.bit_length,
}
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def integers() -> list[int]:
    """Small ones, powers of two and their neighbours, the extremes, and some at random."""
    chance = random.Random(1)
    near = [
        s * (1 << k) + d
        for k in (0, 1, 3, 4, 5, 31, 32, 53, 62, 63)
        for s in (1, -1)
        for d in (-1, 0, 1)
    ]
    some = [
        chance.randrange(-(1 << bits), 1 << bits)
        for bits in (4, 8, 16, 32, 53, 63)
        for _ in range(8)
    ]
    return [n for n in dict.fromkeys([*range(-9, 10), *near, *some]) if LEAST <= n <= MOST]


def expected(compute: Callable[..., int], *args: int) -> int | None:
    """What Python computes, if 64 bits hold it."""
    try:
        found = compute(*args)
    except (ArithmeticError, ValueError):
        return None
    return found if LEAST <= found <= MOST else None


def computed(operation: str, *args: int) -> int | None:
    """What native code computes."""
    a, b = (0, 1) if len(args) == 2 else (0, 0)
    values = native.computed_sizes(args, ((native.SIZE_OPERATIONS[operation], a, b),), ())
    return None if values is None else values[-1]


def test_each_operation_and_comparison_is_tested() -> None:
    assert set(native.SIZE_OPERATIONS) == {"constant", *ONE, *TWO}
    assert set(native.SIZE_COMPARISONS) == set(COMPARISONS)


@pytest.mark.parametrize("name", TWO)
def test_an_operation_on_two_integers_is_pythons(name: str) -> None:
    for a in integers():
        for b in integers():
            assert computed(name, a, b) == expected(TWO[name], a, b), (a, name, b)


@pytest.mark.parametrize("name", ONE)
def test_an_operation_on_one_integer_is_pythons(name: str) -> None:
    for a in integers():
        assert computed(name, a) == expected(ONE[name], a), (name, a)


@pytest.mark.parametrize("truth", [True, False])
@pytest.mark.parametrize("name", COMPARISONS)
def test_a_condition_is_met_as_in_python(name: str, truth: bool) -> None:
    for a in integers():
        for b in integers():
            condition = (native.SIZE_COMPARISONS[name], 0, 1, truth)
            met = native.computed_sizes((a, b), (), (condition,)) is not None
            assert met == (COMPARISONS[name](a, b) == truth), (a, name, b)


def test_formulas_are_computed_in_order() -> None:
    of = native.SIZE_OPERATIONS
    nodes = ((of["constant"], 128, 0), (of["cdiv"], 0, 1), (of["*"], 2, 1))
    assert native.computed_sizes((1000,), nodes, ()) == (1000, 128, 8, 1024)


def test_a_formula_without_a_value_ends_the_computation() -> None:
    of = native.SIZE_OPERATIONS
    nodes = ((of["constant"], 0, 0), (of["//"], 0, 1), (of["constant"], 3, 0))
    assert native.computed_sizes((1000,), nodes, ()) is None


@pytest.mark.parametrize(
    ("value", "differs"), [(1, 2), (16, 17), (1 << 31, (1 << 31) - 16), (-(1 << 31) - 1, 3), (0, 1)]
)
def test_integers_that_triton_tells_apart_have_other_classes(value: int, differs: int) -> None:
    assert native.size_class(value) != native.size_class(differs)


@pytest.mark.parametrize(
    ("value", "like"), [(2, 3), (16, 32), (1 << 31, 1 << 40), (-1, 7), (0, 16)]
)
def test_integers_that_triton_takes_for_alike_have_one_class(value: int, like: int) -> None:
    assert native.size_class(value) == native.size_class(like)


@pytest.mark.parametrize(
    ("nodes", "conditions", "message"),
    [
        (((99, 0, 0),), (), "an operation of native code"),
        (((1, 0, 1),), (), "earlier formulas"),
        (((1, 0),), (), "three integers"),
        ((), ((0, 0, 1, True),), "two formulas"),
        ((), ((9, 0, 0, True),), "two formulas"),
        ((), ((0, 0, 0),), "four integers"),
        (((0, 1, 0),) * native.MOST_FORMULAS, (), "at most 512 formulas, not 513"),
    ],
)
def test_formulas_that_make_no_sense_are_refused(
    nodes: object, conditions: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        native.computed_sizes((5,), nodes, conditions)


@pytest.mark.parametrize("value", [1 << 63, LEAST - 1])
def test_an_integer_above_64_bits_has_no_class(value: int) -> None:
    with pytest.raises(OverflowError):
        native.size_class(value)
