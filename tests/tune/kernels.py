"""A kernel with several configs, which the tests of whole searches share."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

import tzero
from tzero import Config, events


@triton.jit
def scale_kernel(x, out, n, BLOCK: tl.constexpr, BY: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * BY, mask=at < n)


SMALL, LARGE, WRONG = Config(BLOCK=16, BY=2), Config(BLOCK=256, BY=2), Config(BLOCK=64, BY=3)
X = torch.arange(1000.0)


def double(x: torch.Tensor, config: Config) -> torch.Tensor:
    out = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), config.BLOCK),)](x, out, x.numel(), **config)
    return out


def kernel(configs: Any = (SMALL, LARGE), **options: Any) -> tzero.Kernel[torch.Tensor]:
    return tzero.kernel(configs=configs, **options)(double)


def observed(kind: str = "tune") -> tuple[list[str], Any]:
    """The reasons of the events of one kind, and the context in which they are observed."""
    found: list[str] = []
    return found, events.observe(lambda e: found.append(e.reason) if e.kind == kind else None)
