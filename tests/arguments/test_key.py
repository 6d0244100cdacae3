"""Two calls that need different code never share a key, and two that need the same always do."""

from __future__ import annotations

import enum
import functools
import gc
import os
import re
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from tests import warm
from tests.arguments.key_cases import Other, Pair, Point, Spot
from tzero.arguments.key import Key, Options, UnsupportedType, constant, difference, part, text

ROOT = Path(__file__).parents[2]
STATIC, DYNAMIC = Options(), Options(static_shapes=False)
BOTH = pytest.mark.parametrize("options", [STATIC, DYNAMIC], ids=["static", "dynamic"])


class Mode(enum.Enum):
    SUM = 1
    MEAN = 2


class Bits(enum.IntFlag):
    ONE = 1


class Open(enum.Flag, boundary=enum.KEEP):
    ONE = 1


class Odd(enum.Enum):
    SUM = {1}  # noqa: RUF012
    MEAN = {2}  # noqa: RUF012


def adder(by: Any) -> Callable[[int], int]:
    def add(x: int) -> int:
        return x + by  # type: ignore[no-any-return]

    return add


def defaulted(by: Any) -> Callable[[int], int]:
    def add(x: int, by: Any = by) -> int:
        return x + by  # type: ignore[no-any-return]

    return add


def zeros(*sizes: int, **options: Any) -> torch.Tensor:
    return torch.zeros(*sizes, **options)


DIFFERENT: dict[str, tuple[Any, Any]] = {
    "dtype": (zeros(2, 3), zeros(2, 3, dtype=torch.float16)),
    "rank": (zeros(6), zeros(2, 3)),
    "size one": (zeros(1, 3), zeros(2, 3)),
    "size zero": (zeros(0, 3), zeros(2, 3)),
    "broadcast": (zeros(4, 4), zeros(4, 1).expand(4, 4)),
    "transposed": (zeros(4, 4), zeros(4, 4).t()),
    "int and float": (1, 1.0),
    "int and bool": (1, True),
    "float and complex": (1.0, 1j),
    "number and None": (1, None),
    "strings": ("sum", "mean"),
    "string and bytes": ("a", b"a"),
    "dtypes": (torch.int32, torch.int64),
    "devices": (torch.device("cpu"), torch.device("meta")),
    "list and tuple": ([1], (1,)),
    "lengths": ([1], [1, 1]),
    "nesting": ([1, [2]], [[1], 2]),
    "dict names": ({"a": 1}, {"b": 1}),
    "dict name types": ({1: 1}, {True: 1}),
    "dict order": ({"a": 1, "b": 2.0}, {"b": 2.0, "a": 1}),
    "dict values": ({"a": 1}, {"a": 1.0}),
    "named tuple and tuple": (Pair(1, 2), (1, 2)),
    "named tuples": (Pair(1, 2), Other(1, 2)),
    "dataclasses": (Point(1, 2), Spot(1, 2)),
    "dataclass fields": (Point(1, 2), Point(1, 2.0)),
    "enums": (Mode.SUM, Mode.MEAN),
    "functions": (adder, defaulted),
    "closed-over numbers": (adder(1), adder(2)),
    "closed-over number types": (adder(1), adder(1.0)),
    "closed-over signs of zero": (adder(0.0), adder(-0.0)),
    "closed-over numbers in a tuple": (adder((1,)), adder((2,))),
    "closed-over numbers in a list in a dict": (adder({"a": [1]}), adder({"a": [2]})),
    "closed-over numbers in a dataclass": (adder(Point(1, 2)), adder(Point(1, 3))),
    "closed-over numbers of a function": (adder(adder((1,))), adder(adder((2,)))),
    "default numbers in a list": (defaulted([1]), defaulted([2])),
    "default tensors": (defaulted(zeros(2)), defaulted(zeros(2, 1))),
    "closed-over tensors": (adder(zeros(2)), adder(zeros(2, dtype=torch.int8))),
    "defaults": (defaulted(1), defaulted(True)),
    "bound methods": (Point(1, 2).__eq__, Point(1, 2).__eq__),
    "types": (int, float),
    "types of types": (Mode, torch.Tensor),
    "flags without a name": (Bits(8), Bits(16)),
    "flags and none": (Bits(0), Bits(16)),
    "open flags": (Open(8), Open(16)),
    "flags and numbers": (Bits(1), 1),
    "enums of sets": (Odd.SUM, Odd.MEAN),
    "builtin methods": (zeros(2).add, zeros(2).mul),
    "builtin methods of unlike tensors": (zeros(2).add, zeros(2, 1).add),
    "builtin methods of numbers": ((1).bit_length, (2).bit_length),
    "builtin methods of lists": ([1].append, [2].append),
    "builtin functions": (len, abs),
}
STATIC_ONLY: dict[str, tuple[Any, Any]] = {
    "size": (zeros(2, 3), zeros(2, 4)),
    "stride": (zeros(8, 8)[:, :4], zeros(8, 4)),
    "size inside a list": ([zeros(2)], [zeros(3)]),
}
SAME: dict[str, tuple[Any, Any]] = {
    "values of a tensor": (zeros(2, 3), zeros(2, 3) + 1),
    "parameter": (zeros(2, 3), torch.nn.Parameter(zeros(2, 3))),
    "requires grad": (zeros(2, 3), zeros(2, 3, requires_grad=True)),
    "offset of a view": (zeros(4, 3)[1:3], zeros(2, 3)),
    "integers": (1, 10**30),
    "floats": (1.0, float("nan")),
    "booleans": (True, False),
    "lists of numbers": ([1, 2.0], [3, 4.0]),
    "dict values": ({"a": 1}, {"a": 2}),
    "size": (torch.Size([1, 2]), (3, 4)),
    "dataclasses": (Point(1, "a"), Point(2, "a")),
    "closures over equal values": (adder(5), adder(5)),
    "closures over like tensors": (adder(zeros(2)), adder(zeros(2))),
    "NaN closed over": (adder(float("nan")), adder(float("nan"))),
    "defaults that are like tensors": (defaulted(zeros(2)), defaulted(zeros(2) + 1)),
    "builtin methods of like tensors": (zeros(2).add, (zeros(2) + 1).add),
    "methods of like tensors": (zeros(2).unique, (zeros(2) + 1).unique),
    "flags": (Bits(8), Bits(8)),
    "cpu with an index": (torch.device("cpu"), torch.device("cpu", 0)),
}
DYNAMIC_ONLY: dict[str, tuple[Any, Any]] = {
    "sizes above one": (zeros(2, 3), zeros(5, 7)),
    "strides above one": (zeros(8, 8)[:, :4], zeros(8, 4)),
}


