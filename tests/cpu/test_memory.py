"""Memory: addressing, element types, large tiles, grids and scalar arguments."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

BLOCK = 64

DTYPES = [
    torch.bool, torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32,
    torch.int64, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
]  # fmt: skip


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def random_bytes(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Random bit patterns, including NaNs."""
    torch.manual_seed(n)
    if dtype is torch.bool:
        return torch.randint(0, 2, (n,), dtype=torch.uint8).view(torch.bool)
    size = torch.empty((), dtype=dtype).element_size()
    return torch.randint(0, 256, (n * size,), dtype=torch.uint8).view(dtype)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@triton.jit
def constant_kernel(x_ptr: tl.const, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at) + tl.load(x_ptr))


def test_pointers_may_be_constant() -> None:
    x, out = torch.arange(BLOCK) + 1.5, torch.zeros(BLOCK)
    constant_kernel[(1,)](x, out, BLOCK=BLOCK)
    assert torch.equal(out, x + 1.5)


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_copy_keeps_every_bit_of_every_type(dtype: torch.dtype) -> None:
    n = 3 * BLOCK - 5
    x, out = random_bytes(n, dtype), torch.zeros(4 * BLOCK, dtype=dtype)
    copy_kernel[(4,)](x, out, n, BLOCK=BLOCK)
    assert same_bytes(out[:n], x)
    assert not out.view(torch.uint8)[n * x.element_size() :].any()


@triton.jit
def scalar_copy_kernel(x_ptr, out_ptr):
    pid = tl.program_id(0)
    tl.store(out_ptr + pid, tl.load(x_ptr + pid))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int16, torch.bfloat16, torch.float64])
def test_scalar_loads_and_stores(dtype: torch.dtype) -> None:
    x = random_bytes(9, dtype)
    out = torch.zeros_like(x)
    scalar_copy_kernel[(9,)](x, out)
    assert same_bytes(out, x)


