"""Results are compared with those of the reference; a difference is reported with its place."""

from __future__ import annotations

import enum
import math
from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tzero.tune import closeness, compare
from tzero.tune.compare import parts, same

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Frozen:
    weight: torch.Tensor
    name: str = "w"


@pytest.mark.parametrize(
    ("mine", "other", "words"),
    [
        (torch.ones(2), torch.ones(3), "result has shape (2,), and the reference (3,)"),
        (torch.ones(2), torch.ones(2).half(), "result has dtype torch.float32"),
        (torch.ones(2), torch.ones(2, device="meta"), "result has device cpu"),
        (torch.ones(2), None, "result is of type Tensor, and the reference NoneType"),
        ([torch.ones(2)], [torch.ones(2)] * 2, "result has 1 items, and the reference 2"),
        ({"a": 1}, {"b": 1}, "result has the keys ['a'], and the reference ['b']"),
        ({"a": [1, 2]}, {"a": [1, 3]}, "result['a'][1] is 2, and the reference 3"),
        (Pair(1, 2.0), Pair(1, 2.1), "result[1] is 2.0, and the reference 2.1"),
        (Frozen(torch.zeros(1)), Frozen(torch.ones(1)), "result.weight is 0.0 at (0,)"),
        (1, True, "result is of type int, and the reference bool"),
        (
            torch.tensor([[1, 2], [3, 5]]),
            torch.tensor([[1, 2], [3, 4]]),
            "result is 5 at (1, 1), and the reference 4; 1 of 4 elements differ",
        ),
        (torch.tensor(3), torch.tensor(4), "result is 3 at (), and the reference 4; 1 of 1"),
        (torch.tensor([math.nan]), torch.tensor([0.0]), "result is nan at (0,)"),
        (torch.tensor([math.inf]), torch.tensor([-math.inf]), "result is inf at (0,)"),
        (torch.tensor([math.inf, 1]), torch.tensor([1e38, 1]), "result is inf at (0,)"),
        (torch.tensor([2**40 + 1]), torch.tensor([2**40]), "result is 1099511627777 at (0,)"),
        (torch.tensor([1 + 1j]), torch.tensor([1 - 1j]), "result is (1+1j) at (0,)"),
    ],
)
def test_a_difference_is_reported_with_its_place(mine: Any, other: Any, words: str) -> None:
    found = same(mine, other)
    assert not found
    assert found.words.startswith(words)


NUMBERS = [*compare.TOLERANCES, torch.int8, torch.uint16, torch.uint32, torch.uint64, torch.bool]


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_every_dtype_is_equal_to_itself_and_not_to_another_value(dtype: torch.dtype) -> None:
    one = torch.tensor([0, 1, 1, 0]).to(dtype)
    two = torch.tensor([0, 1, 0, 0]).to(dtype)
    assert same(one, one.clone())
    assert "at (2,)" in same(one, two).words
    assert "1 of 4 elements" in same(one, two).words


def test_nan_and_infinities_are_equal_to_themselves() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e5m2, torch.complex64):
        x = torch.tensor([math.nan, math.inf, -math.inf, 1.0]).to(dtype)
        assert same(x, x.clone())
    assert same(math.nan, math.nan)


def test_layout_does_not_count() -> None:
    x = torch.randn(3, 4)
    assert same(x.t().contiguous().t(), x)


def test_another_order_of_summation_is_right() -> None:
    source = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 4096, generator=source) for _ in range(2))
    whole = a @ b.t()
    parts = sum(a[:, k : k + 32] @ b[:, k : k + 32].t() for k in range(0, 4096, 32))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert same(parts.to(dtype), whole.to(dtype))


def test_a_sum_that_skips_elements_is_wrong() -> None:
    source = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 4096, generator=source) for _ in range(2))
    whole, short = a @ b.t(), a[:, :-16] @ b[:, :-16].t()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert not same(short.to(dtype), whole.to(dtype))


def test_a_tolerance_can_be_given() -> None:
    one, two = torch.tensor([1.0]), torch.tensor([1.05])
    assert not same(one, two)
    assert same(one, two, tolerance=0.1)
    assert not same(one, one + 1e-6, tolerance=0.0)


def test_many_elements_are_compared_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closeness, "_CHUNK", 7)
    x = torch.arange(100.0).reshape(10, 10)
    y = x.clone()
    y[9, 3] = -1
    assert same(x.clone(), x)
    assert same(y, x).words.startswith("result is -1.0 at (9, 3), and the reference 93.0")


class Opaque:
    """Compares by identity."""


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


def test_objects_that_compare_by_identity_count_as_equal() -> None:
    assert same(Opaque(), Opaque())
    assert not same(Kind.ONE, Kind.TWO)
    assert not same(torch.float32, torch.float16)


