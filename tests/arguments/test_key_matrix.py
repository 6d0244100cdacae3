"""Every fact of the arguments, changed alone, in whole calls: calls that need different code reach
different bound kernels, and calls that need the same code reach the same one, at any position among
the arguments, on any device.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.arguments.key_cases import (
    ALL,
    DYNAMIC,
    EVERY_OPTION,
    NEVER,
    ONE_ARGUMENT,
    OPTIONS,
    PLACES,
    STATIC,
    Args,
    Bits,
    Mode,
    Other,
    Pair,
    Point,
    Spot,
    T,
    Tagged,
    U,
    assert_apart,
    assert_together,
    call,
    closing,
    closing_elsewhere,
    cut,
    defaulted,
    defaulted_by_name,
    fake,
    fake_on,
    host,
    made,
    marked,
    plain,
    zeros,
)
from tzero import ConstExpr, Kernel
from tzero.errors import InvalidArgument

pytestmark = ONE_ARGUMENT


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
    "size marked static from the end": Row(marked(zeros(8, 4), -1), marked(zeros(8, 5), -1)),
    "dim marked from either end": Row(marked(zeros(4, 8), -1), marked(zeros(4, 8), 1), NEVER),
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
    "flags without a name": Row(Bits(8), Bits(16)),
    "equal flags": Row(Bits(8), Bits(8), NEVER),
    "type": Row(int, float),
    "type with a type of its own": Row(Mode, Bits),
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
    "number in a tuple in a closure": Row(closing((1,)), closing((2,))),
    "number in a dict in a closure": Row(closing({"a": [1]}), closing({"a": [2]})),
    "string in a closure": Row(closing("a"), closing("b")),
    "tensor in a closure": Row(closing(zeros(2)), closing(zeros(2).double())),
    "size in a closure": Row(closing(zeros(2)), closing(zeros(3)), STATIC),
    "function in a closure": Row(closing(closing(1)), closing(closing(2))),
    "function default": Row(defaulted(1), defaulted(2)),
    "type of a function default": Row(defaulted(1), defaulted(1.0)),
    "function default by name": Row(defaulted_by_name(1), defaulted_by_name(2)),
    "number in a default": Row(defaulted([1]), defaulted([2])),
    "tensor as a default": Row(defaulted(zeros(2)), defaulted(zeros(2).double())),
    "like tensors as defaults": Row(defaulted(zeros(2)), defaulted(torch.ones(2)), NEVER),
    "builtin function": Row(len, abs),
    "builtin method": Row(T.add, T.mul),
    "builtin method of another tensor": Row(T.add, zeros(2).double().add),
    "builtin methods of like tensors": Row(zeros(2).add, torch.ones(2).add, NEVER),
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
def test_a_change_that_needs_other_code_gives_another_key(row: Row, under: str) -> None:
    for place in PLACES.values():
        one, other = place.args(row.one), place.args(row.other)
        fresh = made(host(place.width), under)
        assert fresh.key(*one) != fresh.key(*other)
        assert_apart(plain(place, under), one, other)


@cells(apart=False)
def test_a_change_that_needs_no_other_code_gives_the_same_key(row: Row, under: str) -> None:
    for place in PLACES.values():
        one, other = place.args(row.one), place.args(row.other)
        fresh = made(host(place.width), under)
        assert fresh.key(*one) == fresh.key(*other)
        assert_together(plain(place, under), one, other)


@cells(apart=True)
def test_changes_at_two_places_make_four_keys(row: Row, under: str) -> None:
    kernel = made(host(2), under)
    squares = list(itertools.product((row.one, row.other), repeat=2))
    for args in (*squares, *reversed(squares)):
        call(kernel, args)
    assert len({kernel.key(*args) for args in squares}) == 4
    assert kernel.stats()[:4] == (8, 4, 4, 0)


def test_with_index_dtype_the_key_ignores_the_size_of_tensors() -> None:
    asking, given_ = (made(host(1), name) for name in ("dynamic", "dynamic, width given"))
    small, large = zeros(1).expand(4), zeros(1).expand(BIG + 8)
    assert given_.bind(small) is given_.bind(large)
    assert asking.bind(small) is not asking.bind(large)
    assert given_.key(small) not in (asking.key(small), asking.key(large))


@cells(apart=True)
def test_a_key_function_only_adds_to_the_key_and_runs_once_a_call(row: Row, under: str) -> None:
    asked: list[Args] = []

    def key(*args: Any) -> str:
        asked.append(args)
        return "one for all"

    kernel = made(host(2), under, key)
    calls = [(T, row.one), (T, row.other)]
    for args in (*calls, *calls):
        call(kernel, args)
    assert kernel.stats()[:4] == (4, 2, 2, 0)
    assert len(asked) == 4  # once a call, however the rest of the key was made


def test_a_function_that_closes_over_itself_is_an_argument_like_others() -> None:
    def recursive(by: int) -> Callable[[int], int]:
        def inner(n: int) -> int:
            return inner(n - by) if n > 0 else n

        return inner

    kernel = made(host(1), "static")
    one = recursive(1)
    assert kernel.bind(one) is kernel.bind(one)
    assert kernel.bind(one) is not kernel.bind(recursive(2))


def test_functions_that_close_over_each_other_are_arguments_like_others() -> None:
    def mutual(by: int) -> Callable[[int], int]:
        def one(n: int) -> int:
            return other(n - by) if n > 0 else n

        def other(n: int) -> int:
            return one(n - by) if n > 0 else n

        return one

    kernel = made(host(2), "static")
    assert kernel.bind(T, mutual(1)) is kernel.bind(T, mutual(1))
    assert kernel.bind(T, mutual(1)) is not kernel.bind(T, mutual(2))


def test_classes_of_dataclasses_are_arguments_like_others() -> None:
    kernel = made(host(1), "static")
    assert kernel.bind([Point]) is kernel.bind([Point])
    assert kernel.bind([Point]) is not kernel.bind([Spot])


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
def test_devices_count_by_type_and_capability(
    args: Callable[[Any], Args], under: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.is_available() and torch.cuda.device_count() < 3:
        pytest.skip("where there is CUDA, even fake tensors are on devices that are there")
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
    bound = kernel.bind(zeros(2, 3), zeros(2, 3))
    with FakeTensorMode():
        numbered = torch.empty(2, 3, device="cpu:0")
    assert kernel.bind(numbered, numbered) is bound
    assert kernel.bind(zeros(2, 3), numbered) is bound
    assert kernel.bind(numbered, zeros(2, 3)) is bound


def test_a_sparse_tensor_is_never_taken_for_a_dense_one() -> None:
    kernel = made(host(1), "static")
    dense = zeros(1, 1).expand(3, 3)
    kernel(dense)
    try:
        key = kernel.key(torch.eye(3).to_sparse())
    except InvalidArgument as error:
        assert error.argument == "x"
    else:
        assert key != kernel.key(dense)
