"""Every fact of the arguments, changed alone, through the dispatcher: calls that need other code
reach another bound kernel and calls that need the same reach the same one, at any place among the
arguments, whatever came before.

`test_key.py` asks for parts; here whole calls are made, so that whatever the dispatcher writes,
keeps or skips for speed is held to the same answers.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import gc
import itertools
import random
from collections import namedtuple
from collections.abc import Callable, Hashable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import tzero
from tzero import BoundKernel, ConstExpr, Kernel
from tzero.device import capability
from tzero.errors import InvalidArgument
from tzero.key import Key, Options, constant

PROFILE = settings(max_examples=30, deadline=None, derandomize=True)

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


class Tagged(torch.Tensor):
    """A subclass that adds nothing."""


def zeros(*sizes: int, **options: Any) -> torch.Tensor:
    return torch.zeros(*sizes, **options)


def cut(a: int, b: int, c: int, *strides: int) -> torch.Tensor:
    """A tensor of these sizes whose strides do not follow from them."""
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
    """A host function of so many parameters that returns what it was given."""

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
    """Which arguments stand around the one that a test is about."""

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
    """A call, which must reach the host function with these very arguments."""
    wanted = [a.value if type(a) is ConstExpr else a for a in args]
    for got, want in zip(kernel(*args), wanted, strict=True):
        assert got is want


def assert_hashed_as_it_is(kernel: Kernel[Any], args: Args) -> None:
    key, again = kernel.key(args), kernel.key(list(args))
    assert type(key) is Key
    assert key == again == tuple(key)
    assert hash(key) == hash(again) == hash(tuple(key))


def assert_apart(make: Make, one: Args, other: Args) -> None:
    """Two bound kernels, whichever of the two is called first."""
    for first, second in ((one, other), (other, one)):
        kernel = make()
        call(kernel, first)
        assert kernel.explain(*first).hit
        missed = kernel.explain(*second)
        assert not missed.hit and missed.difference
        call(kernel, second)
        keys = [kernel.key(first), kernel.key(second)]
        assert keys[0] != keys[1]
        bounds = [kernel.bind(first), kernel.bind(second)]
        assert bounds[0] is not bounds[1]
        assert [bound.key for bound in bounds] == keys
        for args in (first, second):
            call(kernel, args)
            assert kernel.explain(*args).hit
            assert_hashed_as_it_is(kernel, args)
        assert [kernel.bind(first), kernel.bind(second)] == bounds
        assert kernel.stats() == (4, 2, 2, 0)


def assert_together(make: Make, one: Args, other: Args) -> None:
    """One bound kernel, whichever of the two is called first."""
    for first, second in ((one, other), (other, one)):
        kernel = make()
        call(kernel, first)
        assert kernel.explain(*second).hit
        call(kernel, second)
        keys = [kernel.key(first), kernel.key(second)]
        assert keys[0] == keys[1] and hash(keys[0]) == hash(keys[1])
        assert kernel.bind(first) is kernel.bind(second)
        for args in (first, second):
            call(kernel, args)
            assert_hashed_as_it_is(kernel, args)
        assert kernel.stats() == (4, 1, 1, 0)


# -- the matrix -----------------------------------------------------------------------------------


class Row(NamedTuple):
    """Two values that differ in one thing, and the options under which they need other code."""

    one: Any
    other: Any
    apart: frozenset[str] = ALL


BIG = 2**31

MATRIX: dict[str, Row] = {
    # tensors
    "dtype": Row(zeros(2, 3), zeros(2, 3, dtype=torch.float16)),
    "dtype of the same width": Row(zeros(2, 3, dtype=torch.int16), zeros(2, 3).half()),
    "first size": Row(cut(2, 2, 2), cut(3, 2, 2), STATIC),
    "middle size": Row(cut(2, 2, 2), cut(2, 3, 2), STATIC),
    "last size": Row(cut(2, 2, 2), cut(2, 2, 3), STATIC),
    "first stride": Row(cut(2, 2, 2), cut(2, 2, 2, 80, 9, 3), STATIC),
    "middle stride": Row(cut(2, 2, 2), cut(2, 2, 2, 81, 8, 3), STATIC),
    "last stride": Row(cut(2, 2, 2), cut(2, 2, 2, 81, 9, 2), STATIC),
    "last stride of one": Row(cut(2, 2, 2), cut(2, 2, 2, 81, 9, 1)),
    "only size": Row(zeros(2), zeros(4096), STATIC),
    "size 0 and 1": Row(zeros(0), zeros(1)),
    "size 1 and more": Row(zeros(1, 4), zeros(2, 4)),
    "size 0 and more": Row(zeros(2, 0), zeros(2, 2)),
    "dims": Row(zeros(6), zeros(6, 1)),
    "no dims": Row(torch.zeros(()), zeros(1)),
    "strides, transposed": Row(zeros(4, 4), zeros(4, 4).t()),
    "strides above one": Row(zeros(8, 8)[:, :4], zeros(8, 4), STATIC),
    "stride 0 and 1": Row(zeros(1).expand(4), zeros(4)),
    "stride 1 and more": Row(zeros(4), zeros(8)[::2]),
    "stride 0 and more": Row(zeros(1, 4).expand(4, 4), zeros(4, 4)),
    "strides of a size of one": Row(zeros(1, 4), zeros(64).as_strided((1, 4), (32, 1)), STATIC),
    "index width": Row(
        zeros(1).expand(BIG - 1), zeros(1).expand(BIG + 8), frozenset({"static", "dynamic"})
    ),
    "index width by all sizes": Row(
        zeros(1).expand(2**16, 2**15 - 1),
        zeros(1).expand(2**16, 2**15),
        frozenset({"static", "dynamic"}),
    ),
    "dim marked static": Row(zeros(4, 8), marked(zeros(4, 8), 0), DYNAMIC),
    "which dim is marked static": Row(marked(zeros(4, 8), 1), marked(zeros(4, 8), 0), DYNAMIC),
    "size marked static": Row(marked(zeros(4, 8), 0), marked(zeros(5, 8), 0)),
    "size besides one marked static": Row(marked(zeros(4, 8), 0), marked(zeros(4, 9), 0), STATIC),
    "parameters": Row(torch.nn.Parameter(zeros(2)), torch.nn.Parameter(zeros(3)), STATIC),
    "dtype of parameters": Row(torch.nn.Parameter(zeros(2)), torch.nn.Parameter(zeros(2).double())),
    "dtype of subclasses": Row(zeros(2).as_subclass(Tagged), U[:2].as_subclass(Tagged)),
    "dtype of fakes": Row(fake(zeros(2)), fake(U[:2])),
    "contents": Row(zeros(2, 3), torch.ones(2, 3), NEVER),
    "storage offset": Row(zeros(4, 3)[1:3], zeros(2, 3), NEVER),
    "storage length": Row(zeros(4, 3)[:2], zeros(2, 3), NEVER),
    "requires grad": Row(zeros(2, 3), zeros(2, 3, requires_grad=True), NEVER),
    "not a leaf": Row(zeros(2, 3), zeros(2, 3, requires_grad=True) * 2, NEVER),
    "parameter": Row(zeros(2, 3), torch.nn.Parameter(zeros(2, 3)), NEVER),
    "subclass": Row(zeros(2, 3), zeros(2, 3).as_subclass(Tagged), NEVER),
    "fake": Row(zeros(2, 3).t(), fake(zeros(2, 3).t()), NEVER),
    "fake parameter": Row(torch.nn.Parameter(zeros(3)), fake(torch.nn.Parameter(zeros(3))), NEVER),
    "fake of another size": Row(zeros(2, 3), fake(zeros(2, 4)), STATIC),
    # numbers
    "int and float": Row(1, 1.0),
    "int and bool": Row(1, True),
    "int and complex": Row(1, 1 + 0j),
    "bool and float": Row(True, 1.0),
    "bool and complex": Row(True, 1 + 0j),
    "float and complex": Row(1.0, 1 + 0j),
    "ints": Row(0, 10**30, NEVER),
    "floats": Row(0.0, float("nan"), NEVER),
    "bools": Row(True, False, NEVER),
    "complexes": Row(0j, complex("nan"), NEVER),
    # plain values
    "string": Row("sum", "mean"),
    "empty string and None": Row("", None),
    "string and bytes": Row("a", b"a"),
    "bytes": Row(b"a", b"b"),
    "equal strings": Row("mean", "".join(["me", "an"]), NEVER),
    "None and int": Row(None, 0),
    "None and bool": Row(None, False),
    "None and tensor": Row(None, zeros(2)),
    "None and an empty list": Row(None, []),
    "number and tensor": Row(1.0, torch.zeros(())),
    "torch.dtype": Row(torch.float16, torch.bfloat16),
    "dtype and a tensor of it": Row(torch.float32, zeros(2)),
    "torch.device": Row(torch.device("cpu"), torch.device("meta")),
    "torch.device with the one index there is": Row(
        torch.device("cpu"), torch.device("cpu", 0), NEVER
    ),
    "torch.layout": Row(torch.strided, torch.sparse_coo),
    "torch.memory_format": Row(torch.contiguous_format, torch.channels_last),
    "enum": Row(Mode.SUM, Mode.MEAN),
    "type": Row(int, float),
    "type and a value of it": Row(int, 1),
    # containers
    "list length": Row([1], [1, 1]),
    "empty list": Row([], [1]),
    "list and tuple": Row([1], (1,)),
    "list and its element": Row([zeros(2)], zeros(2)),
    "element type": Row([1, 2], [1, 2.0]),
    "element order": Row([1, 2.0], [2.0, 1]),
    "element value": Row([1, 2.0], [3, 4.0], NEVER),
    "string element": Row(("a", 1), ("b", 1)),
    "nested element": Row([1, [2, (3,)]], [1, [2, (3.0,)]]),
    "nesting": Row([1, [2]], [[1], 2]),
    "nested values": Row([1, [2, (3,)]], [4, [5, (6,)]], NEVER),
    "tensor in a list": Row([zeros(2)], [zeros(2).double()]),
    "size in a list": Row([zeros(2)], [zeros(3)], STATIC),
    "dim marked static in a list": Row([zeros(4)], [marked(zeros(4), 0)], DYNAMIC),
    "tensor in a tuple": Row((1, zeros(2)), (1, zeros(2, 1))),
    "parameter in a list": Row([zeros(2)], [torch.nn.Parameter(zeros(2))], NEVER),
    "Size and tuple": Row(torch.Size([1, 2]), (3, 4), NEVER),
    "length of a Size": Row(torch.Size([1]), torch.Size([1, 1])),
    "dict key": Row({"a": 1}, {"b": 1}),
    "type of a dict key": Row({1: 1}, {True: 1}),
    "dict order": Row({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "dict length": Row({"a": 1}, {"a": 1, "b": 1}),
    "type of a dict value": Row({"a": 1}, {"a": 1.0}),
    "dict value": Row({"a": 1}, {"a": 2}, NEVER),
    "dict and its items": Row({"a": 1}, [("a", 1)]),
    "namedtuple class": Row(Pair(1, 2), Other(1, 2)),
    "namedtuple and tuple": Row(Pair(1, 2), (1, 2)),
    "namedtuple field": Row(Pair(1, 2), Pair(1, 2.0)),
    "namedtuple value": Row(Pair(1, 2), Pair(3, 4), NEVER),
    "dataclass class": Row(Point(1, 2), Spot(1, 2)),
    "dataclass field": Row(Point(1, "a"), Point(1, "b")),
    "type of a dataclass field": Row(Point(1, 2), Point(1, True)),
    "tensor in a dataclass": Row(Point(zeros(2), 1), Point(zeros(2, 1), 1)),
    "equal dataclasses": Row(Point(zeros(2), "a"), Point(torch.ones(2), "a"), NEVER),
    "dataclass value": Row(Point(1, 2.0), Point(3, 4.0), NEVER),
    # functions
    "function code": Row(closing(1), closing_elsewhere(1)),
    "function closure value": Row(closing(1), closing(2)),
    "type of a closure value": Row(closing(1), closing(True)),
    "sign of a zero in a closure": Row(closing(0.0), closing(-0.0)),
    "string in a closure": Row(closing("a"), closing("b")),
    "tensor in a closure": Row(closing(zeros(2)), closing(zeros(2).double())),
    "size in a closure": Row(closing(zeros(2)), closing(zeros(3)), STATIC),
    "function in a closure": Row(closing(closing(1)), closing(closing(2))),
    "function default": Row(defaulted(1), defaulted(2)),
    "type of a function default": Row(defaulted(1), defaulted(1.0)),
    "function default by name": Row(defaulted_by_name(1), defaulted_by_name(2)),
    "builtin function": Row(len, abs),
    "closures equal by value": Row(closing(5), closing(5), NEVER),
    "closures over NaN": Row(closing(float("nan")), closing(float("nan")), NEVER),
    "closures over like tensors": Row(closing(zeros(2)), closing(torch.ones(2)), NEVER),
    "defaults equal by value": Row(defaulted(5), defaulted(5), NEVER),
    # wrapped
    "ConstExpr and its value": Row(ConstExpr(1), 1),
    "ConstExpr of a tensor": Row(ConstExpr(zeros(2)), ConstExpr(zeros(2))),
    "ConstExprs of one tensor": Row(ConstExpr(T), ConstExpr(T), NEVER),
    "ConstExpr of a dtype": Row(ConstExpr(torch.int8), ConstExpr(torch.uint8)),
}


def cells(apart: bool) -> pytest.MarkDecorator:
    """The rows and options of the matrix that tell their values apart, or that do not."""
    chosen = [
        pytest.param(row, under, id=f"{name}-{under}")
        for name, row in MATRIX.items()
        for under in OPTIONS
        if (under in row.apart) is apart
    ]
    return pytest.mark.parametrize(("row", "under"), chosen)


@cells(apart=True)
def test_one_change_that_needs_other_code_gets_another_key(row: Row, under: str) -> None:
    for place in PLACES.values():
        one, other = place.args(row.one), place.args(row.other)
        fresh = made(host(place.width), under)
        assert fresh.key(one) != fresh.key(other)
        assert_apart(plain(place, under), one, other)


@cells(apart=False)
def test_one_change_that_needs_no_other_code_gets_the_same_key(row: Row, under: str) -> None:
    for place in PLACES.values():
        one, other = place.args(row.one), place.args(row.other)
        fresh = made(host(place.width), under)
        assert fresh.key(one) == fresh.key(other)
        assert_together(plain(place, under), one, other)


@cells(apart=True)
def test_changes_at_two_places_make_four_keys(row: Row, under: str) -> None:
    kernel = made(host(2), under)
    squares = list(itertools.product((row.one, row.other), repeat=2))
    for args in (*squares, *reversed(squares)):
        call(kernel, args)
    assert len({kernel.key(args) for args in squares}) == 4
    assert kernel.stats() == (8, 4, 4, 0)


def test_a_given_index_width_is_known_to_the_key_and_not_asked_of_tensors() -> None:
    asking, given_ = (made(host(1), name) for name in ("dynamic", "dynamic, width given"))
    small, large = zeros(1).expand(4), zeros(1).expand(BIG + 8)
    assert given_.bind((small,)) is given_.bind((large,))
    assert asking.bind((small,)) is not asking.bind((large,))
    assert given_.key((small,)) not in (asking.key((small,)), asking.key((large,)))


# -- devices --------------------------------------------------------------------------------------


@EVERY_OPTION
@pytest.mark.parametrize(
    "args",
    [
        lambda tensor: (tensor,),
        lambda tensor: (1, tensor),
        lambda tensor: (tensor, None, tensor),
        lambda tensor: ([tensor], tensor),
        lambda tensor: ("mean", Point(tensor, 1)),
        lambda tensor: (closing(tensor), 1),
    ],
    ids=["alone", "second", "twice", "in a list", "in a dataclass", "in a closure"],
)
def test_devices_count_by_what_they_can_do(
    args: Callable[[Any], Args], under: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    able = {0: (8, 0), 1: (9, 0), 2: (9, 0)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", able.__getitem__)
    on_cpu, *on_gpu = (
        args(fake_on(device, 2, 3)) for device in ("cpu", "cuda:0", "cuda:1", "cuda:2")
    )

    def make() -> Kernel[Any]:
        return made(host(len(on_cpu)), under)

    assert_apart(make, on_cpu, on_gpu[0])
    assert_apart(make, on_gpu[0], on_gpu[1])
    assert_together(make, on_gpu[1], on_gpu[2])


@EVERY_OPTION
def test_the_cpu_is_one_device_however_it_is_written(under: str) -> None:
    kernel = made(host(2), under)
    bound = kernel.bind((zeros(2, 3), zeros(2, 3)))
    with FakeTensorMode():
        numbered = torch.empty(2, 3, device="cpu:0")
    assert kernel.bind((numbered, numbered)) is bound
    assert kernel.bind((zeros(2, 3), numbered)) is bound
    assert kernel.bind((numbered, zeros(2, 3))) is bound


def test_a_sparse_tensor_never_passes_for_a_dense_one() -> None:
    kernel = made(host(1), "static")
    dense = zeros(1, 1).expand(3, 3)
    kernel(dense)
    try:
        key = kernel.key((torch.eye(3).to_sparse(),))
    except InvalidArgument as error:
        assert error.argument == "x"
    else:
        assert key != kernel.key((dense,))


# -- constants ------------------------------------------------------------------------------------

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
    assert len({kernel.bind((value,)) for value in wrapped}) == len(values)


# -- key= -----------------------------------------------------------------------------------------


def chosen(place: Place, results: Sequence[Any], under: str) -> Make:
    """Kernels whose key= function answers with one of some results, by the argument's number."""

    def key(*args: Any) -> Hashable:
        return results[args[len(place.before)]]  # type: ignore[no-any-return]

    return lambda: made(host(place.width), under, key)