def test_arrays_are_compared_as_tensors_are() -> None:
    one = np.array([1.0, 2.0], dtype=np.float32)
    assert same([one], [one + np.float32(1e-5)])
    assert "1 of 2 elements differ" in same(one, np.array([1.0, 3.0], dtype=np.float32)).words


@pytest.mark.filterwarnings("error")
def test_arrays_that_torch_cannot_view_are_compared() -> None:
    backwards = np.arange(3.0)[::-1]
    fixed = np.arange(3.0)
    fixed.flags.writeable = False
    dates = np.array(["2020-01-01", "2021-01-01"], dtype="datetime64[D]")
    for array in (backwards, fixed, dates, np.array(["a", "b"]), dates[0]):
        assert same([array], [np.array(array)[()] if array.ndim == 0 else array.copy()])
    assert not same(backwards, np.arange(3.0))
    assert not same(np.array(["a"]), np.array(["b"]))
    assert not same(dates, dates + 1)


def test_gradients_and_numbers_in_namespaces_count() -> None:
    assert "requires_grad" in same(torch.ones(1), torch.ones(1, requires_grad=True)).words
    assert not same(SimpleNamespace(n=1), SimpleNamespace(n=2))


class Unnamed:
    def __repr__(self) -> str:
        return "key"


def test_parts_of_one_name_are_told_apart() -> None:
    both = {Unnamed(): torch.ones(1), Unnamed(): torch.ones(2)}
    assert sorted(map(len, parts(both).values())) == [1, 2]


def test_one_outlier_does_not_hide_errors_in_other_elements() -> None:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(100_000, generator=source)
    x[7] = 1e9
    zeros = torch.zeros_like(x)
    zeros[7] = 1e9
    assert not same(zeros, x)
    assert not same(torch.where(torch.arange(100_000) == 50, x + 0.01, x), x)


@pytest.mark.parametrize("masked", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("fill", [-1e9, 0.0, math.nan, -math.inf])
def test_a_mask_does_not_hide_errors_in_other_elements(masked: float, fill: float) -> None:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(100_000, generator=source)
    hidden = torch.rand(100_000, generator=source) < masked
    right = torch.where(hidden, fill, x)
    assert same(torch.where(hidden, fill, x + 1e-6 * x.flip(0)), right)
    assert not same(torch.where(hidden, fill, x.flip(0)), right)
    assert not same(torch.where(hidden, fill, x + 0.001), right)


def test_many_elements_are_sampled_for_their_scale() -> None:
    x = torch.ones(1 << 20)
    x[::2] = 3.0
    x[5] = 1e9
    off = x.clone()
    off[1 << 19] += 0.01
    assert same(x * (1 + 1e-6), x)
    assert f"at ({1 << 19},)" in same(off, x).words


def test_a_complex_number_is_compared_by_its_distance() -> None:
    x = torch.tensor([1e6 + 1e-3j, 2e6 + 1j])
    assert same(x + torch.tensor([0.1 + 1j, 1j]), x)
    assert not same(x + 1000j, x)
    part = torch.tensor([complex(math.inf, 1.0), complex(math.nan, 1.0)])
    assert same(part.clone(), part)
    assert "at (1,)" in same(torch.tensor([part[0], complex(math.nan, 2.0)]), part).words


def test_what_is_repeated_without_memory_is_compared_once() -> None:
    many = 1 << 40
    assert same(torch.ones(3, 1).expand(3, many), torch.ones(3, 1).expand(3, many))


def test_sparse_tensors_are_compared_by_their_parts() -> None:
    x = torch.eye(3)
    off = x.clone()
    off[1, 1] = 2
    for sparse in (torch.Tensor.to_sparse, torch.Tensor.to_sparse_csc):
        assert same(sparse(x), sparse(x))
        assert same(sparse(off), sparse(x)).words.startswith("result.values() is 2.0 at (1,)")
    assert "layout" in same(x.to_sparse(), x).words


def test_classes_and_numbers_of_numpy_can_be_results() -> None:
    assert same([Frozen, np.float64(2.0)], [Frozen, np.float64(2.0)])
    assert same(np.float64(2.0), np.float64(2.5)).words.endswith(
        "and the reference np.float64(2.5)"
    )


def test_a_few_small_elements_among_large_ones_are_compared_by_their_own_scale() -> None:
    source = torch.Generator().manual_seed(0)
    x = 1e9 * (1 + torch.rand(100_000, generator=source))
    x[::200] = 1 + torch.rand(500, generator=source)
    y = x.clone()
    y[::200] = 0
    assert "500 of 100000 elements differ" in same(y, x).words
