# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
"""The Triton kernels that the bench times and the tests check, with the host code that calls them.

Enters: tensors. Leaves: tensors. It must not know about timing or devices: the kernels are ordinary
Triton with one good block size each. (Triton, not Python, gives kernel parameters their types, so
they have no annotations.)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ADD_BLOCK = 1024
LAUNCH_BLOCK = 1024


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    x = tl.load(x_ptr + offsets, mask=inside)
    y = tl.load(y_ptr + offsets, mask=inside)
    tl.store(out_ptr + offsets, x + y, mask=inside)


def add(x: Tensor, y: Tensor, out: Tensor | None = None, block: int = ADD_BLOCK) -> Tensor:
    """The sum of two contiguous tensors of one shape."""
    out = torch.empty_like(x) if out is None else out
    n = out.numel()
    add_kernel[(triton.cdiv(n, block),)](x, y, out, n, BLOCK=block)
    return out


@triton.jit
def add8_kernel(a, b, c, d, e, f, g, h, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = at < n
    low = tl.load(a + at, ok) + tl.load(b + at, ok) + tl.load(c + at, ok) + tl.load(d + at, ok)
    high = tl.load(e + at, ok) + tl.load(f + at, ok) + tl.load(g + at, ok) + tl.load(h + at, ok)
    tl.store(out_ptr + at, low + high, ok)


@triton.jit
def add16_kernel(
    a, b, c, d, e, f, g, h, a2, b2, c2, d2, e2, f2, g2, h2, out_ptr, n, BLOCK: tl.constexpr
):  # fmt: skip
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = at < n
    total = tl.load(a + at, ok) + tl.load(b + at, ok) + tl.load(c + at, ok) + tl.load(d + at, ok)
    total += tl.load(e + at, ok) + tl.load(f + at, ok) + tl.load(g + at, ok) + tl.load(h + at, ok)
    total += tl.load(a2 + at, ok) + tl.load(b2 + at, ok) + tl.load(c2 + at, ok)
    total += tl.load(d2 + at, ok) + tl.load(e2 + at, ok) + tl.load(f2 + at, ok)
    total += tl.load(g2 + at, ok) + tl.load(h2 + at, ok)
    tl.store(out_ptr + at, total, ok)


SUMS = {2: add_kernel, 8: add8_kernel, 16: add16_kernel}
"""The kernel that sums 2, 8 or 16 tensors."""


def add_many(*inputs: Tensor) -> Tensor:
    """The sum of 2, 8 or 16 equal-shaped tensors: one launch whose cost is mostly its arguments."""
    kernel = SUMS[len(inputs)]
    out = torch.empty_like(inputs[0])
    n = out.numel()
    kernel[(triton.cdiv(n, LAUNCH_BLOCK),)](*inputs, out, n, BLOCK=LAUNCH_BLOCK)
    return out


def add2(a: Tensor, b: Tensor) -> Tensor:
    """The sum of two tensors, as a typical host function."""
    out = torch.empty_like(a)
    n = out.numel()
    add_kernel[(triton.cdiv(n, LAUNCH_BLOCK),)](a, b, out, n, BLOCK=LAUNCH_BLOCK)
    return out


def add8(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, g: Tensor,
         h: Tensor) -> Tensor:  # fmt: skip
    """The sum of eight."""
    out = torch.empty_like(a)
    n = out.numel()
    grid = (triton.cdiv(n, LAUNCH_BLOCK),)
    add8_kernel[grid](a, b, c, d, e, f, g, h, out, n, BLOCK=LAUNCH_BLOCK)
    return out


def add16(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor, g: Tensor, h: Tensor,
          a2: Tensor, b2: Tensor, c2: Tensor, d2: Tensor, e2: Tensor, f2: Tensor, g2: Tensor,
          h2: Tensor) -> Tensor:  # fmt: skip
    """The sum of sixteen."""
    out = torch.empty_like(a)
    n = out.numel()
    grid = (triton.cdiv(n, LAUNCH_BLOCK),)
    add16_kernel[grid](
        a, b, c, d, e, f, g, h, a2, b2, c2, d2, e2, f2, g2, h2, out, n, BLOCK=LAUNCH_BLOCK
    )
    return out


def add_five(x: Tensor, y: Tensor) -> Tensor:
    """Five sums of two tensors in a row, through an intermediate tensor."""
    n = x.numel()
    between, out = torch.empty_like(x), torch.empty_like(x)
    grid = (triton.cdiv(n, LAUNCH_BLOCK),)
    add_kernel[grid](x, y, between, n, BLOCK=LAUNCH_BLOCK)
    add_kernel[grid](between, x, out, n, BLOCK=LAUNCH_BLOCK)
    add_kernel[grid](out, y, between, n, BLOCK=LAUNCH_BLOCK)
    add_kernel[grid](between, x, out, n, BLOCK=LAUNCH_BLOCK)
    add_kernel[grid](out, between, out, n, BLOCK=LAUNCH_BLOCK)
    return out


def add_twenty(x: Tensor, y: Tensor) -> Tensor:
    """Twenty sums of two tensors in a row, through an intermediate tensor."""
    n = x.numel()
    between, out = torch.empty_like(x), torch.empty_like(x)
    grid = (triton.cdiv(n, LAUNCH_BLOCK),)
    add_kernel[grid](x, y, out, n, BLOCK=LAUNCH_BLOCK)
    for _ in range(9):
        add_kernel[grid](out, y, between, n, BLOCK=LAUNCH_BLOCK)
        add_kernel[grid](between, x, out, n, BLOCK=LAUNCH_BLOCK)
    add_kernel[grid](out, y, out, n, BLOCK=LAUNCH_BLOCK)
    return out


@triton.jit
def softmax_kernel(x_ptr, out_ptr, x_stride, out_stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    x = tl.load(x_ptr + row * x_stride + at, mask=inside, other=-float("inf")).to(tl.float32)
    grown = tl.exp(x - tl.max(x, axis=0))
    share = grown / tl.sum(grown, axis=0)
    tl.store(out_ptr + row * out_stride + at, share, mask=inside)


def softmax(x: Tensor, out: Tensor | None = None) -> Tensor:
    """Softmax over the rows of a matrix, one row per program."""
    rows, columns = x.shape
    out = torch.empty_like(x) if out is None else out
    block = triton.next_power_of_2(columns)
    softmax_kernel[(rows,)](x, out, x.stride(0), out.stride(0), columns, BLOCK=block)
    return out


@triton.jit
def layernorm_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, mean_ptr, rstd_ptr, stride, columns, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    x = tl.load(x_ptr + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / columns
    centred = tl.where(inside, x - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / columns + eps)
    weight = tl.load(weight_ptr + at, mask=inside)
    bias = tl.load(bias_ptr + at, mask=inside)
    tl.store(out_ptr + row * stride + at, centred * rstd * weight + bias, mask=inside)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)


def layernorm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """Layer norm over the rows of a matrix; also each row's mean and reciprocal deviation."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    mean = torch.empty(rows, dtype=torch.float32, device=x.device)
    rstd = torch.empty_like(mean)
    block = triton.next_power_of_2(columns)
    layernorm_kernel[(rows,)](
        x, weight, bias, out, mean, rstd, x.stride(0), columns, eps, BLOCK=block
    )
    return out, mean, rstd