def cases(table: dict[str, tuple[Any, Any]]) -> Any:
    return pytest.mark.parametrize(("one", "other"), table.values(), ids=table)


@BOTH
@cases(DIFFERENT)
def test_values_that_need_different_code_have_different_keys(
    one: Any, other: Any, options: Options
) -> None:
    assert part(one, options) != part(other, options)


@cases(STATIC_ONLY)
def test_static_shapes_count_every_size_and_stride(one: Any, other: Any) -> None:
    assert part(one, STATIC) != part(other, STATIC)


@BOTH
@cases(SAME)
def test_values_that_need_the_same_code_have_the_same_key(
    one: Any, other: Any, options: Options
) -> None:
    assert part(one, options) == part(other, options)
    assert hash(part(one, options)) == hash(part(other, options))


@cases(DYNAMIC_ONLY)
def test_dynamic_shapes_count_as_0_1_or_more(one: Any, other: Any) -> None:
    assert part(one, DYNAMIC) == part(other, DYNAMIC)
    assert hash(part(one, DYNAMIC)) == hash(part(other, DYNAMIC))


def test_a_dimension_marked_static_counts_in_full() -> None:
    marked = []
    for size in (4, 5):
        tensor = zeros(size, 8)
        torch._dynamo.mark_static(tensor, 0)
        marked.append(tensor)
    assert part(marked[0], DYNAMIC) != part(marked[1], DYNAMIC)
    assert part(marked[0], DYNAMIC) != part(zeros(4, 8), DYNAMIC)


def test_a_dimension_may_be_marked_from_the_end() -> None:
    marked = []
    for size, dim in ((8, -1), (9, -1), (8, 1)):
        tensor = zeros(4, size)
        torch._dynamo.mark_static(tensor, dim)
        marked.append(part(tensor, DYNAMIC))
    assert marked[0] != marked[1]
    assert marked[0] == marked[2]


