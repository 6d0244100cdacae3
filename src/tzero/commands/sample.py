"""A host function with a kernel, called for real on the device that Triton uses.

Enters: nothing. Leaves: how the call was made, and what it costs. It must not know who asks.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from tzero import measure
from tzero.api.decorators import kernel

__all__ = ["Made", "call"]


class Made(NamedTuple):
    """One call, made several times.

    >>> Made(True, "natively", "", 1.0, 10.0).is_right
    True
    """

    is_right: bool
    how: str
    """How it was replayed; empty if it was not."""
    why: str
    """Why it was not replayed, or not natively."""
    microseconds: float
    plain_microseconds: float


@triton.jit  # type: ignore[untyped-decorator] # Triton reads annotations as types of its own
def _add(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n)
    tl.store(out + at, total, mask=at < n)


def _total(x: Any, y: Any) -> Any:
    out = torch.empty_like(x)
    _add[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    return out


def call() -> Made:
    """Compile, launch and replay a sum of two tensors.

    >>> call().is_right
    True
    """
    device = triton.runtime.driver.active.get_active_torch_device()
    x, y = torch.arange(4000.0, device=device), torch.ones(4000, device=device)
    total = kernel(_total)
    is_right = all(torch.equal(total(x, y), x + y) for _ in range(3))
    found = total.explain(x, y)
    how, why = (found.replay.how, found.replay.why) if found.replay else ("", found.refusal or "")
    times = (measure.nanoseconds(partial(each, x, y)) / 1e3 for each in (total, _total))
    return Made(is_right, how, why, *times)
