"""Whole kernels, like those of Triton's tutorials, against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
from triton.language.extra import libdevice

from bench import kernels


@pytest.mark.parametrize("n", [1, 1000, 4096, 98432])
def test_vector_add(n: int) -> None:
    torch.manual_seed(n)
    x, y = torch.rand(n), torch.rand(n)
    torch.testing.assert_close(kernels.add(x, y), x + y, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(1, 1), (37, 781), (8, 4096)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_fused_softmax(shape: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape).to(dtype)
    torch.testing.assert_close(kernels.softmax(x), x.softmax(1))


def test_softmax_rows_sum_to_one_even_when_large() -> None:
    x = torch.tensor([[1000.0, 1000.0, -1000.0], [80.0, -80.0, 0.0]])
    torch.testing.assert_close(kernels.softmax(x).sum(1), torch.ones(2))


@pytest.mark.parametrize("n", [2, 8, 16])
def test_sum_of_many_tensors(n: int) -> None:
    torch.manual_seed(n)
    inputs = [torch.randn(5000) for _ in range(n)]
    torch.testing.assert_close(kernels.add_many(*inputs), torch.stack(inputs).sum(0))


@pytest.mark.parametrize(
    ("activation", "reference"),
    [
        (None, lambda x: x),
        (kernels.leaky_relu, functional.leaky_relu),
        (kernels.relu, functional.relu),
    ],
    ids=["plain", "leaky_relu", "relu"],
)
def test_matmul_grouped_with_activation(activation: object, reference: object) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(200, 130), torch.randn(130, 150)
    torch.testing.assert_close(kernels.matmul(a, b, activation), reference(a @ b))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_matmul_of_each_type_with_transposed_operand(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(96, 64).to(dtype), torch.randn(80, 64).to(dtype)
    expected = (a.double() @ b.t().double()).to(dtype)
    torch.testing.assert_close(kernels.matmul(a, b.t()), expected, atol=1e-2, rtol=2e-2)


@triton.jit
def dropout_kernel(x_ptr, out_ptr, n, keep, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_ptr + at, mask=inside)
    kept = tl.rand(seed, at) < keep
    tl.store(out_ptr + at, tl.where(kept, x / keep, 0.0), mask=inside)


def test_low_memory_dropout() -> None:
    n = 10_000
    x = torch.rand(n) + 1.0

    def dropped(seed: int) -> Tensor:
        out = torch.full((n,), float("nan"))
        dropout_kernel[(triton.cdiv(n, 1024),)](x, out, n, 0.5, seed, BLOCK=1024)
        return out

    once, again, other = dropped(123), dropped(123), dropped(512)
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    kept = once != 0
    torch.testing.assert_close(once[kept], x[kept] / 0.5)
    assert 0.47 < kept.float().mean() < 0.53


@triton.jit
def layernorm_backward_kernel(
    dx_ptr, dy_ptr, dw_ptr, db_ptr, x_ptr, w_ptr, mean_ptr, rstd_ptr, locks_ptr, stride, columns,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    x = tl.load(x_ptr + row * stride + at, mask=inside, other=0.0)
    dy = tl.load(dy_ptr + row * stride + at, mask=inside, other=0.0)
    w = tl.load(w_ptr + at, mask=inside, other=0.0)
    mean = tl.load(mean_ptr + row)
    rstd = tl.load(rstd_ptr + row)
    normal = tl.where(inside, (x - mean) * rstd, 0.0)
    wdy = tl.where(inside, w * dy, 0.0)
    along = tl.sum(normal * wdy, axis=0) / columns
    across = tl.sum(wdy, axis=0) / columns
    tl.store(dx_ptr + row * stride + at, (wdy - normal * along - across) * rstd, mask=inside)
    # A lock protects each group's partial sums; the first program stores, the others add.
    group = row % GROUPS
    lock_ptr = locks_ptr + group
    count_ptr = locks_ptr + GROUPS + group
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    partial_w = dy * normal
    partial_b = dy
    if tl.load(count_ptr) == 0:
        tl.atomic_xchg(count_ptr, 1)
    else:
        partial_w += tl.load(dw_ptr + group * columns + at, mask=inside)
        partial_b += tl.load(db_ptr + group * columns + at, mask=inside)
    tl.store(dw_ptr + group * columns + at, partial_w, mask=inside)
    tl.store(db_ptr + group * columns + at, partial_b, mask=inside)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def sum_groups_kernel(
    dw_ptr, db_ptr, w_out, b_out, groups, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    dw = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    db = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, groups, ROWS):
        rows = first + tl.arange(0, ROWS)
        inside = (rows[:, None] < groups) & (at[None, :] < columns)
        where = rows[:, None] * columns + at[None, :]
        dw += tl.load(dw_ptr + where, mask=inside, other=0.0)
        db += tl.load(db_ptr + where, mask=inside, other=0.0)
    tl.store(w_out + at, tl.sum(dw, axis=0), mask=at < columns)
    tl.store(b_out + at, tl.sum(db, axis=0), mask=at < columns)


def test_layer_norm_forward_and_backward_with_locks() -> None:
    torch.manual_seed(0)
    rows, columns, groups = 151, 300, 8
    x, dy = torch.randn(rows, columns), torch.randn(rows, columns)
    weight, bias = torch.randn(columns), torch.randn(columns)
    out, mean, rstd = kernels.layernorm(x, weight, bias)

    dx = torch.empty_like(x)
    partial = torch.full((2, groups, columns), float("nan"))
    locks = torch.zeros(2 * groups, dtype=torch.int32)
    layernorm_backward_kernel[(rows,)](
        dx, dy, partial[0], partial[1], x, weight, mean, rstd, locks, x.stride(0), columns,
        GROUPS=groups, BLOCK=512,
    )  # fmt: skip
    dw, db = torch.empty(columns), torch.empty(columns)
    sum_groups_kernel[(triton.cdiv(columns, 128),)](
        partial[0], partial[1], dw, db, groups, columns, ROWS=4, COLUMNS=128
    )

    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    expected = functional.layer_norm(leaves[0], (columns,), leaves[1], leaves[2])
    expected.backward(dy)
    torch.testing.assert_close(out, expected.detach())
    for ours, leaf in zip((dx, dw, db), leaves, strict=True):
        torch.testing.assert_close(ours, leaf.grad, atol=1e-4, rtol=1e-4)
    assert locks[:groups].eq(0).all()
    assert locks[groups:].eq(1).all()


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("length", [128, 100])
def test_fused_attention(causal: bool, length: int) -> None:
    torch.manual_seed(length)
    q, k, v = (torch.randn(1, 2, length, 64, dtype=torch.float16) for _ in range(3))
    expected = functional.scaled_dot_product_attention(
        q.float(), k.float(), v.float(), is_causal=causal
    )
    out = kernels.attention(q, k, v, causal)
    torch.testing.assert_close(out, expected.half(), atol=2e-3, rtol=1e-2)


@triton.jit
def asin_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(out_ptr + at, libdevice.asin(x), mask=at < n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_libdevice_function(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.rand(3000, dtype=dtype) * 2 - 1
    out = torch.empty_like(x)
    asin_kernel[(triton.cdiv(3000, 1024),)](x, out, 3000, BLOCK=1024)
    # NumPy's, because now and then the first asin of a process that torch computes is imprecise.
    torch.testing.assert_close(out, torch.from_numpy(np.arcsin(x.double().numpy())).to(dtype))


@triton.jit
def grouped_gemm_kernel(
    a_ptrs, b_ptrs, c_ptrs, sizes_ptr, strides_ptr, count, PROGRAMS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    before = 0
    for problem in range(count):
        m = tl.load(sizes_ptr + problem * 3)
        n = tl.load(sizes_ptr + problem * 3 + 1)
        k = tl.load(sizes_ptr + problem * 3 + 2)
        tiles_n = tl.cdiv(n, BLOCK_N)
        tiles = tl.cdiv(m, BLOCK_M) * tiles_n
        while tile >= before and tile < before + tiles:
            lda = tl.load(strides_ptr + problem * 3)
            ldb = tl.load(strides_ptr + problem * 3 + 1)
            ldc = tl.load(strides_ptr + problem * 3 + 2)
            a_ptr = tl.load(a_ptrs + problem).to(tl.pointer_type(tl.float16))
            b_ptr = tl.load(b_ptrs + problem).to(tl.pointer_type(tl.float16))
            c_ptr = tl.load(c_ptrs + problem).to(tl.pointer_type(tl.float16))
            inner = tile - before
            rows = (inner // tiles_n) * BLOCK_M + tl.arange(0, BLOCK_M)
            columns = (inner % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N)
            total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            for start in range(0, k, BLOCK_K):
                depth = start + tl.arange(0, BLOCK_K)
                a = tl.load(
                    a_ptr + rows[:, None] * lda + depth[None, :],
                    mask=(rows[:, None] < m) & (depth[None, :] < k),
                    other=0.0,
                )
                b = tl.load(
                    b_ptr + depth[:, None] * ldb + columns[None, :],
                    mask=(depth[:, None] < k) & (columns[None, :] < n),
                    other=0.0,
                )
                total = tl.dot(a, b, total)
            inside = (rows[:, None] < m) & (columns[None, :] < n)
            tl.store(
                c_ptr + rows[:, None] * ldc + columns[None, :], total.to(tl.float16), mask=inside
            )
            tile += PROGRAMS
        before += tiles


def test_grouped_gemm_reads_pointers_from_memory() -> None:
    torch.manual_seed(0)
    shapes = [(64, 48, 32), (33, 70, 17), (128, 16, 64)]
    a = [torch.randn(m, k, dtype=torch.float16) for m, n, k in shapes]
    b = [torch.randn(k, n, dtype=torch.float16) for m, n, k in shapes]
    c = [torch.full((m, n), float("nan"), dtype=torch.float16) for m, n, k in shapes]
    pointers = [torch.tensor([t.data_ptr() for t in group]) for group in (a, b, c)]
    sizes = torch.tensor(shapes, dtype=torch.int32)
    strides = torch.tensor([[k, n, n] for m, n, k in shapes], dtype=torch.int32)
    grouped_gemm_kernel[(3,)](
        *pointers, sizes, strides, len(shapes), PROGRAMS=3, BLOCK_M=32, BLOCK_N=32, BLOCK_K=16
    )
    for left, right, ours in zip(a, b, c, strict=True):
        expected = (left.float() @ right.float()).half()
        torch.testing.assert_close(ours, expected, atol=1e-2, rtol=1e-2)


@triton.jit
def persistent_matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, PROGRAMS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, FLATTEN: tl.constexpr,
):  # fmt: skip
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, PROGRAMS, flatten=FLATTEN):
        tile_m, tile_n = kernels.grouped_tile(tile, tiles_m, tiles_n, GROUP)
        rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
        columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        safe_rows = tl.max_contiguous(tl.multiple_of(tl.where(rows < M, rows, 0), BLOCK_M), BLOCK_M)
        safe_columns = tl.where(columns < N, columns, 0)
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            at = step * BLOCK_K + depth
            a = tl.load(
                a_ptr + safe_rows[:, None] * K + at[None, :], mask=at[None, :] < K, other=0.0
            )
            b = tl.load(
                b_ptr + at[:, None] * N + safe_columns[None, :], mask=at[:, None] < K, other=0.0
            )
            total = tl.dot(a, b, total)
        inside = (rows[:, None] < M) & (columns[None, :] < N)
        tl.store(c_ptr + rows[:, None] * N + columns[None, :], total.to(tl.float16), mask=inside)


@pytest.mark.parametrize("programs", [1, 3])
def test_persistent_matmul(programs: int) -> None:
    torch.manual_seed(0)
    m, n, k = 100, 130, 70
    a, b = torch.randn(m, k, dtype=torch.float16), torch.randn(k, n, dtype=torch.float16)
    c = torch.full((m, n), float("nan"), dtype=torch.float16)
    persistent_matmul_kernel[(programs,)](
        a, b, c, m, n, k, PROGRAMS=programs, BLOCK_M=32, BLOCK_N=32, BLOCK_K=32, GROUP=2,
        FLATTEN=programs > 1,
    )  # fmt: skip
    torch.testing.assert_close(c, (a.float() @ b.float()).half(), atol=1e-2, rtol=1e-2)


@triton.jit
def scaled_matmul_kernel(
    a_ptr, a_scale_ptr, b_ptr, b_scale_ptr, c_ptr, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        depth = start + tl.arange(0, BLOCK_K)
        scales = start // 32 + tl.arange(0, BLOCK_K // 32)
        a = tl.load(a_ptr + rows[:, None] * K + depth[None, :])
        b = tl.load(b_ptr + depth[:, None] * N + columns[None, :])
        a_scale = tl.load(a_scale_ptr + rows[:, None] * (K // 32) + scales[None, :])
        b_scale = tl.load(b_scale_ptr + columns[:, None] * (K // 32) + scales[None, :])
        total = tl.dot_scaled(a, a_scale, "e4m3", b, b_scale, "e4m3", total)
    tl.store(c_ptr + rows[:, None] * N + columns[None, :], total)


def test_block_scaled_matmul() -> None:
    torch.manual_seed(0)
    m, n, k = 64, 64, 128
    a = torch.randn(m, k).to(torch.float8_e4m3fn)
    b = torch.randn(k, n).to(torch.float8_e4m3fn)
    a_scale = torch.randint(124, 131, (m, k // 32), dtype=torch.uint8)
    b_scale = torch.randint(124, 131, (n, k // 32), dtype=torch.uint8)
    c = torch.full((m, n), float("nan"))
    scaled_matmul_kernel[(2, 2)](
        a, a_scale, b, b_scale, c, n, k, BLOCK_M=32, BLOCK_N=32, BLOCK_K=64
    )

    def grown(scale: Tensor) -> Tensor:
        return torch.exp2(scale.double() - 127).repeat_interleave(32, dim=1)

    expected = (a.double() * grown(a_scale)) @ (b.double() * grown(b_scale).t())
    torch.testing.assert_close(c.double(), expected, atol=1e-3, rtol=1e-4)