def test_tensors_beyond_32_bit_indices_have_another_key_unless_the_width_is_given() -> None:
    small = zeros(1, device="meta").expand(2**31 - 1)
    large = zeros(1, device="meta").expand(2**31)
    assert part(small, DYNAMIC) != part(large, DYNAMIC)
    given_ = Options(static_shapes=False, index_dtype=torch.int64)
    assert part(small, given_) == part(large, given_)


# -- symbols --------------------------------------------------------------------------------------

LAYOUTS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 40)), min_size=0, max_size=4
)  # (size, stride) per dimension


@BOTH
@given(layout=LAYOUTS, dtype=st.sampled_from([torch.float32, torch.int8]))
def test_a_fake_tensor_has_the_key_of_the_real_one(
    layout: list[tuple[int, int]], dtype: torch.dtype, options: Options
) -> None:
    sizes, strides = [s for s, _ in layout], [t for _, t in layout]
    real = torch.zeros(1000, dtype=dtype).as_strided(sizes, strides)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(real)
    assert type(fake) is FakeTensor
    assert part(fake, options) == part(real, options)
    assert hash(part(fake, options)) == hash(part(real, options))


def symbolic(environment: ShapeEnv, *sizes: int) -> torch.Tensor:
    mode = FakeTensorMode(shape_env=environment)
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * len(sizes))
    return mode.from_tensor(zeros(*sizes), symbolic_context=context)


@BOTH
def test_symbols_count_by_their_environment_and_expression(options: Options) -> None:
    one, two = ShapeEnv(), ShapeEnv()
    a, b, other = symbolic(one, 5, 7), symbolic(one, 9, 11), symbolic(two, 5, 7)
    assert part(a, options) == part(a.clone(), options)
    assert part(a, options) != part(b, options)
    assert part(a, options) != part(other, options)
    assert part(a, options) != part(zeros(5, 7), options)


def test_a_symbol_whose_value_is_known_is_that_number() -> None:
    environment = ShapeEnv()
    tensor = symbolic(environment, 5, 7)
    assert tensor.size(0) == 5  # comparing fixes the value
    assert tensor.size(1) == 7
    assert part(tensor, STATIC) == part(zeros(5, 7), STATIC)


# -- constants ------------------------------------------------------------------------------------

ZERO = zeros(1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (1.0, 1 + 0j),
        (0j, complex(0, -0.0)),
        ("1", 1),
        ([1], (1,)),
        ((1, 2), (1, 2.0)),
        ({"a": 1}, {"a": True}),
        (None, False),
        (torch.zeros(1), torch.zeros(1)),
        (Bits(8), Bits(16)),
        (Bits(1), 1),
        (ZERO.add, ZERO.mul),
        (ZERO.add, zeros(1).add),
        (Point(1, 2).__eq__, Point(1, 2).__eq__),
    ],
    ids=lambda value: re.sub(" at 0x.*", "", repr(value)),
)
def test_constants_that_compare_equal_are_told_apart(one: Any, other: Any) -> None:
    assert constant(one) != constant(other)


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.tuples(inner, inner)),
        max_leaves=6,
    )
)
def test_a_constant_is_equal_to_its_copy(value: Any) -> None:
    copied = eval(repr(value), {"nan": float("nan"), "inf": float("inf")})
    assert constant(value) == constant(copied)
    assert hash(constant(value)) == hash(constant(copied))


def test_a_constant_must_not_change() -> None:
    with pytest.raises(UnsupportedType):
        constant({1, 2})


# -- the key as a whole ---------------------------------------------------------------------------


def test_a_key_is_found_by_the_plain_tuple_of_its_parts() -> None:
    values = (zeros(2), 1, "a")
    table = {Key.of(values, STATIC): "entry"}
    assert table[tuple(part(v, STATIC) for v in values)] == "entry"  # type: ignore[index]


@pytest.mark.parametrize("value", [iter([]), {1}, object(), functools.partial(print), lambda: 0])
def test_other_types_are_refused_and_functions_are_not(value: Any) -> None:
    if callable(value) and not isinstance(value, functools.partial):
        part(value, STATIC)
        return
    with pytest.raises(UnsupportedType, match=type(value).__name__):
        part([value], STATIC)


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (zeros(2), zeros(3), "argument 'x' has sizes (3,), not (2,)"),
        (zeros(2), zeros(2).half(), "argument 'x' has dtype torch.float16, not torch.float32"),
        (zeros(4, 4), zeros(4, 4).t(), "argument 'x' has strides (1, 4), not (4, 1)"),
        (1, 1.0, "argument 'x' is float, not int"),
        ("sum", "mean", "argument 'x' is 'mean', not 'sum'"),
        (zeros(2), None, "argument 'x' is None, not (torch.float32, (2,), (1,))"),
    ],
)
def test_the_first_difference_is_described(one: Any, other: Any, words: str) -> None:
    keys = [Key.of((0, value, 0), STATIC) for value in (one, other)]
    assert difference(keys[0], keys[1], ["n", "x", "m"]) == words
    assert difference(keys[0], keys[0], ["n", "x", "m"]) == ""


