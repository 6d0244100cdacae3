"""Shared by the tests of keys in whole calls: values that differ in one fact, host functions and
positions of their arguments, and checks that two calls share a bound kernel or do not.

`test_key.py` tests parts of keys. The tests that use this make whole calls, so they cover generated
functions, caches and shortcuts too.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import namedtuple
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import tzero
from tzero import ConstExpr, Kernel
from tzero.arguments.key import Key, Options

OPTIONS: dict[str, Options] = {
    "static": Options(),
    "dynamic": Options(static_shapes=False),
    "dynamic, width given": Options(static_shapes=False, index_dtype=torch.int64),
}
ALL = frozenset(OPTIONS)
STATIC = frozenset({"static"})
DYNAMIC = ALL - STATIC
NEVER: frozenset[str] = frozenset()

EVERY_OPTION = pytest.mark.parametrize("under", OPTIONS)
ONE_ARGUMENT = pytest.mark.filterwarnings("ignore:.* was given one (list|tuple):FutureWarning")
"""`key` and `bind` warn of a list that is the only argument, and many cases here are such lists."""

Pair = namedtuple("Pair", "left right")
Other = namedtuple("Other", "left right")


@dataclasses.dataclass
class Point:
    x: Any
    y: Any


@dataclasses.dataclass
class Spot:
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any


class Mode(enum.Enum):
    SUM = 1
    MEAN = 2


class Bits(enum.IntFlag):
    ONE = 1


class Tagged(torch.Tensor):
    """A subclass that adds nothing."""


def zeros(*sizes: int, **options: Any) -> torch.Tensor:
    return torch.zeros(*sizes, **options)


def cut(a: int, b: int, c: int, *strides: int) -> torch.Tensor:
    """A tensor of these sizes that is not contiguous."""
    return zeros(1000).as_strided((a, b, c), strides or (81, 9, 3))


FAKES = FakeTensorMode()


def fake(real: torch.Tensor) -> torch.Tensor:
    return FAKES.from_tensor(real)


def fake_on(device: str, *sizes: int) -> torch.Tensor:
    return FakeTensor(FAKES, torch.empty(*sizes, device="meta"), torch.device(device))


def marked(tensor: torch.Tensor, *dims: int) -> torch.Tensor:
    for dim in dims:
        torch._dynamo.mark_static(tensor, dim)
    return tensor


LIKE_TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tensor": lambda tensor: tensor,
    "parameter": torch.nn.Parameter,
    "fake": fake,
    "subclass": lambda tensor: tensor.as_subclass(Tagged),
}


def closing(over: Any) -> Callable[[], Any]:
    def inner() -> Any:
        return over

    return inner


def closing_elsewhere(over: Any) -> Callable[[], Any]:
    def inner() -> Any:
        return [over]

    return inner


def defaulted(by: Any) -> Callable[..., Any]:
    def inner(by: Any = by) -> Any:
        return by

    return inner


def defaulted_by_name(by: Any) -> Callable[..., Any]:
    def inner(*, by: Any = by) -> Any:
        return by

    return inner


# -- kernels and places ---------------------------------------------------------------------------

Args = tuple[Any, ...]
Make = Callable[[], Kernel[Any]]


def host(
    count: int, constant_at: int | None = None, annotation: object = ConstExpr
) -> Callable[..., Args]:
    """A host function with this many parameters that returns its arguments."""

    def alone(x):  # type: ignore[no-untyped-def]
        return (x,)

    def pair(x, y):  # type: ignore[no-untyped-def]
        return (x, y)

    def triple(x, y, z):  # type: ignore[no-untyped-def]
        return (x, y, z)

    functions: tuple[Any, ...] = (alone, pair, triple)
    function: Any = functions[count - 1]
    if constant_at is not None:
        function.__annotations__ = {"xyz"[constant_at]: annotation}
    return function  # type: ignore[no-any-return]


def made(
    function: Callable[..., Any], under: str, key: Callable[..., Hashable] | None = None
) -> Kernel[Any]:
    options = OPTIONS[under]
    return tzero.kernel(
        key=key, static_shapes=options.static_shapes, index_dtype=options.index_dtype
    )(function)


class Place(NamedTuple):
    """The arguments before and after the one that a test is about."""

    before: Args
    after: Args

    def args(self, value: Any) -> Args:
        return (*self.before, value, *self.after)

    @property
    def width(self) -> int:
        return len(self.before) + 1 + len(self.after)


T, U = zeros(4, 8), zeros(3, dtype=torch.int8)
META = zeros(4, 8, device="meta")

PLACES: dict[str, Place] = {
    "alone": Place((), ()),
    "first": Place((), (3,)),
    "second": Place(("mean",), ()),
    "before a tensor": Place((), (T,)),
    "after a tensor": Place((T,), ()),
    "after a parameter": Place((torch.nn.Parameter(T),), ()),
    "before a list": Place((), ([U, 1],)),
    "between tensors": Place((U,), (T,)),
}
EVERY_PLACE = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
NARROW = [PLACES[name] for name in ("alone", "first", "before a tensor", "after a tensor")]


def plain(place: Place, under: str) -> Make:
    """Kernels for calls at a place."""
    return lambda: made(host(place.width), under)


def call(kernel: Kernel[Any], args: Args) -> None:
    """Make a call; the host function must get these very arguments."""
    wanted = [a.value if type(a) is ConstExpr else a for a in args]
    for got, want in zip(kernel(*args), wanted, strict=True):
        assert got is want


def assert_hashed_as_it_is(kernel: Kernel[Any], args: Args) -> None:
    key, again = kernel.key(*args), kernel.key(*args)
    assert type(key) is Key
    assert key == again == tuple(key)
    assert hash(key) == hash(again) == hash(tuple(key))


def assert_apart(make: Make, one: Args, other: Args) -> None:
    """Assert that two calls get two bound kernels, in either order."""
    for first, second in ((one, other), (other, one)):
        kernel = make()
        call(kernel, first)
        assert kernel.explain(*first).hit
        missed = kernel.explain(*second)
        assert not missed.hit and missed.difference
        call(kernel, second)
        keys = [kernel.key(*first), kernel.key(*second)]
        assert keys[0] != keys[1]
        bounds = [kernel.bind(*first), kernel.bind(*second)]
        assert bounds[0] is not bounds[1]
        assert [bound.key for bound in bounds] == keys
        for args in (first, second):
            call(kernel, args)
            assert kernel.explain(*args).hit
            assert_hashed_as_it_is(kernel, args)
        assert [kernel.bind(*first), kernel.bind(*second)] == bounds
        assert kernel.stats()[:4] == (4, 2, 2, 0)


def assert_together(make: Make, one: Args, other: Args) -> None:
    """Assert that two calls share one bound kernel, in either order."""
    for first, second in ((one, other), (other, one)):
        kernel = make()
        call(kernel, first)
        assert kernel.explain(*second).hit
        call(kernel, second)
        keys = [kernel.key(*first), kernel.key(*second)]
        assert keys[0] == keys[1] and hash(keys[0]) == hash(keys[1])
        assert kernel.bind(*first) is kernel.bind(*second)
        for args in (first, second):
            call(kernel, args)
            assert_hashed_as_it_is(kernel, args)
        assert kernel.stats()[:4] == (4, 1, 1, 0)
