"""What plain Python accepts, `@tzero.kernel` accepts: at every tier, and when tzero is disabled."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
import inspect
import operator
import types
from collections import OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch
import triton
import triton.language as tl

import tzero
from tests import tiers
from tzero import events, settings

Way = dict[str, Any]
WAYS: dict[str, Way] = {
    "disabled": {"disable": True},
    "plain": {"tier": 0},
    "python": {"tier": 1},
    "native": {"tier": 2},
    "without native code": {"tier": None, "disable": False},
}


@pytest.fixture(params=WAYS.values(), ids=WAYS, autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    tiers.can_replay(request.param.get("tier") or 0)
    if request.param is WAYS["without native code"]:
        monkeypatch.setattr("tzero.launches.tiers._native", lambda: None)
    with settings.override(**request.param):
        yield request.param


@triton.jit
def scale(x, out, by, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


def doubled(x: Any) -> Any:
    out = torch.empty_like(x)
    scale[(1,)](x, out, 2.0, x.numel(), BLOCK=16)
    return out


X = torch.arange(4.0)


# -- functions of every kind ----------------------------------------------------------------------


def generator(x):
    yield doubled(x)
    yield 2


def delegating(x):
    return (yield from generator(x))


async def coroutine(x):
    await asyncio.sleep(0)
    return doubled(x)


async def stream(x) -> AsyncIterator[Any]:
    yield doubled(x)
    yield 2


async def collected(items: Any) -> list[Any]:
    return [each async for each in items]


class Called:
    """An object that is called."""

    def __init__(self, by: float = 1.0) -> None:
        self.by = by

    def __call__(self, x):
        return doubled(x) * self.by


class Stepping:
    """An object whose calls make generators."""

    def __call__(self, x):
        yield doubled(x)


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def inner(*args, **kwargs):
        return function(*args, **kwargs)

    return inner


def counting(x, seen=[]):  # noqa: B006
    seen.append(len(seen))
    return doubled(x)


def recursive(x, depth=3):
    return doubled(x) if depth == 0 else recursive(x, depth - 1)


def nothing():
    return 3


FUNCTIONS: dict[str, tuple[Callable[[], Any], tuple[Any, ...], Callable[[Any], Any]]] = {
    "generator": (lambda: generator, (X,), list),
    "delegating generator": (lambda: delegating, (X,), list),
    "coroutine": (lambda: coroutine, (X,), asyncio.run),
    "asynchronous generator": (lambda: stream, (X,), lambda made: asyncio.run(collected(made))),
    "partial generator": (lambda: functools.partial(generator), (X,), list),
    "object that makes generators": (lambda: Stepping(), (X,), list),
    "lambda": (lambda: lambda x: doubled(x), (X,), lambda made: made),
    "partial": (lambda: functools.partial(operator.mul, 3), (X,), lambda made: made),
    "partial by name": (lambda: functools.partial(recursive, depth=1), (X,), lambda made: made),
    "object": (lambda: Called(2.0), (X,), lambda made: made),
    "bound method": (lambda: Called(3.0).__call__, (X,), lambda made: made),
    "wrapped": (lambda: wrapped(doubled), (X,), lambda made: made),
    "cached": (lambda: functools.lru_cache(doubled), (X,), lambda made: made),
    "static method": (lambda: staticmethod(doubled), (X,), lambda made: made),
    "class": (lambda: Called, (2.0,), lambda made: made.by),
    "builtin without a signature": (lambda: torch.relu, (X,), lambda made: made),
    "builtin": (lambda: len, (X,), lambda made: made),
    "operator": (lambda: operator.add, (X, 1), lambda made: made),
    "method of a builtin": (lambda: "a{}".format, (1,), lambda made: made),
    "type": (lambda: dict, ([("a", 1)],), lambda made: made),
    "numpy function": (lambda: numpy.add, (1, 2), lambda made: made),
    "recursive": (lambda: recursive, (X,), lambda made: made),
    "no parameters": (lambda: nothing, (), lambda made: made),
    "mutable default": (lambda: counting, (X,), lambda made: made),
    "exec": (lambda: _executed("def f(x): return x + 1", "f"), (X,), lambda made: made),
    "method type": (lambda: types.MethodType(operator.add, X), (1,), lambda made: made),
}


def _executed(text: str, name: str) -> Any:
    names: dict[str, Any] = {}
    exec(text, names)
    return names[name]


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, torch.Tensor):
        return torch.equal(found, expected)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    return type(found) is type(expected) and bool(found == expected)


@pytest.mark.parametrize("row", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_function_of_any_kind_is_called(row: Any) -> None:
    make, args, result = row
    plain, kernel = make(), tzero.kernel(make())
    for _ in range(4):
        assert same(result(kernel(*args)), result(plain(*args)))


def test_what_runs_later_is_reported(way: Way) -> None:
    seen: list[events.Event] = []
    with events.observe(seen.append):
        kernel = tzero.kernel(generator)
    why = "it is a generator function, whose body runs after the call has ended"
    replays = way.get("tier") in (1, 2)
    assert [why in event.reason for event in seen] == [True] * replays
    assert list(kernel(X))[1] == 2
    assert (why in kernel.explain(X).refusal) == replays


def test_a_generator_gets_what_is_sent_and_thrown() -> None:
    def echo(x):
        got = yield doubled(x)
        try:
            yield got
        except KeyError:
            yield "caught"

    for _ in range(3):
        made = tzero.kernel(echo)(X)
        assert torch.equal(next(made), X * 2) and made.send(5) == 5
        assert made.throw(KeyError()) == "caught"
        made.close()


def test_methods_of_every_kind() -> None:
    class Layer:
        by = 2.0

        @tzero.kernel
        def plain(self, x):
            return doubled(x) * self.by

        @tzero.kernel
        @classmethod
        def of_class(cls, x):
            return doubled(x) * cls.by

        @classmethod
        @tzero.kernel
        def also_of_class(cls, x):
            return doubled(x) * cls.by

        @tzero.kernel
        @staticmethod
        def static(x):
            return doubled(x)

        @property
        @tzero.kernel
        def asked(self):
            return self.by

        @tzero.kernel
        def steps(self, x):
            yield doubled(x) * self.by

    class Derived(Layer):
        by = 3.0

    for _ in range(3):
        for kind in (Layer, Derived):
            for method in (kind().plain, kind.of_class, kind().of_class, kind.also_of_class):
                assert torch.equal(method(X), X * 2 * kind.by)
            assert torch.equal(kind.static(X), X * 2) and kind().asked == kind.by
            assert torch.equal(next(kind().steps(X)), X * 2 * kind.by)


# -- arguments of every kind ----------------------------------------------------------------------


class Color(enum.Enum):
    RED = 1


class Flags(enum.Flag):
    A = 1
    B = 2


class Named(NamedTuple):
    x: Any
    n: int


@dataclasses.dataclass
class Data:
    x: Any
    n: int = 1


class Odd:
    """An object that can be neither hashed nor compared."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise TypeError("not compared")