@triton.jit
def relu(x):
    return tl.maximum(x, 0.0)


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def grouped_tile(tile, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Row and column of a tile when the tiles are walked in bands of GROUP rows."""
    band = tile // (GROUP * tiles_n)
    first = band * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    within = tile % (GROUP * tiles_n)
    return first + within % height, within // height


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    tile_m, tile_n = grouped_tile(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    # Rows and columns past the edge wrap around: their products are computed and never stored.
    a_ptrs = a_ptr + (rows % M)[:, None] * stride_am + depth[None, :] * stride_ak
    b_ptrs = b_ptr + depth[:, None] * stride_bk + (columns % N)[None, :] * stride_bn
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        left = K - k * BLOCK_K
        a = tl.load(a_ptrs, mask=depth[None, :] < left, other=0.0)
        b = tl.load(b_ptrs, mask=depth[:, None] < left, other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    if ACTIVATION is not None:
        total = ACTIVATION(total)
    c_ptrs = c_ptr + rows[:, None] * stride_cm + columns[None, :] * stride_cn
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c_ptrs, total.to(c_ptr.dtype.element_ty), mask=inside)


def matmul(
    a: Tensor,
    b: Tensor,
    activation: object = None,
    blocks: tuple[int, int, int] = (64, 64, 64),
    group: int = 4,
    out: Tensor | None = None,
) -> Tensor:
    """The product of two matrices, with one of the activations of this module applied."""
    (m, k), (_, n) = a.shape, b.shape
    block_m, block_n, block_k = blocks
    c = torch.empty((m, n), device=a.device, dtype=a.dtype) if out is None else out
    grid = (triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)
    matmul_kernel[grid](
        a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride(),
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP=group, ACTIVATION=activation,
    )  # fmt: skip
    return c


@triton.jit
def attend(
    q, k_ptrs, v_ptrs, total, weight, peak, rows, first, last, keys, stride_k, stride_v, scale,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Fold the keys first..last into a running softmax: weighted values, weights and their peak."""
    for start in range(first, last, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptrs + start * stride_k, mask=columns[None, :] < keys, other=0.0)
        score = tl.dot(q, k) * scale
        if MASKED:
            visible = (rows[:, None] >= columns[None, :]) & (columns[None, :] < keys)
            score = tl.where(visible, score, -1.0e6)
        new_peak = tl.maximum(peak, tl.max(score, axis=1))
        p = tl.exp2(score - new_peak[:, None])
        shrink = tl.exp2(peak - new_peak)
        weight = weight * shrink + tl.sum(p, axis=1)
        v = tl.load(v_ptrs + start * stride_v, mask=columns[:, None] < keys, other=0.0)
        total = tl.dot(p.to(v.dtype), v, total * shrink[:, None])
        peak = new_peak
    return total, weight, peak


@triton.jit
def attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, length, scale,
    stride_qh, stride_qm, stride_kh, stride_kn, stride_vh, stride_vn, stride_oh, stride_om,
    CAUSAL: tl.constexpr, HEAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    head = tl.program_id(1)
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    width = tl.arange(0, HEAD)
    inside = rows[:, None] < length
    q_ptrs = q_ptr + head * stride_qh + rows[:, None] * stride_qm + width[None, :]
    q = tl.load(q_ptrs, mask=inside, other=0.0)
    k_ptrs = k_ptr + head * stride_kh + columns[None, :] * stride_kn + width[:, None]
    v_ptrs = v_ptr + head * stride_vh + columns[:, None] * stride_vn + width[None, :]
    total = tl.zeros((BLOCK_M, HEAD), dtype=tl.float32)
    weight = tl.zeros((BLOCK_M,), dtype=tl.float32)
    peak = tl.full((BLOCK_M,), -1.0e6, dtype=tl.float32)
    # Keys before the diagonal tile are seen by every row, so only what is left needs a mask.
    if CAUSAL:
        clear = tile * BLOCK_M
        last = tl.minimum((tile + 1) * BLOCK_M, length)
    else:
        clear = (length // BLOCK_N) * BLOCK_N
        last = length
        rows = tl.full((BLOCK_M,), 1, tl.int32) * length
    total, weight, peak = attend(
        q, k_ptrs, v_ptrs, total, weight, peak, rows, 0, clear, length, stride_kn, stride_vn,
        scale, BLOCK_N, False,
    )  # fmt: skip
    total, weight, peak = attend(
        q, k_ptrs, v_ptrs, total, weight, peak, rows, clear, last, length, stride_kn, stride_vn,
        scale, BLOCK_N, True,
    )  # fmt: skip
    out_rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    out_ptrs = out_ptr + head * stride_oh + out_rows[:, None] * stride_om + width[None, :]
    out = (total / weight[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptrs, out, mask=inside)


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, block: int = 64) -> Tensor:
    """Attention of (batch, heads, length, head) tensors, dense in their last dimension."""
    batch, heads, length, head = q.shape
    out = torch.empty_like(q)
    flat = [t.reshape(batch * heads, length, head) for t in (q, k, v)]
    into = out.view(batch * heads, length, head)
    strides = [step for t in (*flat, into) for step in t.stride()[:2]]
    scale = head**-0.5 * 1.4426950408889634  # the kernel raises 2, not e, to the scores
    attention_kernel[(triton.cdiv(length, block), batch * heads)](
        *flat, into, length, scale, *strides,
        CAUSAL=causal, HEAD=head, BLOCK_M=block, BLOCK_N=block,
    )  # fmt: skip
    return out


@triton.jit
def sort_rows_kernel(x_ptr, out_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(out_ptr + at, tl.sort(tl.load(x_ptr + at), dim=1))


def sort_rows(x: Tensor) -> Tensor:
    """The rows of a matrix whose sides are powers of two, each sorted upwards."""
    out = torch.empty_like(x)
    sort_rows_kernel[(1,)](x, out, ROWS=x.shape[0], COLUMNS=x.shape[1])
    return out
