"""A kernel with an output pool, and the rings of its outputs.

Enters: a tier and a host function. Leaves: a `Pooled`, which makes calls with distinct contents and
says which of them reused a tensor. Equal addresses are no proof, because torch's allocator reuses
memory too, so the counts of the rings are used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from tests.plans.hosts import scaled
from tests.plans.tiers import of_tier
from tzero.plans import outputs

SIZE = 8
"""The number of elements of an output."""

KEPT = 4
"""The number of tensors that a ring keeps."""


def doubled(x):
    return scaled(x, 2.0)


class Pooled:
    """A pooled kernel that has been called, with empty rings."""

    def __init__(self, tier: int, host: Callable[..., Any] = doubled) -> None:
        before = set(outputs._all())
        self.kernel = of_tier(tier, host, pool=True)
        for _ in range(3):
            self(0.0)
        self.rings = [ring for ring in outputs._all() if ring not in before]
        self.clear()

    def __call__(self, value: float) -> Any:
        return self.kernel(torch.full((SIZE,), value))

    def clear(self) -> None:
        for ring in self.rings:
            ring.clear()

    @property
    def reused(self) -> int:
        """How many tensors were reused."""
        return sum(ring.reused for ring in self.rings)

    @property
    def made(self) -> int:
        """How many tensors were made."""
        return sum(ring.made for ring in self.rings)

    def tensors(self) -> int:
        """How many tensors the rings hold."""
        return sum(len(ring.held()) for ring in self.rings)


def bytes_at(address: int, size: int = SIZE) -> bytes:
    """The `size` floats at an address, read without touching a tensor."""
    return ctypes.string_at(address, 4 * size)


def assert_as_new(out: torch.Tensor, value: float) -> None:
    """Demand that a tensor looks like a newly allocated one."""
    new = torch.full((SIZE,), 2 * value)
    assert type(out) is torch.Tensor
    assert out.requires_grad is False and out.grad is None and out.grad_fn is None and out.is_leaf
    assert not out.retains_grad and out._backward_hooks is None
    assert getattr(out, "_post_accumulate_grad_hooks", None) is None
    assert (out.dtype, out.size(), out.stride()) == (new.dtype, new.size(), new.stride())
    assert out.storage_offset() == 0 and not out.is_conj() and not out.is_neg()
    assert not out.is_shared() and out.is_inference() == torch.is_inference_mode_enabled()
    assert vars(out) == {}
    assert out.is_inference() or out._version == 0
    assert torch.equal(out, new), out
    assert out.untyped_storage().nbytes() == 4 * SIZE