class Sub(torch.Tensor):
    """A subclass of a tensor."""


def looped() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


ARGUMENTS: dict[str, Callable[[], Any]] = {
    "meta tensor": lambda: torch.empty(4, device="meta"),
    "sparse tensor": lambda: torch.eye(2).to_sparse(),
    "nested tensor": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "quantized tensor": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
    "subclass of a tensor": lambda: torch.ones(2).as_subclass(Sub),
    "tensors on two devices in a list": lambda: [torch.ones(2), torch.ones(2, device="meta")],
    "storage": lambda: torch.ones(2).untyped_storage(),
    "generator of torch": lambda: torch.Generator(),
    "module": lambda: torch.nn.Linear(2, 2),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "dtype": lambda: torch.float32,
    "device": lambda: torch.device("cpu"),
    "device elsewhere": lambda: torch.device("cuda"),
    "size": lambda: torch.Size([1, 2]),
    "layout": lambda: torch.strided,
    "memory format": lambda: torch.channels_last,
    "complex": lambda: 1 + 2j,
    "large integer": lambda: 1 << 200,
    "nan": lambda: float("nan"),
    "decimal": lambda: Decimal("1.5"),
    "fraction": lambda: Fraction(1, 3),
    "numpy scalar": lambda: numpy.float16(1),
    "numpy array": lambda: numpy.ones(3),
    "text": lambda: "text",
    "bytes": lambda: b"text",
    "bytearray": lambda: bytearray(b"text"),
    "memoryview": lambda: memoryview(b"text"),
    "ellipsis": lambda: ...,
    "not implemented": lambda: NotImplemented,
    "slice": lambda: slice(1, 2),
    "range": lambda: range(3),
    "set": lambda: {1, 2},
    "frozenset": lambda: frozenset([1]),
    "deque": lambda: deque([1]),
    "dict": lambda: {"a": torch.ones(2), "b": 1},
    "dict of numbers": lambda: {1: 2},
    "ordered dict": lambda: OrderedDict(a=1),
    "default dict": lambda: defaultdict(list, a=[1]),
    "user dict": lambda: UserDict(a=1),
    "user list": lambda: UserList([1]),
    "named tuple": lambda: Named(torch.ones(2), 1),
    "dataclass": lambda: Data(torch.ones(2)),
    "enum": lambda: Color.RED,
    "flags": lambda: Flags.A | Flags.B,
    "namespace": lambda: types.SimpleNamespace(a=1),
    "object": object,
    "odd object": Odd,
    "function": lambda: doubled,
    "kernel of Triton": lambda: scale,
    "class": lambda: Odd,
    "module of Python": lambda: types,
    "generator": lambda: generator(X),
    "iterator": lambda: iter([1, 2]),
    "path": lambda: Path("a"),
    "exception": lambda: KeyError("a"),
    "list that holds itself": looped,
    "deep list": lambda: [[[[[[[[[[[[1]]]]]]]]]]]],
    "many": lambda: list(range(500)),
    "None": lambda: None,
}