@triton.jit
def compare_kernel(x_ptr, out_ptr, not_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    positive = tl.load(x_ptr + at, mask=at < n) > 0
    tl.store(out_ptr + at, positive, mask=at < n)
    tl.store(not_ptr + at, ~positive, mask=at < n)


def test_bool_tensors_hold_zeros_and_ones_only() -> None:
    x = torch.randn(BLOCK - 3)
    out, inverse = (torch.zeros(BLOCK - 3, dtype=torch.bool) for _ in range(2))
    compare_kernel[(1,)](x, out, inverse, BLOCK - 3, BLOCK=BLOCK)
    assert torch.equal(out, x > 0)
    assert torch.equal(inverse, x <= 0)
    assert set(inverse.view(torch.uint8).tolist()) == {0, 1}


@triton.jit
def bool_select_kernel(mask_ptr, x_ptr, out_ptr, flag, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    mask = tl.load(mask_ptr + at)
    x = tl.load(x_ptr + at, mask=mask, other=-1.0)
    tl.store(out_ptr + at, tl.where(mask & flag, x, x - 1))


@pytest.mark.parametrize("flag", [False, True])
def test_bool_tensor_as_mask_and_bool_argument(flag: bool) -> None:
    mask, x, out = torch.rand(BLOCK) > 0.5, torch.randn(BLOCK), torch.zeros(BLOCK)
    bool_select_kernel[(1,)](mask, x, out, flag, BLOCK=BLOCK)
    kept = torch.where(mask, x, -1.0)
    torch.testing.assert_close(out, torch.where(mask & flag, kept, kept - 1))


@triton.jit
def strided_2d_kernel(
    x_ptr, out_ptr, rows, columns, sx0, sx1, so0, so1, R: tl.constexpr, C: tl.constexpr
):
    i = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    j = tl.program_id(1) * C + tl.arange(0, C)[None, :]
    inside = (i < rows) & (j < columns)
    x = tl.load(x_ptr + i * sx0 + j * sx1, mask=inside)
    tl.store(out_ptr + i * so0 + j * so1, x, mask=inside)


@pytest.mark.parametrize("layout", ["rows", "columns", "every other", "broadcast"])
def test_strided_matrices(layout: str) -> None:
    base = torch.randn(40, 70)
    x = {
        "rows": base,
        "columns": torch.randn(70, 40).t(),
        "every other": torch.randn(80, 140)[::2, ::2],
        "broadcast": torch.randn(40, 1).expand(40, 70),
    }[layout]
    out = torch.zeros(70, 40).t() if layout == "rows" else torch.zeros(40, 70)
    strided_2d_kernel[(3, 5)](x, out, 40, 70, *x.stride(), *out.stride(), R=16, C=16)
    assert torch.equal(out, x)


@triton.jit
def reversed_kernel(last_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(last_ptr - at, mask=at < n), mask=at < n)


def test_negative_offsets_walk_backwards() -> None:
    x, out = torch.arange(BLOCK, dtype=torch.float32), torch.zeros(BLOCK)
    reversed_kernel[(1,)](x[-1:], out, BLOCK, BLOCK=BLOCK)
    assert torch.equal(out, x.flip(0))


@triton.jit
def negative_stride_kernel(x_ptr, out_ptr, start, stride, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + start + at * stride, mask=at < n), mask=at < n)


def test_negative_stride_argument() -> None:
    n = 100
    x, out = torch.arange(n, dtype=torch.int64), torch.zeros(n, dtype=torch.int64)
    negative_stride_kernel[(2,)](x, out, n - 1, -1, n, BLOCK=BLOCK)
    assert torch.equal(out, x.flip(0))


@triton.jit
def gather_scatter_kernel(x_ptr, from_ptr, to_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    source = tl.load(from_ptr + at, mask=inside, other=0)
    target = tl.load(to_ptr + at, mask=inside, other=0)
    tl.store(out_ptr + target, tl.load(x_ptr + source, mask=inside), mask=inside)


@pytest.mark.parametrize("index", [torch.int32, torch.int64, torch.uint8])
def test_gather_and_scatter_by_loaded_indices(index: torch.dtype) -> None:
    n = 200
    x, out = torch.randn(n), torch.full((n,), float("nan"))
    source, target = torch.randperm(n), torch.randperm(n)
    gather_scatter_kernel[(4,)](x, source.to(index), target.to(index), out, n, BLOCK=BLOCK)
    expected = torch.empty(n)
    expected[target] = x[source]
    assert torch.equal(out, expected)


@triton.jit
def wild_when_masked_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK).to(tl.int64)
    inside = at % 3 == 1
    wild = tl.where(inside, at, at * (1 << 40) - (1 << 50))
    x = tl.load(x_ptr + wild, mask=inside, other=7.0)
    tl.store(out_ptr + wild, x + 1, mask=inside)
    tl.store(out_ptr + BLOCK + at, x)


def test_masked_off_lanes_never_touch_memory() -> None:
    x, out = torch.randn(BLOCK), torch.zeros(2, BLOCK)
    wild_when_masked_kernel[(1,)](x, out, BLOCK=BLOCK)
    inside = torch.arange(BLOCK) % 3 == 1
    assert torch.equal(out[0], torch.where(inside, x + 1, 0.0))
    assert torch.equal(out[1], torch.where(inside, x, 7.0))


@pytest.mark.parametrize("offset", [0, 1, 3, 7])
def test_unaligned_tensors(offset: int) -> None:
    n = 2 * BLOCK
    x = torch.randn(n + 8)[offset : offset + n]
    whole = torch.zeros(n + 8)
    copy_kernel[(2,)](x, whole[offset : offset + n], n, BLOCK=BLOCK)
    assert torch.equal(whole[offset : offset + n], x)
    assert not whole[:offset].any()
    assert not whole[offset + n :].any()


def test_elements_not_aligned_to_their_own_size() -> None:
    raw = torch.arange(0, 4 * BLOCK + 8, dtype=torch.int64).to(torch.uint8)
    pointer = raw[1:].data_ptr()
    out = torch.zeros(BLOCK, dtype=torch.int32)
    odd_address_kernel[(1,)](pointer, out, BLOCK=BLOCK)
    expected = raw[1 : 1 + 4 * BLOCK].clone().view(torch.int32)
    assert torch.equal(out, expected)


@triton.jit
def odd_address_kernel(address, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x_ptr = address.to(tl.int64).to(tl.pointer_type(tl.int32))
    tl.store(out_ptr + at, tl.load(x_ptr + at))


@triton.jit
def modifiers_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a = tl.load(x_ptr + at, cache_modifier=".ca", eviction_policy="evict_first")
    b = tl.load(x_ptr + at, cache_modifier=".cg", eviction_policy="evict_last")
    c = tl.load(x_ptr + at, volatile=True)
    d = tl.load(x_ptr + at, cache_modifier=".cv")
    tl.store(out_ptr + at, a + b + c + d, cache_modifier=".wb", eviction_policy="evict_first")
    tl.store(out_ptr + BLOCK + at, a, cache_modifier=".cs")
    tl.store(out_ptr + 2 * BLOCK + at, a, cache_modifier=".wt")


def test_cache_modifiers_and_volatile_change_no_value() -> None:
    x, out = torch.randn(BLOCK), torch.zeros(3, BLOCK)
    modifiers_kernel[(1,)](x, out, BLOCK=BLOCK)
    torch.testing.assert_close(out, torch.stack([x * 4, x, x]))


@triton.jit
def hints_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    tl.assume(n > 0)
    at = tl.max_contiguous(tl.multiple_of(tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), BLOCK), 4)
    tl.debug_barrier()
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n, other=0), mask=at < n)


