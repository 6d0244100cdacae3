"""A kernel that uses its outputs again, and the rings that it takes them from.

Enters: a tier and a host function. Leaves: a `Pooled`, which makes calls whose contents are told
from each other, and says which of them took a tensor that was there. That an address comes back is
no proof, as torch's allocator gives them again too: the rings count.
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
"""So many elements an output has."""

KEPT = 4
"""So many tensors a ring keeps."""


def doubled(x):
    return scaled(x, 2.0)


class Pooled:
    """A pooled kernel, warm and with nothing in its rings."""

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
        """How many tensors were handed out again."""
        return sum(ring.reused for ring in self.rings)

    @property
    def made(self) -> int:
        """How many tensors were made."""
        return sum(ring.made for ring in self.rings)

    def tensors(self) -> int:
        """How many tensors the rings have."""
        return sum(len(ring.held()) for ring in self.rings)


def bytes_at(address: int, size: int = SIZE) -> bytes:
    """The memory at an address, which nothing is asked about: so many floats."""
    return ctypes.string_at(address, 4 * size)


def assert_as_new(out: torch.Tensor, value: float) -> None:
    """A tensor is all that one is which a call has made."""
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