IMMUTABLE = (int, float, complex, torch.device, torch.Size)


def is_it(found: Any, thing: Any) -> bool:
    """Whether it is the same object. A replay may return an equal value of an immutable type."""
    alike = type(found) is type(thing) in IMMUTABLE and repr(found) == repr(thing)
    return found is thing or alike


@pytest.mark.parametrize("make", ARGUMENTS.values(), ids=ARGUMENTS)
def test_a_call_takes_any_object(make: Any) -> None:
    @tzero.kernel
    def given(x, thing, *rest, **more):
        return doubled(x), thing, rest, more

    @tzero.kernel
    def default(x, thing=make()):  # noqa: B008
        return thing

    for _ in range(3):
        thing = make()
        out, found, rest, more = given(X, thing, thing, key=thing)
        assert torch.equal(out, X * 2)
        assert is_it(found, thing) and is_it(rest[0], thing) and is_it(more["key"], thing)
        assert is_it(given(X, thing=thing)[1], thing)
        assert default(X) is inspect.signature(default).parameters["thing"].default
        assert is_it(default(X, thing), thing)


def test_errors_are_those_of_the_function() -> None:
    @tzero.kernel
    def fails(x, fail):
        if fail:
            raise KeyError("mine")
        return doubled(x)

    for _ in range(4):
        assert torch.equal(fails(X, False), X * 2)
        with pytest.raises(KeyError, match="mine"):
            fails(X, True)


def test_a_kernel_is_a_callback_and_sorts_and_maps() -> None:
    @tzero.kernel
    def negative(n):
        return -n

    assert sorted([1, 3, 2], key=negative) == [3, 2, 1]
    assert list(map(negative, [1, 2])) == [-1, -2]
    assert functools.reduce(tzero.kernel(operator.add), [1, 2, 3]) == 6