@UNLIKE
def test_what_a_key_function_returns_counts_by_value_and_type(one: Any, other: Any) -> None:
    for place in NARROW:
        for under in OPTIONS:
            assert_apart(chosen(place, (one, other), under), place.args(0), place.args(1))


@ALIKE
def test_equal_results_of_a_key_function_share(one: Any, other: Any) -> None:
    for place in NARROW:
        for under in OPTIONS:
            assert_together(chosen(place, (one, other), under), place.args(0), place.args(1))


@cells(apart=True)
def test_a_key_function_takes_nothing_away_and_runs_once_a_call(row: Row, under: str) -> None:
    asked: list[Args] = []

    def key(*args: Any) -> str:
        asked.append(args)
        return "one for all"

    kernel = made(host(2), under, key)
    calls = [(T, row.one), (T, row.other)]
    for args in (*calls, *calls):
        call(kernel, args)
    assert kernel.stats() == (4, 2, 2, 0)
    assert len(asked) == 4  # once a call, whichever way the rest of the key was made


# -- specialize -----------------------------------------------------------------------------------


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
            assert_apart(make, place.args(one), place.args(other))


@ALIKE
def test_equal_specialized_arguments_share(one: Any, other: Any) -> None:
    for place in NARROW:
        function = at(place, value_alone, value_first, value_second)
        for under in OPTIONS:
            make = functools.partial(made, function, under)
            assert_together(make, place.args(one), place.args(other))


