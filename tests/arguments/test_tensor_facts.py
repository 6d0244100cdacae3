"""The table of tensor facts is what the code compares: each column is checked against its reader.

For each fact there is a pair of tensors that differ in it. A reader must tell the two apart exactly
if the table says that it compares a fact in which they differ.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TZERO_CPU", "1")

import triton

from tests.launches import kernels
from tzero.adapters import triton_launch
from tzero.adapters.torch_internals import is_zero_tensor
from tzero.arguments.key import Options, part
from tzero.arguments.launch_facts import Reader
from tzero.arguments.scalars import SCALARS
from tzero.arguments.situation import situation
from tzero.arguments.tensor_facts import FACTS, TENSORS
from tzero.plans import wrapper

PLAIN = torch.zeros(4)
SQUARE = torch.zeros(4, 4)
COMPLEX = torch.zeros(4, dtype=torch.complex64)
BYTES = torch.zeros(64, dtype=torch.int8)

PAIRS: dict[str, tuple[torch.Tensor, torch.Tensor]] = {
    "type": (PLAIN, torch.nn.Parameter(PLAIN, requires_grad=False)),
    "dtype": (PLAIN, torch.zeros(4, dtype=torch.int32)),
    "device": (PLAIN, torch.zeros(4, device="meta")),
    "sizes": (PLAIN, torch.zeros(5)),
    "strides": (SQUARE, SQUARE.t()),
    "requires_grad": (PLAIN, torch.zeros(4, requires_grad=True)),
    "conjugate bit": (COMPLEX, COMPLEX.conj()),
    "negative bit": (PLAIN, torch._neg_view(PLAIN)),
    "known to be zero": (PLAIN, torch._efficientzerotensor(4)),
    "address modulo 16": (BYTES[4:8], BYTES[8:12]),
    "address divisible by 16": (BYTES[4:8], BYTES[16:20]),
}


def native_words(x: torch.Tensor) -> Any:
    native = pytest.importorskip("tzero._native")
    from tzero.calls import native as native_plan

    why = native_plan.available()
    if why:
        pytest.skip(f"no native plans here: {why}")
    return native.tensor_words(x)


def launch_facts(x: torch.Tensor) -> Any:
    kernel: Any = triton.jit(kernels.double)
    backend = triton_launch.make_backend(triton.runtime.driver.active.get_current_target())
    reader = Reader("double", triton_launch.parameters(kernel), backend)
    _number_of_the_types, *facts = reader.read(x, 4)[0]
    return facts


READERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "key": lambda x: part(x, Options()),
    "situation": lambda x: situation((x,), ()),
    "words": native_words,
    "held": lambda x: wrapper._held_facts(x),
    "launch": launch_facts,
}


def differing(one: torch.Tensor, other: torch.Tensor) -> set[str]:
    """The facts in which two tensors differ."""
    found = set()
    for fact in FACTS:
        was, now = (
            eval(fact.expression.format(x="x"), {"x": x, "is_zero_tensor": is_zero_tensor})
            for x in (one, other)
        )
        if was != now:
            found.add(fact.name)
    return found


def test_every_fact_has_a_pair_of_tensors_that_differ_in_it() -> None:
    assert list(PAIRS) == [fact.name for fact in FACTS]
    for name, pair in PAIRS.items():
        assert name in differing(*pair)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", PAIRS)
def test_a_reader_compares_what_the_table_says(name: str, reader: str) -> None:
    one, other = PAIRS[name]
    differ = differing(one, other)
    expected = any(reader in fact.readers for fact in FACTS if fact.name in differ)
    read = READERS[reader]
    assert read(one) == read(one)
    assert (read(one) != read(other)) is expected


# -- scalars ---------------------------------------------------------------------------------------

VALUES: dict[type, tuple[Any, Any]] = {
    bool: (True, False),
    int: (2, 3),
    float: (2.0, 3.0),
    complex: (2j, 3j),
    type(None): (None, None),
    str: ("a", "b"),
    bytes: (b"a", b"b"),
    torch.dtype: (torch.int8, torch.int16),
    torch.layout: (torch.strided, torch.sparse_coo),
    torch.memory_format: (torch.contiguous_format, torch.channels_last),
    torch.device: (torch.device("cpu"), torch.device("meta")),
    torch.Size: (torch.Size([2]), torch.Size([2, 2])),
}


def test_every_scalar_type_has_two_values() -> None:
    assert list(VALUES) == list(SCALARS)
    assert not set(SCALARS) & set(TENSORS)


@pytest.mark.parametrize("kind", SCALARS)
def test_keys_and_situations_take_scalars_as_the_table_says(kind: type) -> None:
    one, other = VALUES[kind]
    row = SCALARS[kind]
    assert type(one) is type(other) is kind
    if row.key == "type":
        assert part(one, Options()) == part(other, Options()) == kind
    elif row.key == "value":
        assert (part(one, Options()), part(other, Options())) == (one, other)
    same = kind is type(None)
    assert (situation((one,), {0}) == situation((other,), {0})) is same
    assert (situation((one,), ()) == situation((other,), ())) is (same or row.forward)


@pytest.mark.parametrize("kind", SCALARS)
def test_launches_take_scalars_as_the_table_says(kind: type) -> None:
    kernel: Any = triton.jit(kernels.put)
    backend = triton_launch.make_backend(triton.runtime.driver.active.get_current_target())
    reader = Reader("put", triton_launch.parameters(kernel), backend, addresses=True)
    value = VALUES[kind][0]
    if SCALARS[kind].launch:
        first, none = reader.read(PLAIN, value)
        assert none is None
        assert reader.read(PLAIN, value) == (first, (PLAIN.data_ptr(), value))
    elif kind is torch.Size:  # Triton describes it, as any tuple
        assert reader.read(PLAIN, value) == reader.read(PLAIN, value)
        assert reader.read(PLAIN, value)[1] is None
    else:
        with pytest.raises(TypeError, match="failed to specialize"):
            reader.read(PLAIN, value)


def test_a_plan_is_for_one_device_also_where_keys_have_only_its_type() -> None:
    on_cpu, on_meta = torch.empty(4), torch.empty(4, device="meta")
    assert on_cpu.data_ptr() % 16 == on_meta.data_ptr() % 16 == 0
    one, other = (situation((each,), (), exact=True) for each in (on_cpu, on_meta))
    assert one != other
