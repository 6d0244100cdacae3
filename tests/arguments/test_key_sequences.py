"""Sequences of calls: whatever came before, and however a call is written, its key equals a
reference key that is made part by part.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import random
from collections import namedtuple
from collections.abc import Callable, Hashable
from types import FunctionType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arguments.key_cases import (
    ALL,
    DYNAMIC,
    EVERY_OPTION,
    EVERY_PLACE,
    LIKE_TENSORS,
    NEVER,
    ONE_ARGUMENT,
    OPTIONS,
    PLACES,
    STATIC,
    Args,
    Mode,
    Pair,
    Place,
    Point,
    Spot,
    T,
    Tagged,
    U,
    call,
    closing,
    closing_elsewhere,
    defaulted,
    fake,
    host,
    made,
    marked,
    zeros,
)
from tzero import BoundKernel, ConstExpr
from tzero.arguments.device import capability
from tzero.arguments.key import Key, Options, constant

pytestmark = ONE_ARGUMENT

# -- ways to write a call -------------------------------------------------------------------------


@EVERY_OPTION
def test_ways_to_write_one_call_have_one_key(under: str) -> None:
    def scaled(x: Any, by: ConstExpr = 2, how: Any = "mean", out: Any = None) -> Args:  # type: ignore[assignment]
        return x, by, how, out

    kernel = made(scaled, under)
    ways: list[tuple[Args, dict[str, Any]]] = [
        ((T,), {}),
        ((T, 2), {}),
        ((T, ConstExpr(2)), {}),
        ((T, 2, "mean"), {}),
        ((T, 2, "mean", None), {}),
        ((), {"x": T}),
        ((), {"out": None, "how": "mean", "by": 2, "x": T}),
        ((T,), {"how": "mean"}),
        ((T,), {"by": ConstExpr(2), "out": None}),
    ]
    for args, kwargs in (*ways, *reversed(ways)):
        assert kernel(*args, **kwargs) == (T, 2, "mean", None)
    assert kernel.stats()[:4] == (18, 1, 1, 0)
    assert len({kernel.explain(*args, **kwargs).key for args, kwargs in ways}) == 1
    assert kernel.bind(T) is kernel.bind(T, 2, "mean", None)
    for args, kwargs in (((T, 3), {}), ((T,), {"by": 2.0}), ((T,), {"how": "sum"})):
        assert not kernel.explain(*args, **kwargs).hit


# -- one object that changes ----------------------------------------------------------------------


def rewrite(function: Any) -> None:
    function.__code__ = closing_elsewhere(1).__code__


def refill(function: Any) -> None:
    function.__closure__[0].cell_contents = 2


def redefault(function: Any) -> None:
    function.__defaults__ = (2,)


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], frozenset[str]]] = {
    "resized tensor": (lambda: zeros(2), lambda x: x.resize_(5), STATIC),
    "tensor resized to one": (lambda: zeros(2), lambda x: x.resize_(1), ALL),
    "transposed tensor": (lambda: zeros(2, 2), lambda x: x.t_(), ALL),
    "parameter's data": (
        lambda: torch.nn.Parameter(zeros(2, 2)),
        lambda x: setattr(x, "data", zeros(2, 2).t()),
        ALL,
    ),
    "mark": (lambda: zeros(2), lambda x: marked(x, 0), DYNAMIC),
    "list": (lambda: [1], lambda x: x.append(1), ALL),
    "element": (lambda: [1, [2]], lambda x: x[1].append("a"), ALL),
    "dict": (lambda: {"a": 1}, lambda x: x.update(b=1), ALL),
    "dict order": (lambda: {"a": 1, "b": 2}, lambda x: x.update(a=x.pop("a")), ALL),
    "dataclass": (lambda: Point(1, "a"), lambda x: setattr(x, "y", "b"), ALL),
    "class of an object": (lambda: Point(1, 2), lambda x: setattr(x, "__class__", Spot), ALL),
    "class of a tensor": (lambda: zeros(2), lambda x: setattr(x, "__class__", Tagged), NEVER),
    "code": (lambda: closing(1), rewrite, ALL),
    "closure": (lambda: closing(1), refill, ALL),
    "default": (lambda: defaulted(1), redefault, ALL),
    "ConstExpr": (lambda: ConstExpr(1), lambda x: setattr(x, "value", True), ALL),
    "contents": (lambda: zeros(2), lambda x: x.add_(1), NEVER),
}


@EVERY_OPTION
@pytest.mark.parametrize(("make", "change", "apart"), CHANGES.values(), ids=CHANGES)
def test_an_object_counts_by_its_present_contents(
    make: Callable[[], Any],
    change: Callable[[Any], Any],
    apart: frozenset[str],
    under: str,
) -> None:
    for place in PLACES.values():
        kernel, value = made(host(place.width), under), make()
        args = place.args(value)
        call(kernel, args)
        before = kernel.bind(*args)
        change(value)
        call(kernel, args)
        assert (kernel.bind(*args) is not before) is (under in apart)
        call(kernel, place.args(make()))
        entries = 2 if under in apart else 1
        assert kernel.stats()[:4] == (3, entries, entries, 0)


# -- against a reference --------------------------------------------------------------------------


PROFILE = settings(max_examples=30, derandomize=True)


def held(value: Any) -> list[torch.Tensor]:
    """The tensors in a value of the kinds that hypothesis generates."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, Point):
        value = [value.x, value.y]
    if isinstance(value, FunctionType):
        value = [cell.cell_contents for cell in value.__closure__ or ()]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in held(item)]
    return []


