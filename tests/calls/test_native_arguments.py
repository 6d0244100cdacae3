"""Arguments of every type are read natively: a hit, or a fallback, enters no Python of tzero's."""

from __future__ import annotations

import dataclasses
import enum
import gc
import weakref
from collections import namedtuple
from typing import Any

import numpy
import pytest
import torch
import triton
import triton.language as tl

import tzero
from tests.calls.test_fallback import frames_of_tzero
from tzero import ConstExpr

pytestmark = pytest.mark.usefixtures("native_calls")


@triton.jit
def scale(x, out, by, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


def weight(value: Any) -> float:
    """A number that depends on a value."""
    if isinstance(value, torch.Size):
        return float(sum((k + 1) * size for k, size in enumerate(value)) + 1)
    if isinstance(value, complex):
        return value.real + 10 * value.imag
    if isinstance(value, (int, float)):
        return 2.0 * value
    names = ["cpu", "meta", "torch.strided", "torch.sparse_coo", "torch.contiguous_format"]
    names += ["torch.channels_last", "torch.float32", "torch.int8", "a", "b", "None"]
    return float(names.index(str(value)) + 1)


def host(x, value):
    out = torch.empty_like(x)
    scale[(1,)](x, out, weight(value), x.numel(), BLOCK=16)
    return out


PAIRS: dict[str, tuple[Any, Any]] = {
    "Size": (torch.Size([2, 3]), torch.Size([3, 2])),
    "shorter Size": (torch.Size([2]), torch.Size([2, 0])),
    "Size of nothing": (torch.Size([]), torch.Size([1])),
    "device": (torch.device("cpu"), torch.device("meta")),
    "complex": (1 + 2j, 1 + 3j),
    "real part": (1 + 2j, 2 + 2j),
    "layout": (torch.strided, torch.sparse_coo),
    "memory format": (torch.contiguous_format, torch.channels_last),
    "dtype": (torch.float32, torch.int8),
    "constant": (ConstExpr(2), ConstExpr(3)),
    "constant text": (ConstExpr("a"), ConstExpr("b")),
    "constant dtype": (ConstExpr(torch.float32), ConstExpr(torch.int8)),
    "constant or not": (ConstExpr(2), 3),
}
X = torch.arange(4.0)


def expected(value: Any) -> torch.Tensor:
    return X * weight(value.value if isinstance(value, ConstExpr) else value)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_hit_enters_no_python(pair: tuple[Any, Any]) -> None:
    kernel = tzero.kernel(host)
    for _ in range(3):
        for value in pair:
            assert torch.equal(kernel(X, value), expected(value))
    for value in pair:
        assert kernel.explain(X, value).plan is not None
        assert frames_of_tzero(kernel, X, value) == []
    assert kernel._count() == 2


ITEMS = {name: pair for name, pair in PAIRS.items() if not name.startswith("constant")}


@pytest.mark.parametrize("pair", ITEMS.values(), ids=ITEMS)
def test_a_hit_with_a_list_of_them_enters_no_python(pair: tuple[Any, Any]) -> None:
    @tzero.kernel
    def first(x, values):
        return host(x, values[0])

    for _ in range(3):
        for value in pair:
            assert torch.equal(first(X, [value, value]), expected(value))
    for value in pair:
        assert frames_of_tzero(first, X, [value, value]) == []


@pytest.mark.parametrize(
    "pair",
    [(2, 3), ("a", "b"), (torch.float32, torch.int8), (1 + 2j, 2 + 1j), (None, 2), (2, 2.5)],
    ids=str,
)
def test_a_parameter_that_is_a_constant_is_read_natively(pair: tuple[Any, Any]) -> None:
    @tzero.kernel
    def fixed(x, value: ConstExpr):
        return host(x, value)

    for _ in range(3):
        for value in (*pair, *map(ConstExpr, pair)):
            assert torch.equal(fixed(X, value), expected(value))
    for value in (*pair, *map(ConstExpr, pair)):
        assert frames_of_tzero(fixed, X, value) == []


def test_a_constant_in_a_fallback_is_unwrapped_natively() -> None:
    @tzero.kernel
    def summed(x, by: ConstExpr, plus):
        return float(x.sum()) * by + plus

    for _ in range(3):
        assert summed(X, 2, ConstExpr(1)) == summed(X, ConstExpr(2), 1) == 13.0
    assert frames_of_tzero(summed, X, 2, ConstExpr(1)) == []
    assert frames_of_tzero(summed, X, ConstExpr(2), 1) == []


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: float = 1.0


Pair = namedtuple("Pair", "one other")
OBJECTS: dict[str, tuple[Any, Any]] = {
    "enum": (Color.RED, Color.BLUE),
    "dataclass": (Point(1), Point(2)),
    "named tuple": (Pair(1, 2), Pair(2, 2)),
    "numpy scalar": (numpy.float32(1), numpy.float32(2)),
    "numpy array": (numpy.ones(1), numpy.ones(2)),
    "set": ({1}, {2}),
    "frozenset": (frozenset([1]), frozenset([2])),
    "slice": (slice(1), slice(2)),
    "range": (range(1), range(2)),
    "function": (print, print),
    "class": (int, float),
}


@pytest.mark.parametrize("pair", OBJECTS.values(), ids=OBJECTS)
@pytest.mark.parametrize("inside", [False, True], ids=["argument", "item"])
def test_a_call_with_any_object_enters_no_python(pair: tuple[Any, Any], inside: bool) -> None:
    @tzero.kernel
    def given(x, thing):
        return float(x.sum()), thing

    things = [[each] if inside else each for each in pair]
    for _ in range(3):
        for thing in things:
            assert given(X, thing) == (6.0, thing)
    for thing in things:
        assert given.explain(X, thing).plan is None
        assert frames_of_tzero(given, X, thing) == []


def test_what_is_specialized_on_tells_objects_apart() -> None:
    @tzero.kernel
    def given(x, point):
        return tzero.specialize(point.x) * float(x.sum())

    for _ in range(6):
        assert [given(X, Point(k)) for k in range(4)] == [0.0, 6.0, 12.0, 18.0]


def test_a_config_of_one_object_is_not_used_for_another() -> None:
    @tzero.kernel(config=tzero.Config(BY=1.0))
    def given(x, color, config):
        return config.BY * float(x.sum())

    for _ in range(3):
        assert given(X, Color.RED) == given(X, Color.BLUE) == 6.0
    given.bind(X, Color.BLUE).set_config(tzero.Config(BY=2.0))
    for _ in range(3):
        assert (given(X, Color.RED), given(X, Color.BLUE)) == (6.0, 12.0)


def test_calls_are_looked_up_again_after_many_fallbacks() -> None:
    """A kernel that falls back in a row reads its arguments only now and then."""

    @tzero.kernel
    def either(x):
        return float(x.sum()) if x.numel() == 4 else host(x, 2)

    for _ in range(200):
        assert either(X) == 6.0
    y = torch.arange(6.0)
    for _ in range(20):
        assert torch.equal(either(y), y * 4)
    assert either.explain(y).plan is not None
    assert frames_of_tzero(either, y) == []
    assert either.stats().calls == 221
    either.reset()
    assert either(X) == 6.0 and either.stats().entries == 1


def test_a_fallback_that_is_dropped_is_forgotten() -> None:
    def make() -> Any:
        def nothing(x):
            return x

        kernel = tzero.kernel(nothing)
        for _ in range(200):
            kernel(X)
        kernel.reset()
        return weakref.ref(kernel)

    gone = make()
    gc.collect()
    assert gone() is None