def test_hints_change_no_value() -> None:
    x, out = torch.randn(100), torch.zeros(100)
    hints_kernel[(2,)](x, out, 100, BLOCK=BLOCK)
    assert torch.equal(out, x)


@triton.jit
def grid_kernel(out_ptr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    nx, ny, nz = tl.num_programs(0), tl.num_programs(1), tl.num_programs(2)
    place = ((z * ny + y) * nx + x) * 6
    tl.store(out_ptr + place, x)
    tl.store(out_ptr + place + 1, y)
    tl.store(out_ptr + place + 2, z)
    tl.store(out_ptr + place + 3, nx)
    tl.store(out_ptr + place + 4, ny)
    tl.store(out_ptr + place + 5, nz)


@pytest.mark.parametrize(
    "grid", [(1,), (7,), (5, 3), (2, 3, 4), (1, 1, 9), (1, 6), (300, 5, 7), (3, 70, 40)], ids=str
)
def test_program_ids_and_counts_in_every_axis(grid: tuple[int, ...]) -> None:
    nx, ny, nz = (*grid, 1, 1)[:3]
    out = torch.full((nz, ny, nx, 6), -1, dtype=torch.int32)
    grid_kernel[grid](out)
    z, y, x = torch.meshgrid(*(torch.arange(n) for n in (nz, ny, nx)), indexing="ij")
    sizes = [torch.full_like(x, n) for n in (nx, ny, nz)]
    assert torch.equal(out, torch.stack([x, y, z, *sizes], dim=-1).int())


@pytest.mark.parametrize("grid", [(0,), (0, 5), (4, 0), (2, 3, 0)], ids=str)
def test_empty_grid_runs_nothing(grid: tuple[int, ...]) -> None:
    out = torch.full((64,), -1, dtype=torch.int32)
    grid_kernel[grid](out)
    assert out.eq(-1).all()


@triton.jit
def huge_tile_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    total = tl.sum(x, axis=0)
    y = x - tl.max(x, axis=0)
    tl.store(out_ptr + at, tl.exp(y) + total * 0, mask=at < n)


def test_tile_too_large_for_any_stack() -> None:
    n = (1 << 20) - 3
    x, out = torch.randn(n), torch.zeros(1 << 20)
    huge_tile_kernel[(1,)](x, out, n, BLOCK=1 << 20)
    expected = torch.from_numpy(np.exp((x - x.max()).double().numpy())).float()
    torch.testing.assert_close(out[:n], expected)
    assert not out[n:].any()


@triton.jit
def many_large_tiles_kernel(x_ptr, out_ptr, rounds, R: tl.constexpr, C: tl.constexpr):
    pid = tl.program_id(0)
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    a = tl.load(x_ptr + at)
    b = a + pid
    c = tl.trans(a)
    for _ in range(rounds):
        a, b = b, a
        c = c * 0.5
    tl.store(out_ptr + pid * R * C + at, a - b + tl.trans(c))


def test_large_tiles_carried_through_loops_on_several_threads() -> None:
    side = 512
    x = torch.randn(side, side)
    out = torch.zeros(4, side, side)
    many_large_tiles_kernel[(4,)](x, out, 3, R=side, C=side)
    pid = torch.arange(4.0)[:, None, None]
    torch.testing.assert_close(out, (x + pid) - x + x * 0.125, atol=1e-5, rtol=1e-5)


@triton.jit
def wide_offsets_kernel(x_ptr, out_ptr, far, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + far + at - far))