SIZED = pytest.mark.parametrize(
    "functions",
    [(size_alone, size_first, size_second), (shape_alone, shape_first, shape_second)],
    ids=["size(0)", "shape[0]"],
)
LIKE_TENSORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tensor": lambda tensor: tensor,
    "parameter": torch.nn.Parameter,
    "fake": fake,
    "subclass": lambda tensor: tensor.as_subclass(Tagged),
}


@pytest.mark.parametrize("under", sorted(DYNAMIC))
@pytest.mark.parametrize("kind", LIKE_TENSORS.values(), ids=LIKE_TENSORS)
@SIZED
def test_a_specialized_size_counts_and_no_other(
    functions: Any, kind: Callable[[torch.Tensor], torch.Tensor], under: str
) -> None:
    for place in NARROW:
        four, five, wide = (place.args(kind(zeros(*sizes))) for sizes in ((4, 8), (5, 8), (4, 9)))
        make = functools.partial(made, at(place, *functions), under)
        assert_apart(make, four, five)
        assert_together(make, four, wide)


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
    assert kernel.stats() == (4, 1, 1, 0)


@EVERY_OPTION
@pytest.mark.parametrize("holder", [Point, Pair, lambda a, b: [a, b], lambda a, b: {0: a, 1: b}])
def test_a_specialized_value_inside_an_argument_counts(holder: Any, under: str) -> None:
    def held(x: Any, y: Any) -> Args:
        tzero.specialize(y.x if isinstance(y, Point) else y[0])
        return x, y

    assert_apart(lambda: made(held, under), (T, holder(1, 2)), (T, holder(3, 2)))