def slow(args: Args, under: str) -> Key:
    """The key of a call, part by part."""
    parts: list[Hashable] = []
    for value in args:
        if type(value) is ConstExpr:
            parts.append(("constant", constant(value.value)))
        else:
            parts.extend(Key.of((value,), OPTIONS[under]))
    devices = {tensor.device for value in args for tensor in held(value)}
    assert len(devices) <= 1
    return Key((*parts, capability(devices.pop()) if devices else None))


def strided(
    layout: list[tuple[int, int]], dtype: torch.dtype, offset: int, kind: str, static: bool
) -> torch.Tensor:
    sizes, strides = [size for size, _ in layout], [stride for _, stride in layout]
    tensor = torch.zeros(64, dtype=dtype).as_strided(sizes, strides, offset)
    if kind == "parameter":
        tensor = torch.nn.Parameter(tensor, requires_grad=False)
    elif kind != "tensor":
        tensor = LIKE_TENSORS[kind](tensor)
    return marked(tensor, 0) if static and layout else tensor


def permuted(sizes: list[int], seed: int, step: int) -> torch.Tensor:
    order = list(range(len(sizes)))
    random.Random(seed).shuffle(order)
    tensor = zeros(*sizes).permute(order)
    return tensor[..., ::step]


TENSORS = st.one_of(
    st.builds(
        strided,
        layout=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=3),
        dtype=st.sampled_from([torch.float32, torch.float16, torch.int8]),
        offset=st.integers(0, 2),
        kind=st.sampled_from(["tensor", "tensor", *LIKE_TENSORS]),
        static=st.booleans(),
    ),
    st.builds(
        permuted,
        sizes=st.lists(st.integers(0, 4), min_size=1, max_size=4),
        seed=st.integers(0, 10),
        step=st.integers(1, 2),
    ),
)
NUMBERS = st.one_of(
    st.integers(), st.booleans(), st.floats(), st.complex_numbers(), st.just(float("nan"))
)
PLAIN = st.one_of(
    NUMBERS,
    st.none(),
    st.text("ab", max_size=1),
    st.sampled_from([b"a", torch.int8, torch.device("cpu"), torch.strided, Mode.SUM, Mode.MEAN]),
)
LEAVES = st.one_of(
    TENSORS, PLAIN, st.sampled_from([closing(1), closing(2), closing(U), defaulted(1), len, int])
)
VALUES = st.one_of(
    TENSORS,
    st.builds(ConstExpr, PLAIN),
    st.recursive(
        LEAVES,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.tuples(inner, inner),
            st.dictionaries(st.sampled_from(["a", "b", 1, True]), inner, max_size=2),
            st.builds(Pair, inner, inner),
            st.builds(Point, inner, inner),
        ),
        max_leaves=5,
    ),
)