def test_64_bit_offsets() -> None:
    x, out = torch.randn(BLOCK), torch.zeros(BLOCK)
    wide_offsets_kernel[(1,)](x, out, 1 << 45, BLOCK=BLOCK)
    assert torch.equal(out, x)


@triton.jit
def pointer_table_kernel(table_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    pointers = tl.load(table_ptr + at).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr + at, tl.load(pointers))


def test_tile_of_pointers_loaded_from_memory() -> None:
    tensors = [torch.randn(1) for _ in range(BLOCK)]
    table = torch.tensor([t.data_ptr() for t in tensors])
    out = torch.zeros(BLOCK)
    pointer_table_kernel[(1,)](table, out, BLOCK=BLOCK)
    assert torch.equal(out, torch.cat(tensors))


@triton.jit
def pointer_arithmetic_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr, (x_ptr + 5).to(tl.int64) - x_ptr.to(tl.int64))
    bits = (x_ptr + at).to(tl.int64) + 4
    moved = bits.to(tl.pointer_type(tl.float32), bitcast=True)
    tl.store(out_ptr + 1 + at, tl.load(moved, mask=at < BLOCK - 1, other=0.0).to(tl.int64))


def test_pointers_as_integers_and_back() -> None:
    x = torch.arange(BLOCK, dtype=torch.float32)
    out = torch.zeros(BLOCK + 1, dtype=torch.int64)
    pointer_arithmetic_kernel[(1,)](x, out, BLOCK=BLOCK)
    assert out.tolist() == [20, *range(1, BLOCK), 0]


@triton.jit
def block_pointer_kernel(
    x_ptr, out_ptr, rows, columns, stride, R: tl.constexpr, C: tl.constexpr, PAD: tl.constexpr
):
    x = tl.make_block_ptr(x_ptr, (rows, columns), (stride, 1), (0, 0), (R, C), (1, 0))
    out = tl.make_block_ptr(out_ptr, (R, 4 * C), (4 * C, 1), (0, 0), (R, C), (1, 0))
    for _ in range(4):
        tl.store(out, tl.load(x, boundary_check=(0, 1), padding_option=PAD))
        x = tl.advance(x, (0, C))
        out = tl.advance(out, (0, C))


@pytest.mark.covers("tl.make_block_ptr", "fp32")
@pytest.mark.until_triton("3.9")
@pytest.mark.parametrize("padding", ["zero", "nan"])
def test_block_pointers_with_boundary_checks(padding: str) -> None:
    x, out = torch.randn(13, 50), torch.full((16, 64), 5.0)
    block_pointer_kernel[(1,)](x, out, 13, 50, 50, R=16, C=16, PAD=padding)
    expected = torch.full((16, 64), 0.0 if padding == "zero" else float("nan"))
    expected[:13, :50] = x
    torch.testing.assert_close(out, expected, equal_nan=True)


@triton.jit
def scalar_arguments_kernel(out_ptr, a, b, c, d, e, f):
    tl.store(out_ptr + 0, a.to(tl.float64))
    tl.store(out_ptr + 1, b.to(tl.float64))
    tl.store(out_ptr + 2, c.to(tl.float64))
    tl.store(out_ptr + 3, d.to(tl.float64))
    tl.store(out_ptr + 4, e.to(tl.float64))
    tl.store(out_ptr + 5, f.to(tl.float64))


def test_scalar_arguments_of_every_kind() -> None:
    values = [-7, 2**40 + 1, 2**63 + 2048, 0.1, True, -(2**31)]
    out = torch.zeros(6, dtype=torch.float64)
    scalar_arguments_kernel[(1,)](out, *values)
    expected = [-7.0, 2.0**40 + 1, 2.0**63 + 2048, torch.tensor(0.1).item(), 1.0, -(2.0**31)]
    assert out.tolist() == expected


@triton.jit
def typed_scalar_kernel(out_ptr, a: tl.float64, b: tl.int8, c: tl.uint16, d: tl.float16):
    tl.store(out_ptr + 0, a)
    tl.store(out_ptr + 1, b.to(tl.float64))
    tl.store(out_ptr + 2, c.to(tl.float64))
    tl.store(out_ptr + 3, d.to(tl.float64))


def test_annotated_scalar_arguments_keep_their_type() -> None:
    out = torch.zeros(4, dtype=torch.float64)
    typed_scalar_kernel[(1,)](out, 0.1, -5, 65535, 0.1)
    assert out.tolist() == [0.1, -5.0, 65535.0, torch.tensor(0.1).half().item()]