def test_what_is_done_with_a_specialized_value_is_not_taken_for_it() -> None:
    def chained(x: Any, n: Any, m: Any) -> Args:
        tzero.specialize(n * 2).__add__(m)
        return x, n, m

    assert_apart(lambda: made(chained, "static"), (T, 1, 5), (T, 2, 5))


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
    assert kernel.stats() == (18, 1, 1, 0)
    assert len({kernel.explain(*args, **kwargs).key for args, kwargs in ways}) == 1
    assert kernel.bind((T,)) is kernel.bind((T, 2, "mean", None))
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
def test_an_object_counts_as_what_it_is_now(
    make: Callable[[], Any],
    change: Callable[[Any], Any],
    apart: frozenset[str],
    under: str,
) -> None:
    for place in PLACES.values():
        kernel, value = made(host(place.width), under), make()
        args = place.args(value)
        call(kernel, args)
        before = kernel.bind(args)
        change(value)
        call(kernel, args)
        assert (kernel.bind(args) is not before) is (under in apart)
        call(kernel, place.args(make()))
        entries = 2 if under in apart else 1
        assert kernel.stats() == (3, entries, entries, 0)


# -- against the slow way -------------------------------------------------------------------------


def held(value: Any) -> list[torch.Tensor]:
    """The tensors in a value, by way of what hypothesis makes and nothing more."""
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
def test_calls_share_a_bound_kernel_exactly_when_their_slow_keys_are_equal(
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
            assert kernel.key(args) == wanted
            assert hash(kernel.key(args)) == hash(wanted)
            call(kernel, args)
            bound = kernel.bind(args)
            assert bounds.setdefault(wanted, bound) is bound
            assert bound.key == wanted
            assert kernel.key(args) == wanted
        assert len(set(bounds.values())) == len(bounds)
        assert kernel.stats() == (2 * len(doubled), len(bounds), len(bounds), 0)
        outcomes.update(slow(calls[0], under) == slow(args, under) for args in doubled[1:])

    check()
    assert outcomes == {True, False}


# -- types that alternate -------------------------------------------------------------------------


@EVERY_PLACE
@EVERY_OPTION
def test_types_that_alternate_at_one_place_never_meet_each_others_entry(
    under: str, place: Place
) -> None:
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
        wanted = made(host(place.width), under).key(args)
        assert wanted == slow(args, under)
        assert kernel.key(args) == wanted
        bound = bounds.setdefault(wanted, kernel.bind(args))
        assert bound.key == wanted
        call(kernel, args)
        assert kernel.bind(args) is bound
    assert kernel.stats() == (200, len(bounds), len(bounds), 0)
    assert len(bounds) > 12


def test_many_patterns_of_types_each_have_their_own_entry() -> None:
    values: list[Any] = [zeros(2), torch.nn.Parameter(zeros(2, 1)), 1, 1.0, None, "a", [1]]
    patterns = list(itertools.product(values, repeat=3))
    kernel = made(host(3), "static")
    for args in (*patterns, *patterns):
        call(kernel, args)
        assert kernel.key(args) == slow(args, "static")
    assert kernel.stats() == (2 * len(patterns), len(patterns), len(patterns), 0)


def test_classes_that_come_and_go_leave_nothing_behind_for_the_next() -> None:
    kernel = made(host(2), "static")
    for k in range(4):
        names = ["a", "b", "c"][: k % 3 + 1]
        new: Any = dataclasses.make_dataclass("New", names) if k % 2 else namedtuple("New", names)
        value = new(*names)
        call(kernel, (T, value))
        assert kernel.key((T, value))[1] == Key.of((value,), Options())[0]
        assert kernel.bind((T, value)) is kernel.bind((T, new(*names)))
        kernel.reset()
        del new, value
        gc.collect()  # so that the next class may take the place of this one


# -- refusals after hits --------------------------------------------------------------------------


class Refusal(NamedTuple):
    """A good call, a bad one much like it, and what the error names."""

    good: Args
    bad: Args
    argument: str | None
    words: str


ELSEWHERE = fake_on("cuda:0", 4, 8)
PARAMETER = torch.nn.Parameter(T)

REFUSED: dict[str, Refusal] = {
    "set": Refusal((T, 1), (T, {1}), "y", "a set"),
    "set first": Refusal((1, T), ({1}, T), "x", "a set"),
    "object": Refusal((T, None), (T, object()), "y", "a object"),
    "set in a list": Refusal((T, [1]), (T, [{1}]), "y", "a set"),
    "set in a dict": Refusal((T, {"a": 1}), (T, {"a": {1}}), "y", "a set"),
    "set in a namedtuple": Refusal((Pair(1, 2), T), (Pair(1, {2}), T), "x", "a set"),
    "set in a dataclass": Refusal((T, Point(1, 2)), (T, Point(1, {2})), "y", "a set"),
    "set in a closure": Refusal((T, closing(1)), (T, closing({1})), "y", "a set"),
    "set as a default": Refusal((T, defaulted(1)), (T, defaulted({1})), "y", "a set"),
    "set as a constant": Refusal((T, ConstExpr(1)), (T, ConstExpr({1})), "y", "a set"),
    "meta": Refusal((T, 1), (META, 1), "x", "meta tensor"),
    "meta after": Refusal((T, T), (T, META), "y", "meta tensor"),
    "meta before": Refusal((T, T), (META, T), "x", "meta tensor"),
    "meta twice": Refusal((T, T), (META, META), "x", "meta tensor"),
    "meta parameter": Refusal((T, PARAMETER), (T, torch.nn.Parameter(META)), "y", "meta tensor"),
    "meta subclass": Refusal(
        (T.as_subclass(Tagged), T), (META.as_subclass(Tagged), T), "x", "meta tensor"
    ),
    "meta fake": Refusal((T, fake(T)), (T, fake(META)), "y", "meta tensor"),
    "meta in a list": Refusal((T, [T]), (T, [META]), "y", "meta tensor"),
    "meta in a list alone": Refusal(([T], 1), ([META], 1), "x", "meta tensor"),
    "meta in a list before": Refusal(([T], T), ([META], T), "x", "meta tensor"),
    "meta after a list": Refusal(([T], T), ([T], META), "y", "meta tensor"),
    "meta besides in a list": Refusal(([T, T], 1), ([T, META], 1), "x", "meta tensor"),
    "meta in a dict": Refusal((T, {"a": T}), (T, {"a": META}), "y", "meta tensor"),
    "meta in a dataclass": Refusal((Point(1, T), T), (Point(1, META), T), "x", "meta tensor"),
    "meta in a closure": Refusal((T, closing(T)), (T, closing(META)), "y", "meta tensor"),
    "two devices": Refusal((T, fake(T)), (T, ELSEWHERE), "y", "is on cuda:0, .* is on cpu"),
    "two devices, fakes": Refusal(
        (fake(T), fake(T)), (fake(T), ELSEWHERE), "y", "is on cuda:0, .* is on cpu"
    ),
    "two devices, fake first": Refusal(
        (fake(T), T), (ELSEWHERE, T), "y", "is on cpu, .* is on cuda:0"
    ),
    "two devices, list first": Refusal(
        ([T], T), ([ELSEWHERE], T), "y", "is on cpu, .* is on cuda:0"
    ),
    "two devices in a list": Refusal(
        ([T, fake(T)], 1), ([T, ELSEWHERE], 1), "x", "is on cuda:0, .* is on cpu"
    ),
    "too many": Refusal((T, T), (T, T, T), None, "too many.* It takes x, y"),
    "too few": Refusal((T, T), (T,), None, "'y'.* It takes x, y"),
    "none": Refusal((T, T), (), None, "'x'.* It takes x, y"),
}


@EVERY_OPTION
@pytest.mark.parametrize("refusal", REFUSED.values(), ids=REFUSED)
def test_a_refusal_after_hits_names_the_argument_and_the_next_good_call_hits(
    refusal: Refusal, under: str
) -> None:
    with pytest.raises(InvalidArgument) as first:
        made(host(2), under)(*refusal.bad)
    kernel = made(host(2), under)
    for _ in range(3):
        call(kernel, refusal.good)
    bound, stats = kernel.bind(refusal.good), kernel.stats()
    ways: list[Callable[[], object]] = [
        lambda: kernel(*refusal.bad),
        lambda: kernel.key(refusal.bad),
        lambda: kernel.bind(refusal.bad),
        lambda: kernel.explain(*refusal.bad),
        lambda: kernel(*refusal.bad),
    ]
    for way in ways:
        with pytest.raises(InvalidArgument, match=f"^pair: .*{refusal.words}") as raised:
            way()
        assert raised.value.kernel == "pair"
        assert raised.value.argument == refusal.argument
        if refusal.argument is not None:
            assert str(raised.value).startswith(f"pair: argument {refusal.argument!r} is")
        assert str(raised.value) == str(first.value)  # the same words as without hits
    call(kernel, refusal.good)
    assert kernel.bind(refusal.good) is bound
    assert kernel.stats() == stats._replace(calls=stats.calls + 1)


@EVERY_OPTION
def test_an_unknown_name_after_hits_is_refused_and_the_next_good_call_hits(under: str) -> None:
    kernel = made(host(2), under)
    kernel(T, y=1)
    for names in ({"w": 1}, {"y": 1, "w": 1}, {"x": T}):
        with pytest.raises(InvalidArgument, match=r"^pair: .* It takes x, y"):
            kernel(T, **names)
    kernel(T, y=1)
    assert kernel.stats() == (2, 1, 1, 0)


@EVERY_OPTION
def test_a_key_that_cannot_be_hashed_after_hits_is_refused_and_the_next_good_call_hits(
    under: str,
) -> None:
    def key(x: Any, y: Any) -> Any:
        return {y} if y > 5 else 0

    kernel = made(host(2), under, key)
    kernel(T, 1)
    with pytest.raises(InvalidArgument, match=r"^pair: its key= function returned a set"):
        kernel(T, 6)
    kernel(T, 2)
    assert kernel.stats() == (2, 1, 1, 0)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_bsr], ids=str)
def test_a_tensor_without_strides_is_refused_by_name_and_the_next_good_call_hits(
    layout: torch.layout,
) -> None:
    blocks = (2, 2) if layout is torch.sparse_bsr else None
    bad = torch.eye(4).to_sparse(layout=layout, blocksize=blocks)
    kernel = made(host(2), "static")
    kernel(T, 1)
    with pytest.raises(InvalidArgument, match=r"^pair: argument 'x' is"):
        kernel(bad, 1)
    kernel(T, 2)
    assert kernel.stats() == (2, 1, 1, 0)


def test_a_function_that_closes_over_itself_is_an_argument_like_others() -> None:
    def recursive(by: int) -> Callable[[int], int]:
        def inner(n: int) -> int:
            return inner(n - by) if n > 0 else n

        return inner

    kernel = made(host(1), "static")
    one = recursive(1)
    assert kernel.bind((one,)) is kernel.bind((one,))
    assert kernel.bind((one,)) is not kernel.bind((recursive(2),))
