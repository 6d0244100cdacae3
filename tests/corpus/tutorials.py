"""Cases in the manner of Triton's tutorials, written for this corpus.

The host functions are written as the tutorials write theirs: grids from lambdas, autotuners,
strides as arguments, dicts of options, autograd functions.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from tests.corpus.case import Draw, Given, case, given

__all__: list[str] = []

tutorial = functools.partial(case, project="tutorials")
SIZES = ((256,), (1000,), (1024,))
MATRICES = ((16, 32, 16), (32, 48, 64), (64, 32, 32))
ROWS = ((4, 64), (3, 100), (8, 128))


# -- vector addition ------------------------------------------------------------------------------


@triton.jit
def _add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x_ptr + at, mask=inside) + tl.load(y_ptr + at, mask=inside)
    tl.store(out_ptr + at, total, mask=inside)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    assert x.device == y.device == out.device
    n = out.numel()

    def grid(meta: Any) -> tuple[int]:
        return (triton.cdiv(n, meta["BLOCK"]),)

    _add[grid](x, y, out, n, BLOCK=256)
    return out


@tutorial(add, *SIZES, ci=True)
def vector_add(draw: Draw, n: int) -> Given:
    return given(draw(n), draw(n))


def add_with_lambda(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor | None = None):
    out = torch.empty_like(x) if out is None else out
    n = out.numel()
    grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)  # noqa: E731
    _add[grid](x, y, out, n, BLOCK=128)
    return out


@tutorial(add_with_lambda, *SIZES)
def vector_add_given_output(draw: Draw, n: int) -> Given:
    return given(draw(n), draw(n), out=torch.zeros(n))


# -- softmax --------------------------------------------------------------------------------------


@triton.jit
def _softmax(out_ptr, in_ptr, in_stride, out_stride, rows, cols, BLOCK: tl.constexpr):
    first, step = tl.program_id(0), tl.num_programs(0)
    for row in tl.range(first, rows, step):
        at = tl.arange(0, BLOCK)
        inside = at < cols
        values = tl.load(in_ptr + row * in_stride + at, mask=inside, other=-float("inf"))
        power = tl.exp(values - tl.max(values, axis=0))
        tl.store(out_ptr + row * out_stride + at, power / tl.sum(power, axis=0), mask=inside)


@functools.lru_cache(maxsize=8)
def _programs(rows: int) -> int:
    return min(4, rows)


def softmax(x: torch.Tensor) -> torch.Tensor:
    rows, cols = x.shape
    block = triton.next_power_of_2(cols)
    y = torch.empty_like(x)
    _softmax[(min(rows, 4), 1, 1)](y, x, x.stride(0), y.stride(0), rows, cols, block)
    return y


@tutorial(softmax, *ROWS, ci=True)
def fused_softmax(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols))


def softmax_by_occupancy(x: torch.Tensor) -> torch.Tensor:
    rows, cols = x.shape
    options = {"BLOCK": triton.next_power_of_2(cols), "num_warps": 8 if cols > 64 else 4}
    y = torch.empty_like(x)
    _softmax[(_programs(rows),)](y, x, x.stride(0), y.stride(0), rows, cols, **options)
    return y


@tutorial(softmax_by_occupancy, *ROWS)
def fused_softmax_cached_occupancy(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols))


# -- matrix products ------------------------------------------------------------------------------


def _configs() -> list[triton.Config]:
    sizes = ((16, 16, 16), (32, 16, 16), (16, 32, 32))
    return [
        triton.Config({"BM": m, "BN": n, "BK": k, "GROUP": 2}, num_warps=4) for m, n, k in sizes
    ]


@triton.jit
def _leaky(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.autotune(configs=_configs(), key=["M", "N", "K"])
@triton.jit
def _matmul(a_ptr, b_ptr, c_ptr, M, N, K, am, ak, bk, bn, cm, cn,
            BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
            ACTIVATION: tl.constexpr):  # fmt: skip
    pid = tl.program_id(axis=0)
    tall, wide = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = pid // (GROUP * wide) * GROUP
    height = tl.minimum(tall - first, GROUP)
    row = (first + pid % (GROUP * wide) % height) * BM + tl.arange(0, BM)
    col = pid % (GROUP * wide) // height * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(tl.cdiv(K, BK)):
        inner = k * BK + tl.arange(0, BK)
        left = (row < M)[:, None] & (inner < K)[None, :]
        right = (inner < K)[:, None] & (col < N)[None, :]
        a = tl.load(a_ptr + row[:, None] * am + inner[None, :] * ak, mask=left, other=0.0)
        b = tl.load(b_ptr + inner[:, None] * bk + col[None, :] * bn, mask=right, other=0.0)
        total = tl.dot(a, b, total)
    if ACTIVATION == "leaky_relu":
        total = _leaky(total)
    at = c_ptr + row[:, None] * cm + col[None, :] * cn
    tl.store(at, total.to(c_ptr.dtype.element_ty), mask=(row < M)[:, None] & (col < N)[None, :])


def matmul(a: torch.Tensor, b: torch.Tensor, activation: str = "") -> torch.Tensor:
    assert a.shape[1] == b.shape[0], "Incompatible dimensions"
    assert a.is_contiguous(), "Matrix A must be contiguous"
    M, K = a.shape
    K, N = b.shape
    c = torch.empty((M, N), device=a.device, dtype=torch.float16)
    grid = lambda meta: (triton.cdiv(M, meta["BM"]) * triton.cdiv(N, meta["BN"]),)  # noqa: E731
    _matmul[grid](
        a, b, c, M, N, K,
        a.stride(0), a.stride(1), b.stride(0), b.stride(1), c.stride(0), c.stride(1),
        ACTIVATION=activation,
    )  # fmt: skip
    return c


@tutorial(matmul, *MATRICES, ci=True)
def autotuned_matmul(draw: Draw, m: int, k: int, n: int) -> Given:
    half = torch.float16
    return given(draw(m, k, dtype=half), draw(k, n, dtype=half), activation="leaky_relu")


@tutorial(matmul, *MATRICES)
def autotuned_matmul_transposed(draw: Draw, m: int, k: int, n: int) -> Given:
    return given(draw(m, k, dtype=torch.float16), draw(n, k, dtype=torch.float16).t())


# -- dropout --------------------------------------------------------------------------------------


@triton.jit
def _seeded_dropout(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + at, mask=inside)
    kept = tl.rand(seed, at) > p
    tl.store(out_ptr + at, tl.where(kept, x / (1 - p), 0.0), mask=inside)


def seeded_dropout(x: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    out = torch.empty_like(x)
    assert x.is_contiguous()
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)  # noqa: E731
    _seeded_dropout[grid](x, out, x.numel(), p, seed, BLOCK=256)
    return out


@tutorial(seeded_dropout, *SIZES, ci=True)
def low_memory_dropout(draw: Draw, n: int) -> Given:
    return given(draw(n), p=0.5, seed=2 * int(draw.below(500)) + 1)


def dropout_with_drawn_mask(x: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
    mask = (torch.rand_like(x) > p).float()
    return _scaled(x, mask, 1.0 / (1.0 - p)), mask


@triton.jit
def _product(x_ptr, y_ptr, out_ptr, factor, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    product = tl.load(x_ptr + at, mask=inside) * tl.load(y_ptr + at, mask=inside)
    tl.store(out_ptr + at, product * factor, mask=inside)


def _scaled(x: torch.Tensor, y: torch.Tensor, factor: float) -> torch.Tensor:
    out = torch.empty_like(x)
    _product[(triton.cdiv(x.numel(), 256),)](x, y, out, factor, x.numel(), BLOCK=256)
    return out


@tutorial(dropout_with_drawn_mask, *SIZES)
def dropout_drawn_by_torch(draw: Draw, n: int) -> Given:
    return given(draw(n), 0.25)


# -- layer norm -----------------------------------------------------------------------------------


@triton.jit
def _norm(x_ptr, y_ptr, w_ptr, b_ptr, mean_ptr, rstd_ptr, stride, cols, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < cols
    x = tl.load(x_ptr + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / cols
    centred = tl.where(inside, x - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / cols + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    w = tl.load(w_ptr + at, mask=inside)
    b = tl.load(b_ptr + at, mask=inside)
    tl.store(y_ptr + row * stride + at, centred * rstd * w + b, mask=inside)


class LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shape, weight, bias, eps):
        y = torch.empty_like(x)
        rows = x.reshape(-1, x.shape[-1])
        M, N = rows.shape
        mean = torch.empty((M,), dtype=torch.float32, device=x.device)
        rstd = torch.empty((M,), dtype=torch.float32, device=x.device)
        fused = 65536 // x.element_size()
        block = min(fused, triton.next_power_of_2(N))
        if block < N:
            raise RuntimeError("rows are too long")
        warps = min(max(block // 256, 1), 8)
        _norm[(M,)](
            rows, y, weight, bias, mean, rstd, rows.stride(0), N, eps,
            BLOCK=block, num_warps=warps, num_ctas=1,
        )  # fmt: skip
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.eps = eps
        return y


def layer_norm_function(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    return LayerNorm.apply(x, weight.shape, weight, bias, eps)


@tutorial(layer_norm_function, *ROWS, ci=True)
def layer_norm_autograd(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(cols), draw(cols), 1e-5)


@triton.jit
def _norm_grads(dy_ptr, x_ptr, dw_ptr, db_ptr, mean_ptr, rstd_ptr, rows, cols,
                BLOCK: tl.constexpr):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < cols
    dw = tl.zeros((BLOCK,), dtype=tl.float32)
    db = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(rows):
        dy = tl.load(dy_ptr + row * cols + at, mask=inside, other=0.0)
        x = tl.load(x_ptr + row * cols + at, mask=inside, other=0.0)
        dw += dy * (x - tl.load(mean_ptr + row)) * tl.load(rstd_ptr + row)
        db += dy
    tl.store(dw_ptr + at, dw, mask=inside)
    tl.store(db_ptr + at, db, mask=inside)


def layer_norm_weight_grads(
    dy: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> dict[str, torch.Tensor]:
    rows, cols = x.shape
    grads = {name: torch.empty(cols, device=x.device) for name in ("weight", "bias")}
    grid = [triton.cdiv(cols, 64)]
    _norm_grads[grid](
        dy, x, grads["weight"], grads["bias"], mean, rstd, rows, cols, BLOCK=64
    )  # fmt: skip
    return grads


@tutorial(layer_norm_weight_grads, *ROWS)
def layer_norm_backward(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols), draw(rows, cols), draw(rows), draw.unit(rows))