@cases({**DIFFERENT, **STATIC_ONLY})
def test_keys_that_differ_are_explained(one: Any, other: Any) -> None:
    assert difference(Key.of((one,), STATIC), Key.of((other,), STATIC), ["x"])


def test_the_text_of_a_key_has_no_addresses() -> None:
    values = (zeros(2), 1, adder(3), Point(1, "a"), Mode.SUM, int, print, {"a": [1]})
    shown = [text(part(value, STATIC)) for value in values]
    assert shown == [text(part(value, STATIC)) for value in values]
    assert not any(" at 0x" in each for each in shown)


def two_of_one_name() -> list[Any]:
    made = []
    for k in range(2):
        if k:

            def inner() -> Any:
                return {"a", "b", "c"} & {1}

        else:

            def inner() -> Any:
                return lambda: 2

        made.append(inner)
    return made


def test_functions_with_other_code_have_other_text() -> None:
    one, other = (text(part(function, STATIC)) for function in two_of_one_name())
    assert one != other
    assert text(part(int, STATIC)) != text(part(float, STATIC))


def texts() -> list[str]:
    functions = (*two_of_one_name(), adder({"b": 1}), Odd, len)
    return [text(part(each, STATIC)) for each in functions]


def test_the_text_of_a_key_is_the_same_in_every_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from tests.arguments import test_key; print(test_key.texts())"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONHASHSEED": warm.other_hash_seed(), "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == f"{texts()}\n"


class Silent:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_a_difference_is_described_even_if_repr_raises() -> None:
    silent, hashed = Silent(), (Silent, Silent())
    assert "argument 'x' is another" in difference((constant(silent),), (constant(Silent()),), "x")
    words = difference((hashed,), ((int, 1),), "x")
    assert "Silent, whose repr raises RuntimeError" in words


# -- what a key keeps alive -----------------------------------------------------------------------


class Holder:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def method(self) -> torch.Tensor:
        return self.tensor


HOLDING: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda tensor: part(tensor, STATIC),
    "default": lambda tensor: part(lambda y, t=tensor: y, STATIC),
    "default by name": lambda tensor: part(lambda *, t=tensor: t, STATIC),
    "closure": lambda tensor: part(lambda: tensor, STATIC),
    "builtin method": lambda tensor: part(tensor.add, STATIC),
    "method of a tensor": lambda tensor: part(tensor.unique, STATIC),
    "method": lambda tensor: part(Holder(tensor).method, STATIC),
    "builtin method of a list": lambda tensor: part([tensor].append, STATIC),
    "constant": lambda tensor: constant(tensor),
    "constants": lambda tensor: constant([tensor, {"a": (tensor,)}]),
    "constant object": lambda tensor: constant(Holder(tensor)),
    "constant method": lambda tensor: constant(Holder(tensor).method),
    "constant builtin method": lambda tensor: constant(tensor.add),
    "constant function": lambda tensor: constant(lambda t=tensor: t),
    "constant partial": lambda tensor: constant(functools.partial(print, tensor)),
    "constant module": lambda tensor: constant(torch.nn.ParameterList([tensor])),
}


@pytest.mark.parametrize("made", HOLDING.values(), ids=HOLDING)
def test_a_key_keeps_no_tensor_alive(made: Callable[[torch.Tensor], Any]) -> None:
    tensor = zeros(3)
    gone = weakref.ref(tensor)
    kept = made(tensor)
    del tensor
    gc.collect()
    assert gone() is None
    hash(kept)
    assert kept == kept and text(kept)


def test_an_object_that_is_gone_equals_nothing() -> None:
    one, other = (constant(zeros(1)) for _ in range(2))
    assert one == one and one != other and other != constant(None)
    assert one != constant(ZERO) and len({one, other, constant(ZERO)}) == 3