def twin(value: Any) -> Any:
    """Another value, made to have the same key."""
    if type(value) in (int, float, complex):
        return value + 1
    if isinstance(value, torch.Tensor):
        alike = value.detach()
        return marked(alike, 0) if getattr(value, "_dynamo_static_indices", None) else alike
    if type(value) is list:
        return [twin(item) for item in value]
    if type(value) is ConstExpr:
        return ConstExpr(value.value)
    return value


@EVERY_OPTION
@pytest.mark.parametrize("count", [1, 2, 3])
def test_calls_share_a_bound_kernel_exactly_if_their_reference_keys_are_equal(
    count: int, under: str
) -> None:
    outcomes: set[bool] = set()

    @PROFILE
    @given(calls=st.lists(st.tuples(*[VALUES] * count), min_size=2, max_size=5))
    def check(calls: list[Args]) -> None:
        kernel = made(host(count), under)
        bounds: dict[Key, BoundKernel[Any]] = {}
        doubled = [args for each in calls for args in (each, tuple(map(twin, each)))]
        for args in (*doubled, *reversed(doubled)):
            wanted = slow(args, under)
            assert kernel.key(*args) == wanted
            assert hash(kernel.key(*args)) == hash(wanted)
            call(kernel, args)
            bound = kernel.bind(*args)
            assert bounds.setdefault(wanted, bound) is bound
            assert bound.key == wanted
            assert kernel.key(*args) == wanted
        assert len(set(bounds.values())) == len(bounds)
        assert kernel.stats()[:4] == (2 * len(doubled), len(bounds), len(bounds), 0)
        outcomes.update(slow(calls[0], under) == slow(args, under) for args in doubled[1:])

    check()
    assert outcomes == {True, False}


# -- types that alternate -------------------------------------------------------------------------


@EVERY_PLACE
@EVERY_OPTION
def test_alternating_types_never_share_an_entry(under: str, place: Place) -> None:
    values: list[Any] = [
        zeros(2, 3),
        zeros(3, 2).t(),
        zeros(5),
        torch.nn.Parameter(zeros(2, 3)),
        torch.nn.Parameter(zeros(5)),
        fake(zeros(2, 3)),
        fake(zeros(1, 3)),
        zeros(2, 3).as_subclass(Tagged),
        zeros(7).as_subclass(Tagged),
        *(7, None, 1.5, True, "mean", [zeros(2)], (1,), Point(zeros(2), 1)),
        *(ConstExpr(1), ConstExpr(True), closing(1), torch.float32),
    ]
    kernel = made(host(place.width), under)
    bounds: dict[Key, BoundKernel[Any]] = {}
    dice = random.Random(20)
    for _ in range(200):
        args = place.args(dice.choice(values))
        wanted = made(host(place.width), under).key(*args)
        assert wanted == slow(args, under)
        assert kernel.key(*args) == wanted
        bound = bounds.setdefault(wanted, kernel.bind(*args))
        assert bound.key == wanted
        call(kernel, args)
        assert kernel.bind(*args) is bound
    assert kernel.stats()[:4] == (200, len(bounds), len(bounds), 0)
    assert len(bounds) > 12


def test_many_combinations_of_types_each_have_their_own_entry() -> None:
    values: list[Any] = [zeros(2), torch.nn.Parameter(zeros(2, 1)), 1, 1.0, None, "a", [1]]
    patterns = list(itertools.product(values, repeat=3))
    kernel = made(host(3), "static")
    for args in (*patterns, *patterns):
        call(kernel, args)
        assert kernel.key(*args) == slow(args, "static")
    assert kernel.stats()[:4] == (2 * len(patterns), len(patterns), len(patterns), 0)


def test_a_class_that_is_gone_leaves_nothing_for_the_next() -> None:
    kernel = made(host(2), "static")
    for k in range(4):
        names = ["a", "b", "c"][: k % 3 + 1]
        new: Any = dataclasses.make_dataclass("New", names) if k % 2 else namedtuple("New", names)
        value = new(*names)
        call(kernel, (T, value))
        assert kernel.key(T, value)[1] == Key.of((value,), Options())[0]
        assert kernel.bind(T, value) is kernel.bind(T, new(*names))
        kernel.reset()
        del new, value
        gc.collect()  # so that the next class may get the address of this one
