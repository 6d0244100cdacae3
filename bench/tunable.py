"""Kernels to tune: matmul, softmax and layer norm as functions of a config, and their configs.

A config changes the speed and nothing else. Which config is fastest depends on the shape.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

import tzero
from bench import kernels
from tzero import Config

__all__ = ["TUNABLE", "Tunable", "matmul", "matmul_configs"]


def matmul(a: Tensor, b: Tensor, config: Config) -> Tensor:
    """A matrix product with the config's block sizes."""
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(m, config.BLOCK_M) * triton.cdiv(n, config.BLOCK_N),)
    kernels.matmul_kernel[grid](
        a, b, out, m, n, k, a.stride(0), a.stride(1), b.stride(0), b.stride(1), out.stride(0),
        out.stride(1), ACTIVATION=None, **config,
    )  # fmt: skip
    return out


def matmul_configs(device: str) -> list[Config]:
    """24 configs for the matmul."""
    if device == "cpu":
        sizes = itertools.product((16, 32, 64, 128), (32, 64, 128), (32, 128))
        return [Config(BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, GROUP=4) for m, n, k in sizes]
    sizes = itertools.product((32, 64, 128), (64, 128), (32, 64), ((4, 3), (8, 4)))
    return [
        Config(BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, GROUP=8, num_warps=warps, num_stages=stages)
        for m, n, k, (warps, stages) in sizes
    ]


@triton.jit
def softmax_kernel(x_ptr, out_ptr, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    top = tl.full((ROWS, 1), -float("inf"), tl.float32)
    total = tl.zeros((ROWS, 1), tl.float32)
    for start in range(0, columns, BLOCK):
        at = (start + tl.arange(0, BLOCK))[None, :]
        inside = (row < rows) & (at < columns)
        x = tl.load(x_ptr + row * columns + at, mask=inside, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(x, axis=1, keep_dims=True))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher), axis=1, keep_dims=True)
        top = higher
    for start in range(0, columns, BLOCK):
        at = (start + tl.arange(0, BLOCK))[None, :]
        inside = (row < rows) & (at < columns)
        x = tl.load(x_ptr + row * columns + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * columns + at, tl.exp(x - top) / total, mask=inside)


def softmax(x: Tensor, config: Config) -> Tensor:
    """Softmax over rows, several rows and a block of columns at a time."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    softmax_kernel[(triton.cdiv(rows, config.ROWS),)](x, out, rows, columns, **config)
    return out


@triton.jit
def layernorm_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    squares = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in range(0, columns, BLOCK):
        at = (start + tl.arange(0, BLOCK))[None, :]
        inside = (row < rows) & (at < columns)
        x = tl.load(x_ptr + row * columns + at, mask=inside, other=0.0).to(tl.float32)
        sums += x
        squares += x * x
    mean = tl.sum(sums, axis=1, keep_dims=True) / columns
    variance = tl.sum(squares, axis=1, keep_dims=True) / columns - mean * mean
    scale = 1.0 / tl.sqrt(variance + 1e-5)
    for start in range(0, columns, BLOCK):
        at = (start + tl.arange(0, BLOCK))[None, :]
        inside = (row < rows) & (at < columns)
        x = tl.load(x_ptr + row * columns + at, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + at, mask=at < columns, other=0.0)
        bias = tl.load(bias_ptr + at, mask=at < columns, other=0.0)
        tl.store(out_ptr + row * columns + at, (x - mean) * scale * weight + bias, mask=inside)


def layernorm(x: Tensor, weight: Tensor, bias: Tensor, config: Config) -> Tensor:
    """Layer norm over rows, several rows and a block of columns at a time."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    grid = (triton.cdiv(rows, config.ROWS),)
    layernorm_kernel[grid](x, weight, bias, out, rows, columns, **config)
    return out


def _by_rows(device: str) -> list[Config]:
    sizes = itertools.product((1, 4, 16), (64, 256, 1024, 4096))
    if device == "cpu":
        return [Config(ROWS=r, BLOCK=b) for r, b in sizes if r * b <= 16384]
    return [
        Config(ROWS=r, BLOCK=b, num_warps=warps)
        for (r, b), warps in itertools.product(sizes, (4, 8))
        if r * b <= 16384
    ]


@dataclass(frozen=True, slots=True)
class Tunable:
    """A host function with a config, its inputs at a shape, and the shapes: sizes to tune for
    (hints), and held-out shapes."""

    host: Callable[..., Tensor]
    configs: Callable[[str], list[Config]]
    inputs: Callable[[Sequence[int], str], tuple[Tensor, ...]]
    reference: Callable[..., Tensor]
    hints: dict[str, Sequence[int]]
    held_out: dict[str, Sequence[Sequence[int]]]

    def kernel(self, device: str, **options: Any) -> tzero.Kernel[Tensor]:
        """The kernel, with all of its configs to choose from."""
        return tzero.kernel(configs=self.configs(device), **options)(self.host)


def _dtype(device: str) -> torch.dtype:
    return torch.float32 if device == "cpu" else torch.float16


def _matrices(shape: Sequence[int], device: str) -> tuple[Tensor, ...]:
    m, n, k = shape
    of = {"device": device, "dtype": _dtype(device)}
    return torch.randn(m, k, **of), torch.randn(k, n, **of)  # type: ignore[call-overload, no-any-return]


def _rows(shape: Sequence[int], device: str) -> tuple[Tensor, ...]:
    return (torch.randn(*shape, device=device),)


def _normed(shape: Sequence[int], device: str) -> tuple[Tensor, ...]:
    rows, columns = shape
    return tuple(
        torch.randn(*size, device=device) for size in ((rows, columns), (columns,), (columns,))
    )


def _layernorm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[1:], weight, bias)


_MATRICES: dict[str, Sequence[Sequence[int]]] = {
    "cpu": [(48, 48, 96), (96, 160, 96), (320, 192, 256), (512, 128, 512), (80, 768, 320)],
    "cuda": [
        (768, 768, 768),
        (1536, 1024, 768),
        (3072, 2048, 1024),
        (512, 6144, 2048),
        (256, 3072, 4096),
    ],
}
_ROWS: dict[str, Sequence[Sequence[int]]] = {
    "cpu": [(96, 96), (160, 224), (600, 400), (256, 1500), (1200, 700)],
    "cuda": [(1536, 1536), (3000, 2500), (1024, 6000), (6000, 1200), (5000, 5000)],
}


def _around(least: int, most: int) -> list[int]:
    """Powers of two and the sizes halfway between. All blocks divide the powers, so with powers
    alone too large blocks would come out best."""
    steps = range(round(math.log2(most / least)))
    return [size for k in steps for size in (least << k, least * 3 << k >> 1)] + [most]


TUNABLE = {
    "matmul": Tunable(
        matmul,
        matmul_configs,
        _matrices,
        torch.matmul,
        {"cpu": _around(64, 512), "cuda": _around(512, 4096)},
        _MATRICES,
    ),
    "softmax": Tunable(
        softmax,
        _by_rows,
        _rows,
        lambda x: torch.softmax(x, 1),
        {"cpu": _around(64, 1024), "cuda": _around(1024, 8192)},
        _ROWS,
    ),
    "layernorm": Tunable(
        layernorm,
        _by_rows,
        _normed,
        _layernorm,
        {"cpu": _around(64, 1024), "cuda": _around(1024, 8192)},
        _ROWS,
    ),
}
