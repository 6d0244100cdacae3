"""Addresses of tensors in host functions: of some uses the key has enough."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tzero
from tests.plans.hosts import scaled


def aligned(x):
    return scaled(x, 2.0 if x.data_ptr() % 16 == 0 else 3.0)


def low_bits(x):
    return scaled(x, float(x.data_ptr() % 8 + 1))


def of_a_view(x):
    return scaled(x, float(x[1:].data_ptr() % 16 + 1))


def of_new_memory(x):
    out = torch.empty_like(x)
    return scaled(x, float(out.data_ptr() % 16 + out[3:].data_ptr() % 8 + 1))


def placed(offset: int) -> torch.Tensor:
    """A tensor at an address that is so many elements above a multiple of 16."""
    memory = torch.arange(16.0)
    assert memory.data_ptr() % 16 == 0
    return memory[offset : offset + 4]


@pytest.mark.parametrize("host", [aligned, low_bits, of_a_view, of_new_memory])
def test_low_bits_of_an_address_are_read_in_a_replay(host: Any) -> None:
    kernel = tzero.kernel(host)
    for offset in (0, 1, 2, 3, 4, 0, 1, 5, 2, 3):
        x = placed(offset)
        assert torch.equal(kernel(x), host(x))
        assert kernel.explain(x).plan is not None, kernel.explain(x)
    assert not kernel.explain(x).refusal


held = torch.arange(4.0)


def whole(x):
    return scaled(x, float(x.data_ptr() % 4096))


def kept(x):
    address = x.data_ptr()
    return scaled(x, float(address % 16))


def of_several(x):
    return scaled(x, float(max(map(torch.Tensor.data_ptr, [x, x])) % 16))


def of_a_global(x):
    return scaled(x, float(held.data_ptr() % 16))


def of_a_sum(x):
    return scaled(x, float((x + 1).data_ptr() % 16))


@pytest.mark.parametrize("host", [whole, kept, of_several, of_a_global, of_a_sum])
def test_other_uses_of_an_address_are_not_replayed(host: Any) -> None:
    kernel = tzero.kernel(host)
    for offset in (0, 1, 2, 0):
        x = placed(offset)
        assert torch.equal(kernel(x), host(x)) or host is of_a_sum
    assert "it reads Tensor.data_ptr" in kernel.explain(x).refusal
