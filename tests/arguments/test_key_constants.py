"""Compile-time constants in whole calls: annotated, wrapped, returned by `key=` or specialized,
they count by value and type.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pytest
import torch

import tzero
from tests.arguments.key_cases import (
    DYNAMIC,
    EVERY_OPTION,
    EVERY_PLACE,
    LIKE_TENSORS,
    NARROW,
    ONE_ARGUMENT,
    OPTIONS,
    Args,
    Frozen,
    Make,
    Mode,
    Other,
    Pair,
    Place,
    Point,
    T,
    assert_apart,
    assert_together,
    call,
    host,
    made,
    plain,
    zeros,
)
from tzero import ConstExpr, Kernel

pytestmark = ONE_ARGUMENT

CONSTANTS: dict[str, tuple[Any, Any]] = {
    "ints": (64, 128),
    "large ints": (2**70, 2**70 + 1),
    "True and 1": (True, 1),
    "1 and 1.0": (1, 1.0),
    "True and 1.0": (True, 1.0),
    "False and 0": (False, 0),
    "0.0 and -0.0": (0.0, -0.0),
    "1.0 and 1+0j": (1.0, 1 + 0j),
    "sign of an imaginary zero": (0j, complex(0, -0.0)),
    "NaN and infinity": (float("nan"), float("inf")),
    "strings": ("sum", "mean"),
    "string and int": ("1", 1),
    "None and False": (None, False),
    "dtypes": (torch.float16, torch.float32),
    "enums": (Mode.SUM, Mode.MEAN),
    "list and tuple": ([1], (1,)),
    "order": ((1, 2), (2, 1)),
    "True in a list": ([1], [True]),
    "-0.0 in a tuple": ((0.0,), (-0.0,)),
    "dict value": ({"a": 1}, {"a": 2}),
    "True in a dict": ({"a": 1}, {"a": True}),
    "True as a dict key": ({1: 0}, {True: 0}),
    "True in a namedtuple": (Pair(1, 2), Pair(True, 2)),
    "namedtuple class": (Pair(1, 2), Other(1, 2)),
    "dataclass value": (Frozen(1), Frozen(2)),
}
EQUAL: dict[str, tuple[Any, Any]] = {
    "ints": (2**70, int(str(2**70))),
    "NaN": (float("nan"), float("nan")),
    "NaN with a sign": (float("nan"), -float("nan")),
    "NaN in a complex": (complex(float("nan"), 1), complex(float("nan"), 1)),
    "NaN in a tuple": ((1, float("nan")), (1, float("nan"))),
    "strings": ("mean", "".join(["me", "an"])),
    "lists": ([1, (2.0, "a")], [1, (2.0, "a")]),
    "dicts": ({"a": [1]}, {"a": [1]}),
    "dtypes": (torch.float16, torch.half),
    "dataclasses": (Frozen(1), Frozen(1)),
}
UNLIKE = pytest.mark.parametrize(("one", "other"), CONSTANTS.values(), ids=CONSTANTS)
ALIKE = pytest.mark.parametrize(("one", "other"), EQUAL.values(), ids=EQUAL)


def annotated(place: Place, annotation: object = ConstExpr) -> Make:
    return lambda: made(host(place.width, len(place.before), annotation), "static")


@UNLIKE
def test_annotated_constants_count_by_value_and_type(one: Any, other: Any) -> None:
    for place in NARROW:
        assert_apart(annotated(place), place.args(one), place.args(other))


@ALIKE
def test_annotated_constants_that_are_equal_share(one: Any, other: Any) -> None:
    for place in NARROW:
        assert_together(annotated(place), place.args(one), place.args(other))
        assert_together(annotated(place), place.args(one), place.args(ConstExpr(other)))


@EVERY_PLACE
@pytest.mark.parametrize("annotation", ["ConstExpr", "tzero.ConstExpr"])
def test_annotations_may_be_strings(annotation: str, place: Place) -> None:
    assert_apart(annotated(place, annotation), place.args(1), place.args(True))
    assert_together(annotated(place, annotation), place.args(1), place.args(ConstExpr(1)))


@UNLIKE
def test_wrapped_constants_count_by_value_and_type(one: Any, other: Any) -> None:
    for place in NARROW:
        wrapped = [place.args(ConstExpr(value)) for value in (one, other)]
        for under in OPTIONS:
            assert_apart(plain(place, under), *wrapped)


@ALIKE
def test_wrapped_constants_that_are_equal_share(one: Any, other: Any) -> None:
    for place in NARROW:
        wrapped = [place.args(ConstExpr(value)) for value in (one, other)]
        for under in OPTIONS:
            assert_together(plain(place, under), *wrapped)


@pytest.mark.parametrize(
    "holder", [Frozen, lambda value: frozenset({value})], ids=["dataclass", "set"]
)
@pytest.mark.parametrize("values", [(1, True, 1.0), (0.0, -0.0)], ids=str)
def test_numbers_inside_a_constant_count_by_value_and_type(holder: Any, values: Args) -> None:
    kernel = made(host(1), "static")
    wrapped = [ConstExpr(holder(value)) for value in values]
    assert len({kernel.bind(value) for value in wrapped}) == len(values)


# -- key= -----------------------------------------------------------------------------------------


def chosen(place: Place, results: Sequence[Any], under: str) -> Make:
    """Kernels whose key= function returns one of some results, selected by an argument."""

    def key(*args: Any) -> Hashable:
        return results[args[len(place.before)]]  # type: ignore[no-any-return]

    return lambda: made(host(place.width), under, key)


@UNLIKE
def test_the_result_of_a_key_function_counts_by_value_and_type(one: Any, other: Any) -> None:
    for place in NARROW:
        for under in OPTIONS:
            assert_apart(chosen(place, (one, other), under), place.args(0), place.args(1))


@ALIKE
def test_equal_results_of_a_key_function_share(one: Any, other: Any) -> None:
    for place in NARROW:
        for under in OPTIONS:
            assert_together(chosen(place, (one, other), under), place.args(0), place.args(1))


# -- specialize -----------------------------------------------------------------------------------


def learned(make: Make, one: Args, other: Args) -> Kernel[Any]:
    """A kernel that has seen both calls, and bound them again with the specialized fact."""
    kernel = make()
    for args in (one, other, one, other):
        call(kernel, args)
    return kernel


def assert_learned(make: Make, one: Args, other: Args, entries: int) -> None:
    for first, second in ((one, other), (other, one)):
        kernel = learned(make, first, second)
        bounds = [kernel.bind(*args) for args in (first, second)]
        assert [bound.key for bound in bounds] == [kernel.key(*args) for args in (first, second)]
        assert len(set(bounds)) == len({bound.key for bound in bounds}) == entries
        before = kernel.stats()
        for args in (first, second, second, first):
            call(kernel, args)
            assert kernel.explain(*args).hit
        made = {"calls": before.calls + 4, "plain_calls": before.plain_calls + 4}
        assert kernel.stats() == before._replace(**made)
        assert before.entries == entries


def assert_learned_apart(make: Make, one: Args, other: Args) -> None:
    assert_learned(make, one, other, 2)


def assert_learned_together(make: Make, one: Args, other: Args) -> None:
    assert_learned(make, one, other, 1)


def value_alone(x: Any) -> Args:
    return (tzero.specialize(x),)


def value_first(x: Any, y: Any) -> Args:
    return tzero.specialize(x), y


def value_second(x: Any, y: Any) -> Args:
    return x, tzero.specialize(y)


def size_alone(x: Any) -> Args:
    tzero.specialize(x.size(0))
    return (x,)


def size_first(x: Any, y: Any) -> Args:
    tzero.specialize(x.size(0))
    return x, y


def size_second(x: Any, y: Any) -> Args:
    tzero.specialize(y.size(0))
    return x, y


def shape_alone(x: Any) -> Args:
    tzero.specialize(x.shape[0])
    return (x,)


def shape_first(x: Any, y: Any) -> Args:
    tzero.specialize(x.shape[0])
    return x, y


def shape_second(x: Any, y: Any) -> Args:
    tzero.specialize(y.shape[0])
    return x, y


def at(place: Place, alone: Any, first: Any, second: Any) -> Any:
    return alone if place.width == 1 else second if place.before else first


@UNLIKE
def test_a_specialized_argument_counts_by_value_and_type(one: Any, other: Any) -> None:
    for place in NARROW:
        function = at(place, value_alone, value_first, value_second)
        for under in OPTIONS:
            make = functools.partial(made, function, under)
            assert_learned_apart(make, place.args(one), place.args(other))


@ALIKE
def test_equal_specialized_arguments_share(one: Any, other: Any) -> None:
    for place in NARROW:
        function = at(place, value_alone, value_first, value_second)
        for under in OPTIONS:
            make = functools.partial(made, function, under)
            assert_learned_together(make, place.args(one), place.args(other))


SIZED = pytest.mark.parametrize(
    "functions",
    [(size_alone, size_first, size_second), (shape_alone, shape_first, shape_second)],
    ids=["size(0)", "shape[0]"],
)


@pytest.mark.parametrize("under", sorted(DYNAMIC))
@pytest.mark.parametrize("kind", LIKE_TENSORS.values(), ids=LIKE_TENSORS)
@SIZED
def test_a_specialized_size_counts_and_no_other(
    functions: Any, kind: Callable[[torch.Tensor], torch.Tensor], under: str
) -> None:
    for place in NARROW:
        four, five, wide = (place.args(kind(zeros(*sizes))) for sizes in ((4, 8), (5, 8), (4, 9)))
        make = functools.partial(made, at(place, *functions), under)
        assert_learned_apart(make, four, five)
        assert_learned_together(make, four, wide)


@EVERY_OPTION
@pytest.mark.parametrize(
    ("function", "args"),
    [
        (value_second, (T, 1)),
        (size_first, (T, 1)),
        (lambda x, y: (x, tzero.specialize(y * 2) // 2), (T, 1)),
    ],
    ids=["value", "size", "computed"],
)
@pytest.mark.parametrize("wrapped", [0, 1])
def test_a_wrapped_argument_may_be_specialized_and_hits_thereafter(
    function: Any, args: Args, wrapped: int, under: str
) -> None:
    kernel = made(function, under)
    for _ in range(4):
        call(kernel, tuple(ConstExpr(a) if k == wrapped else a for k, a in enumerate(args)))
    assert kernel.stats()[:4] == (4, 2, 1, 0)


@EVERY_OPTION
@pytest.mark.parametrize("holder", [Point, Pair, lambda a, b: [a, b], lambda a, b: {0: a, 1: b}])
def test_a_specialized_value_inside_an_argument_counts(holder: Any, under: str) -> None:
    def held(x: Any, y: Any) -> Args:
        tzero.specialize(y.x if isinstance(y, Point) else y[0])
        return x, y

    assert_learned_apart(lambda: made(held, under), (T, holder(1, 2)), (T, holder(3, 2)))


def test_a_result_computed_from_a_specialized_value_is_not_taken_for_it() -> None:
    def chained(x: Any, n: Any, m: Any) -> Args:
        tzero.specialize(n * 2).__add__(m)
        return x, n, m

    assert_learned_apart(lambda: made(chained, "static"), (T, 1, 5), (T, 2, 5))
