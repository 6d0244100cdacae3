"""Fresh memory is filled with a pattern, however it is allocated, and nothing else is changed."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tzero.tune.fresh import PATTERNS, Filling, holding

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
    torch.complex64,
    torch.complex128,
    torch.int8,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint64,
    torch.bool,
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_holds_one_pattern_and_then_the_other(dtype: torch.dtype, device: str) -> None:
    for pattern in PATTERNS:
        with Filling(pattern):
            x = torch.empty(33, dtype=dtype, device=device)
        assert holding(x, pattern).tolist() == [True] * 33
        for other in {*PATTERNS[:2]} - {pattern} if pattern in PATTERNS[:2] else ():
            assert holding(x, other).tolist() == [False] * 33


WAYS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "empty": lambda x: torch.empty(x.shape, device=x.device),
    "empty_like": torch.empty_like,
    "empty_strided": lambda x: torch.empty_strided((2, 3), (8, 2), device=x.device),
    "empty_permuted": lambda x: torch.empty_permuted((2, 3), (1, 0), device=x.device),
    "new_empty": lambda x: x.new_empty(5),
    "new_empty_strided": lambda x: x.new_empty_strided((2, 3), (1, 2)),
    "resize_": lambda x: torch.empty(0, device=x.device).resize_(7),
    "resize_as_": lambda x: torch.empty(0, device=x.device).resize_as_(x),
    "new": lambda x: x.new(4),
    "out": lambda x: torch.empty(5, out=torch.empty(0, device=x.device), device=x.device),
    "Parameter": lambda x: torch.nn.Parameter(torch.empty_like(x)),
    "requires_grad": lambda x: torch.empty(3, device=x.device, requires_grad=True),
    "inference": lambda x: torch.inference_mode()(torch.empty_like)(x),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", WAYS)
def test_every_way_to_allocate_is_filled(name: str, device: str) -> None:
    for pattern in PATTERNS:
        with Filling(pattern):
            found = WAYS[name](torch.ones(6, device=device))
        assert found.numel() and bool(holding(found, pattern).all())
        if name not in ("resize_", "resize_as_", "out", "inference"):
            assert found._version == 0


def test_a_tensor_that_grows_keeps_its_elements() -> None:
    x = torch.arange(3.0)
    with Filling(PATTERNS[0]):
        x.resize_(5).resize_(2).resize_(4)
    assert x[:3].tolist() == [0, 1, 2] and math.isnan(x[3])


def test_what_is_written_is_not_filled() -> None:
    with Filling(PATTERNS[0]):
        made = [torch.zeros(3), torch.ones(3).clone(), torch.arange(3.0) + 1, torch.full((3,), 2.0)]
    assert not any(bool(each.isnan().any()) for each in made)


def test_tensors_without_memory_of_their_own_can_be_made() -> None:
    class Labelled(torch.Tensor):
        pass

    with Filling(PATTERNS[0]):
        assert torch.empty((2, 2), layout=torch.sparse_coo).layout is torch.sparse_coo
        assert torch.empty_like(torch.eye(2).to_sparse()).layout is torch.sparse_coo
        assert type(torch.empty_like(torch.ones(2).as_subclass(Labelled))) is Labelled
        assert torch.empty(3, device="meta").shape == (3,)
        assert torch.empty(0, 3).shape == (0, 3)


def test_higher_order_operators_run() -> None:
    def choose(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    with Filling(PATTERNS[0]):
        assert choose(torch.ones(2)).tolist() == [2, 2]


@torch.library.custom_op("tzero_tests::half_written", mutates_args=())
def half_written(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    out[: x.numel() // 2] = x[: x.numel() // 2]
    return out


def test_memory_inside_a_custom_operator_is_filled_and_the_modes_are_restored() -> None:
    for deterministic in (False, True):
        torch._C._set_deterministic_algorithms(deterministic)
        try:
            with Filling(PATTERNS[1]):
                found = half_written(torch.ones(4))
            assert torch.are_deterministic_algorithms_enabled() == deterministic
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        finally:
            torch._C._set_deterministic_algorithms(False)
        assert found[:2].tolist() == [1, 1] and found.isnan().tolist() == [False, False, True, True]
