"""More cases in the manner of Triton's tutorials: attention, groups of products, libdevice, blocks.

Written for this corpus, like `tutorials`.
"""

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from tests.corpus.case import Draw, Given, case, given

__all__: list[str] = []

tutorial = functools.partial(case, project="tutorials")
HEADS = ((1, 1, 16, 16), (1, 2, 32, 16), (2, 1, 32, 32))  # batch, heads, length, size


# -- attention ------------------------------------------------------------------------------------


@triton.jit
def _attention(q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, scale, stride, length,
               SIZE: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr):  # fmt: skip
    start, head = tl.program_id(0), tl.program_id(1)
    at, inner = start * BLOCK + tl.arange(0, BLOCK), tl.arange(0, SIZE)
    base = head * stride
    q = tl.load(q_ptr + base + at[:, None] * SIZE + inner[None, :])
    best = tl.full((BLOCK,), -float("inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    out = tl.zeros((BLOCK, SIZE), dtype=tl.float32)
    end = (start + 1) * BLOCK if CAUSAL else length
    for first in range(0, end, BLOCK):
        to = first + tl.arange(0, BLOCK)
        k = tl.load(k_ptr + base + to[None, :] * SIZE + inner[:, None])
        v = tl.load(v_ptr + base + to[:, None] * SIZE + inner[None, :])
        score = tl.dot(q, k) * scale
        if CAUSAL:
            score = tl.where(at[:, None] >= to[None, :], score, -float("inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        power = tl.exp(score - higher[:, None])
        shrunk = tl.exp(best - higher)
        total = total * shrunk + tl.sum(power, 1)
        out = out * shrunk[:, None] + tl.dot(power.to(v.dtype), v)
        best = higher
    rows = out_ptr + base + at[:, None] * SIZE + inner[None, :]
    tl.store(rows, (out / total[:, None]).to(out_ptr.dtype.element_ty))
    tl.store(lse_ptr + head * length + at, best + tl.log(total))


def attention(q, k, v, causal: bool, scale: float | None = None):
    sizes = {each.shape[-1] for each in (q, k, v)}
    assert len(sizes) == 1 and sizes.pop() in {16, 32, 64}
    scale = scale or 1.0 / math.sqrt(q.shape[-1])
    out = torch.empty_like(q)
    extra = {"num_warps": 4, "num_stages": 2} if causal else {}
    lse = torch.empty((q.shape[0], q.shape[1], q.shape[2]), device=q.device)
    grid = (triton.cdiv(q.shape[2], 16), q.shape[0] * q.shape[1], 1)
    _attention[grid](
        q, k, v, out, lse, scale, q.stride(1), q.shape[2],
        SIZE=q.shape[-1], BLOCK=16, CAUSAL=causal, **extra,
    )  # fmt: skip
    return out, lse


@tutorial(attention, *HEADS)
def causal_attention(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape), draw(*shape), draw(*shape), True)


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, scale):
        out, lse = attention(q, k, v, causal, scale)
        ctx.save_for_backward(q, k, v, out, lse)
        return out


attend = Attention.apply


def attention_function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return attend(q, k, v, False, 0.5)


@tutorial(attention_function, *HEADS)
def attention_autograd(draw: Draw, *shape: int) -> Given:
    return given(draw(*shape), draw(*shape), draw(*shape))


# -- a group of products --------------------------------------------------------------------------


@triton.jit
def _grouped(a_ptrs, b_ptrs, c_ptrs, sizes, strides, groups, PROGRAMS: tl.constexpr,
             BLOCK: tl.constexpr):  # fmt: skip
    tile, passed = tl.program_id(0), 0
    for g in range(groups):
        gm, gn = tl.load(sizes + g * 3), tl.load(sizes + g * 3 + 1)
        gk = tl.load(sizes + g * 3 + 2)
        wide = tl.cdiv(gn, BLOCK)
        tiles = tl.cdiv(gm, BLOCK) * wide
        while tile >= passed and tile < passed + tiles:
            lda, ldb = tl.load(strides + g * 3), tl.load(strides + g * 3 + 1)
            ldc = tl.load(strides + g * 3 + 2)
            a_ptr = tl.load(a_ptrs + g).to(tl.pointer_type(tl.float16))
            b_ptr = tl.load(b_ptrs + g).to(tl.pointer_type(tl.float16))
            c_ptr = tl.load(c_ptrs + g).to(tl.pointer_type(tl.float16))
            row = (tile - passed) // wide * BLOCK + tl.arange(0, BLOCK)
            col = (tile - passed) % wide * BLOCK + tl.arange(0, BLOCK)
            total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
            for k in range(tl.cdiv(gk, BLOCK)):
                inner = k * BLOCK + tl.arange(0, BLOCK)
                a = tl.load(a_ptr + row[:, None] * lda + inner[None, :])
                b = tl.load(b_ptr + inner[:, None] * ldb + col[None, :])
                total += tl.dot(a, b)
            tl.store(c_ptr + row[:, None] * ldc + col[None, :], total.to(tl.float16))
            tile += PROGRAMS
        passed += tiles


def grouped_products(lefts: list[torch.Tensor], rights: list[torch.Tensor]) -> list[torch.Tensor]:
    assert len(lefts) == len(rights)
    addresses, sizes, strides, products = ([], [], []), [], [], []
    for a, b in zip(lefts, rights, strict=True):
        assert a.shape[1] == b.shape[0]
        c = torch.empty((a.shape[0], b.shape[1]), device=a.device, dtype=a.dtype)
        products.append(c)
        for of_one, tensor in zip(addresses, (a, b, c), strict=True):
            of_one.append(tensor.data_ptr())
        sizes += [a.shape[0], b.shape[1], a.shape[1]]
        strides += [a.stride(0), b.stride(0), c.stride(0)]
    tables = [torch.tensor(each) for each in addresses]
    facts = torch.tensor(sizes, dtype=torch.int32), torch.tensor(strides, dtype=torch.int32)
    _grouped[(4,)](*tables, *facts, len(lefts), PROGRAMS=4, BLOCK=16)
    return products


@tutorial(grouped_products, (2, 16), (3, 16), (2, 32))
def grouped_gemm(draw: Draw, groups: int, size: int) -> Given:
    half = torch.float16
    lefts = [draw(size * (k + 1), size, dtype=half) for k in range(groups)]
    return given(lefts, [draw(size, size, dtype=half) for _ in range(groups)])


# -- libdevice ------------------------------------------------------------------------------------


@triton.jit
def _asin(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(y_ptr + at, libdevice.asin(tl.load(x_ptr + at, mask=inside)), mask=inside)


def arcsine(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(x.shape, device=x.device)
    grid = lambda meta: (triton.cdiv(y.numel(), meta["BLOCK"]),)  # noqa: E731
    _asin[grid](x, y, x.numel(), BLOCK=256)
    return y


@tutorial(arcsine, (256,), (1000,), (1024,), ci=True)
def libdevice_asin(draw: Draw, n: int) -> Given:
    return given(draw.unit(n))


# -- persistent and split products ----------------------------------------------------------------


@triton.jit
def _split(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK: tl.constexpr, SPLIT: tl.constexpr):
    tile, part = tl.program_id(0), tl.program_id(1)
    wide = tl.cdiv(N, BLOCK)
    row = tile // wide * BLOCK + tl.arange(0, BLOCK)
    col = tile % wide * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(part, tl.cdiv(K, BLOCK), SPLIT):
        inner = k * BLOCK + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + row[:, None] * K + inner[None, :])
        b = tl.load(b_ptr + inner[:, None] * N + col[None, :])
        total = tl.dot(a, b, total)
    tl.atomic_add(c_ptr + row[:, None] * N + col[None, :], total)


def split_product(a: torch.Tensor, b: torch.Tensor, split: int = 2) -> torch.Tensor:
    (m, k), n = a.shape, b.shape[1]
    c = torch.zeros((m, n), device=a.device, dtype=torch.float32)
    _split[(triton.cdiv(m, 16) * triton.cdiv(n, 16), split)](
        a, b, c, m, n, k, BLOCK=16, SPLIT=split
    )
    return c


@tutorial(split_product, (16, 32, 16), (32, 64, 16), (32, 32, 32), ci=True)
def split_k_matmul(draw: Draw, m: int, k: int, n: int) -> Given:
    return given(draw(m, k), draw(k, n))


@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def _silu(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + at) if EVEN else tl.load(x_ptr + at, mask=inside)
    if EVEN:
        tl.store(y_ptr + at, x * tl.sigmoid(x))
    else:
        tl.store(y_ptr + at, x * tl.sigmoid(x), mask=inside)


def silu(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    _silu[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y


@tutorial(silu, (256,), (1000,), (1024,), ci=True)
def silu_heuristics(draw: Draw, n: int) -> Given:
    return given(draw(n))


# -- block-scaled values --------------------------------------------------------------------------


@triton.jit
def _quantize(x_ptr, q_ptr, scale_ptr, cols, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < cols
    x = tl.load(x_ptr + row * cols + at, mask=inside, other=0.0)
    scale = tl.max(tl.abs(x), axis=0) / 127.0 + 1e-8
    tl.store(q_ptr + row * cols + at, (x / scale).to(tl.int8), mask=inside)
    tl.store(scale_ptr + row, scale)


@triton.jit
def _restore(q_ptr, scale_ptr, x_ptr, cols, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < cols
    q = tl.load(q_ptr + row * cols + at, mask=inside, other=0)
    tl.store(x_ptr + row * cols + at, q.to(tl.float32) * tl.load(scale_ptr + row), mask=inside)


def quantized_and_back(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, cols = x.shape
    q = torch.empty_like(x, dtype=torch.int8)
    scale = x.new_empty(rows)
    back = torch.empty_like(x)
    block = triton.next_power_of_2(cols)
    _quantize[(rows,)](x, q, scale, cols, BLOCK=block)
    _restore[(rows,)](q, scale, back, cols, BLOCK=block)
    return q, scale, back


@tutorial(quantized_and_back, (4, 64), (3, 100), (8, 128))
def block_scaled_round_trip(draw: Draw, rows: int, cols: int) -> Given:
    return given(draw(rows, cols))
