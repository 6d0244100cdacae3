"""Checked mode: an access outside its tensor raises in the caller, with its location.

Tensors are views into larger buffers, so that a missed check shows in the buffer and not as a
crash. All kernels in this file are compiled in checked mode only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.cpu.childprocess import line_of, run_program
from tzero import settings
from tzero.errors import OutOfBounds, TzeroError

BLOCK = 32
CANARY = 77


@pytest.fixture(autouse=True, scope="module")
def checked() -> Iterator[None]:
    with settings.override(cpu_check=True):
        yield


def guarded(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """A tensor with canaries on both sides, and the whole buffer."""
    n = torch.Size(shape).numel()
    whole = torch.full((n + 128,), CANARY, dtype=dtype)
    view = whole[64 : 64 + n].view(shape)
    view.copy_(torch.arange(n).reshape(shape))
    return view, whole


def assert_unharmed(whole: Tensor) -> None:
    assert whole[:64].eq(CANARY).all()
    assert whole[-64:].eq(CANARY).all()


def assert_caught(
    error: OutOfBounds, kernel: str, argument: str, offset: int, marker: str | None = None
) -> None:
    assert isinstance(error, TzeroError)
    assert isinstance(error, IndexError)
    assert (error.kernel, error.argument, error.offset) == (kernel, argument, offset)
    for part in (kernel, argument, str(offset)):
        assert part in str(error)
    if marker is not None:
        assert error.file is not None
        assert error.file.endswith("test_checked.py")
        assert error.line == line_of(__file__, marker)
        assert f"test_checked.py:{error.line}" in str(error)


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)  # copy load
    tl.store(out_ptr + at, x, mask=at < n)  # copy store


def test_within_bounds_is_correct_and_masked_lanes_are_not_flagged() -> None:
    x, _ = guarded(100)
    out, whole = guarded(100)
    out.zero_()
    copy_kernel[(5,)](x, out, 100, BLOCK=BLOCK)
    assert torch.equal(out, x)
    assert_unharmed(whole)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.float32, torch.int64])
def test_load_past_the_end(dtype: torch.dtype) -> None:
    x = torch.zeros(200, dtype=dtype)[:100]
    out = torch.zeros(200, dtype=dtype)
    with pytest.raises(OutOfBounds) as caught:
        copy_kernel[(4,)](x, out, 101, BLOCK=BLOCK)
    assert_caught(caught.value, "copy_kernel", "x_ptr", 100, "copy load")
    assert caught.value.program == (3, 0, 0)
    assert caught.value.size == 100


def test_store_past_the_end_harms_nothing() -> None:
    x, _ = guarded(128)
    out, whole = guarded(100)
    with pytest.raises(OutOfBounds) as caught:
        copy_kernel[(4,)](x, out, 128, BLOCK=BLOCK)
    error = caught.value
    assert 100 <= error.offset < 128
    assert_caught(error, "copy_kernel", "out_ptr", error.offset, "copy store")
    assert_unharmed(whole)


def test_kernel_is_usable_after_being_caught() -> None:
    x, _ = guarded(100)
    out = torch.zeros(100)
    for _ in range(3):
        with pytest.raises(OutOfBounds):
            copy_kernel[(4,)](x, out, 120, BLOCK=BLOCK)
    copy_kernel[(4,)](x, out, 100, BLOCK=BLOCK)
    assert torch.equal(out, x)


def test_offsets_count_from_the_pointer_that_was_passed() -> None:
    base = torch.arange(100, dtype=torch.float32)
    with pytest.raises(OutOfBounds) as caught:
        copy_kernel[(1,)](base[90:], torch.zeros(BLOCK), 11, BLOCK=BLOCK)
    assert_caught(caught.value, "copy_kernel", "x_ptr", 10, "copy load")


def test_empty_tensor_may_not_be_touched() -> None:
    with pytest.raises(OutOfBounds) as caught:
        copy_kernel[(1,)](torch.zeros(8)[:0], torch.zeros(8), 1, BLOCK=BLOCK)
    assert_caught(caught.value, "copy_kernel", "x_ptr", 0)
    copy_kernel[(1,)](torch.zeros(8)[:0], torch.zeros(8), 0, BLOCK=BLOCK)


@triton.jit
def before_kernel(x_ptr, back):
    value = tl.load(x_ptr - back)  # before
    tl.store(x_ptr, value + 1)


def test_load_before_the_start() -> None:
    x, whole = guarded(10)
    before_kernel[(1,)](x, 0)
    assert x[0] == 1
    with pytest.raises(OutOfBounds) as caught:
        before_kernel[(1,)](x, 3)
    assert_caught(caught.value, "before_kernel", "x_ptr", -3, "before")
    assert_unharmed(whole)


@triton.jit
def far_kernel(x_ptr, far):
    tl.store(x_ptr + far.to(tl.int64) * 4, 1.0)


@pytest.mark.parametrize("far", [1 << 40, -(1 << 40), (1 << 61) - 1])
def test_offset_so_large_that_addresses_wrap(far: int) -> None:
    with pytest.raises(OutOfBounds):
        far_kernel[(1,)](torch.zeros(8), far)


@triton.jit
def matrix_kernel(x_ptr, out_ptr, rows, columns, stride, R: tl.constexpr, C: tl.constexpr):
    i = tl.arange(0, R)[:, None]
    j = tl.arange(0, C)[None, :]
    inside = (i < rows) & (j < columns)
    x = tl.load(x_ptr + i * stride + j, mask=inside, other=0.0)  # matrix load
    tl.store(out_ptr + i * C + j, x)


def test_matrix_with_gaps_between_its_rows() -> None:
    base, whole = guarded(10, 20)
    x, out = base[2:8, 3:15], torch.zeros(8, 16)
    matrix_kernel[(1,)](x, out, 6, 12, 20, R=8, C=16)
    assert torch.equal(out[:6, :12], x)
    with pytest.raises(OutOfBounds) as caught:
        matrix_kernel[(1,)](x, out, 7, 12, 20, R=8, C=16)
    assert_caught(caught.value, "matrix_kernel", "x_ptr", 6 * 20, "matrix load")
    assert_unharmed(whole)


def test_broadcast_tensor_has_one_row() -> None:
    x = torch.arange(16, dtype=torch.float32)
    out = torch.zeros(8, 16)
    matrix_kernel[(1,)](x.expand(8, 16), out, 8, 16, 0, R=8, C=16)
    assert torch.equal(out, x.expand(8, 16))
    with pytest.raises(OutOfBounds):
        matrix_kernel[(1,)](x.expand(8, 16), out, 8, 16, 16, R=8, C=16)


@triton.jit
def gather_kernel(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    index = tl.load(index_ptr + at, mask=at < n, other=0)
    x = tl.load(x_ptr + index, mask=at < n)  # gather
    tl.store(out_ptr + at, x, mask=at < n)


def test_bad_index_is_named() -> None:
    x, out = torch.arange(50.0), torch.zeros(BLOCK)
    index = torch.randint(0, 50, (BLOCK,))
    gather_kernel[(1,)](x, index, out, BLOCK, BLOCK=BLOCK)
    assert torch.equal(out, x[index])
    index[17] = 51
    with pytest.raises(OutOfBounds) as caught:
        gather_kernel[(1,)](x, index, out, BLOCK, BLOCK=BLOCK)
    assert_caught(caught.value, "gather_kernel", "x_ptr", 51, "gather")
    gather_kernel[(1,)](x, index, out, 17, BLOCK=BLOCK)


@triton.jit
def loop_kernel(x_ptr, out_ptr, rounds, BLOCK: tl.constexpr):
    pointers = x_ptr + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for _ in range(rounds):
        total += tl.load(pointers)  # loop load
        pointers += BLOCK
    tl.store(out_ptr + tl.arange(0, BLOCK), total)


def test_pointer_that_moves_through_a_loop() -> None:
    x, out = torch.randn(4, BLOCK), torch.zeros(BLOCK)
    loop_kernel[(1,)](x, out, 4, BLOCK=BLOCK)
    torch.testing.assert_close(out, x.sum(0))
    with pytest.raises(OutOfBounds) as caught:
        loop_kernel[(1,)](x, out, 5, BLOCK=BLOCK)
    assert_caught(caught.value, "loop_kernel", "x_ptr", 4 * BLOCK, "loop load")


@triton.jit
def chosen_kernel(a_ptr, b_ptr, out_ptr, flag, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    if flag > 0:  # noqa: SIM108
        source = a_ptr + 1
    else:
        source = b_ptr + 2
    tl.store(out_ptr + at, tl.load(source + at, mask=at < n), mask=at < n)


def test_pointer_chosen_between_two_arguments() -> None:
    a, b = torch.arange(20.0), -torch.arange(10.0)
    out = torch.zeros(BLOCK)
    chosen_kernel[(1,)](a, b, out, 5, 19, BLOCK=BLOCK)
    assert torch.equal(out[:19], a[1:])
    chosen_kernel[(1,)](a, b, out, -5, 8, BLOCK=BLOCK)
    assert torch.equal(out[:8], b[2:])
    with pytest.raises(OutOfBounds) as caught:
        chosen_kernel[(1,)](a, b, out, 5, 20, BLOCK=BLOCK)
    assert_caught(caught.value, "chosen_kernel", "a_ptr", 20)
    with pytest.raises(OutOfBounds) as caught:
        chosen_kernel[(1,)](a, b, out, -5, 9, BLOCK=BLOCK)
    assert_caught(caught.value, "chosen_kernel", "b_ptr", 10)


@triton.jit
def mixed_tile_kernel(a_ptr, b_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    source = tl.where(at % 2 == 0, a_ptr + at // 2, b_ptr + at // 2)
    tl.store(out_ptr + at, tl.load(source, mask=at < n), mask=at < n)


def test_tile_of_pointers_into_two_arguments() -> None:
    a, b = torch.arange(16.0), -torch.arange(1, 13.0)
    out = torch.zeros(BLOCK)
    mixed_tile_kernel[(1,)](a, b, out, 24, BLOCK=BLOCK)
    assert torch.equal(out[:24], torch.stack([a[:12], b], dim=1).flatten())
    with pytest.raises(OutOfBounds) as caught:
        mixed_tile_kernel[(1,)](a, b, out, 26, BLOCK=BLOCK)
    assert_caught(caught.value, "mixed_tile_kernel", "b_ptr", 12)


@triton.jit
def atomic_kernel(x_ptr, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    if OP == "add":
        tl.atomic_add(x_ptr + at, 1, mask=at < n)
    elif OP == "xchg":
        tl.atomic_xchg(x_ptr + n - 1, 1)
    else:
        tl.atomic_cas(x_ptr + n - 1, 0, 1)


@pytest.mark.parametrize("op", ["add", "xchg", "cas"])
def test_atomics_are_checked(op: str) -> None:
    x, whole = guarded(20, dtype=torch.int32)
    atomic_kernel[(2,)](x, 20, OP=op, BLOCK=BLOCK)
    with pytest.raises(OutOfBounds) as caught:
        atomic_kernel[(1,)](x, 21, OP=op, BLOCK=BLOCK)
    assert_caught(caught.value, "atomic_kernel", "x_ptr", 20)
    assert_unharmed(whole)


@triton.jit
def descriptor_kernel(source, target, row, R: tl.constexpr):
    target.store([row, 0], source.load([row, 0]) + 1)


def test_descriptor_clips_before_the_check() -> None:
    x, out = torch.randn(20, 16), torch.zeros(20, 16)
    blocks = [16, 16]
    source, target = (TensorDescriptor.from_tensor(t, blocks) for t in (x, out))
    descriptor_kernel[(1,)](source, target, 16, R=16)
    torch.testing.assert_close(out[16:], x[16:] + 1)
    assert not out[:16].any()


def test_descriptor_larger_than_its_tensor_is_caught() -> None:
    x = torch.randn(40, 16)[:20]
    out, whole = guarded(20, 16)
    source = TensorDescriptor(x, [20, 16], [16, 1], [16, 16])
    target = TensorDescriptor(out, [30, 16], [16, 1], [16, 16])
    with pytest.raises(OutOfBounds) as caught:
        descriptor_kernel[(1,)](source, target, 16, R=16)
    assert caught.value.kernel == "descriptor_kernel"
    assert caught.value.offset == 20 * 16
    assert "target" in caught.value.argument
    assert_unharmed(whole)


@triton.jit
def device_descriptor_kernel(x_ptr, out_ptr, rows, R: tl.constexpr, C: tl.constexpr):
    source = tl.make_tensor_descriptor(x_ptr, [rows, C], [C, 1], [R, C])
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tl.store(out_ptr + at, source.load([0, 0]))


def test_descriptor_made_in_the_kernel_is_checked() -> None:
    x, out = torch.randn(10, 16), torch.zeros(16, 16)
    device_descriptor_kernel[(1,)](x, out, 10, R=16, C=16)
    assert torch.equal(out[:10], x)
    with pytest.raises(OutOfBounds) as caught:
        device_descriptor_kernel[(1,)](x, out, 11, R=16, C=16)
    assert_caught(caught.value, "device_descriptor_kernel", "x_ptr", 160)


@triton.jit(noinline=True)
def load_at(ptr, index):
    return tl.load(ptr + index)  # in a function


@triton.jit
def function_kernel(x_ptr, y_ptr, out_ptr, index):
    tl.store(out_ptr, load_at(x_ptr, index) + load_at(y_ptr, 0))


def test_access_inside_a_called_function() -> None:
    x, y, out = torch.arange(10.0), torch.arange(1.0), torch.zeros(1)
    function_kernel[(1,)](x, y, out, 9)
    assert out.item() == 9
    with pytest.raises(OutOfBounds) as caught:
        function_kernel[(1,)](x, y, out, 10)
    assert_caught(caught.value, "function_kernel", "x_ptr", 10, "in a function")


@triton.jit(noinline=True)
def moved(ptr, by):
    return ptr + by


@triton.jit
def moved_kernel(x_ptr, out_ptr, rounds, past):
    source, target = moved(moved(x_ptr, 1), past), moved(out_ptr, 0)
    for _ in range(rounds):
        tl.store(target, tl.load(source))  # of moved pointers
        target = moved(target, 1)
        source = moved(source, 1)


def test_pointers_returned_by_a_function_belong_to_its_argument() -> None:
    x, out = torch.arange(5.0), torch.zeros(4)
    moved_kernel[(1,)](x, out, 4, 0)
    assert out.tolist() == [1, 2, 3, 4]
    for target, past, argument, offset in ((out, 1, "x_ptr", 5), (out[:3], 0, "out_ptr", 3)):
        with pytest.raises(OutOfBounds) as caught:
            moved_kernel[(1,)](x, target, 4, past)
        assert_caught(caught.value, "moved_kernel", argument, offset, "of moved pointers")


@triton.jit
def from_memory_kernel(table_ptr, out_ptr):
    pid = tl.program_id(0)
    ptr = tl.load(table_ptr + pid).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr + pid, tl.load(ptr))


def test_pointer_of_unknown_origin_is_used_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # it warns when it compiles
    tensors = [torch.full((1,), float(i)) for i in range(4)]
    table = torch.tensor([t.data_ptr() for t in tensors])
    out = torch.zeros(4)
    with pytest.warns(UserWarning, match="from_memory_kernel: checked mode cannot check"):
        from_memory_kernel[(4,)](table, out)
    assert out.tolist() == [0, 1, 2, 3]


@triton.jit
def tuple_kernel(pair, index):
    tl.store(pair[1], tl.load(pair[0] + index))


def test_tensor_inside_a_tuple_is_checked() -> None:
    x, out = torch.arange(10.0), torch.zeros(1)
    tuple_kernel[(1,)]((x, out), 9)
    assert out.item() == 9
    with pytest.raises(OutOfBounds) as caught:
        tuple_kernel[(1,)]((x, out), 12)
    assert "pair" in caught.value.argument
    assert caught.value.offset == 12


@triton.jit
def block_pointer_kernel(x_ptr, out_ptr, rows, R: tl.constexpr, C: tl.constexpr):
    x = tl.make_block_ptr(x_ptr, (rows, C), (C, 1), (0, 0), (R, C), (1, 0))
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tl.store(out_ptr + at, tl.load(x, boundary_check=(0,), padding_option="zero"))


@pytest.mark.until_triton("3.9")
def test_block_pointer_is_checked() -> None:
    x, out = torch.randn(10, 16), torch.zeros(16, 16)
    block_pointer_kernel[(1,)](x, out, 10, R=16, C=16)
    assert torch.equal(out[:10], x)
    with pytest.raises(OutOfBounds) as caught:
        block_pointer_kernel[(1,)](x, out, 13, R=16, C=16)
    assert_caught(caught.value, "block_pointer_kernel", "x_ptr", 160)


@triton.jit
def wide_grid_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    at = pid * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.exp(tl.load(x_ptr + at, mask=at < n, other=0.0)), mask=at < n)


def test_one_bad_program_among_many_on_threads() -> None:
    n = 40 * 25 * 256
    x, (out, whole) = torch.zeros(n), guarded(n - 1)
    with pytest.raises(OutOfBounds) as caught:
        wide_grid_kernel[(40, 25)](x, out, n, BLOCK=256)
    assert_caught(caught.value, "wide_grid_kernel", "out_ptr", n - 1)
    assert caught.value.program == (39, 24, 0)
    assert_unharmed(whole)


def test_environment_variable_turns_checked_mode_on(tmp_path: Path) -> None:
    program = """
        import torch, triton, triton.language as tl
        from tzero.errors import OutOfBounds

        @triton.jit
        def kernel(x_ptr, n):
            tl.store(x_ptr + tl.program_id(0), 1.0, mask=tl.program_id(0) < n)

        whole = torch.zeros(16)
        kernel[(8,)](whole[:5], 5)
        try:
            kernel[(8,)](whole[:5], 6)
            print("not caught")
        except OutOfBounds as error:
            print("caught", error.kernel, error.argument, error.offset, error.line)
        print(whole.tolist() == [1.0] * 5 + [0.0] * 11)

        from tzero import settings
        with settings.override(cpu_check=False):
            triton.jit(kernel.fn)[(8,)](whole[:5], 6)  # a new function, compiled again
        print(whole.tolist() == [1.0] * 6 + [0.0] * 10)
    """
    done = run_program(tmp_path, program, TZERO_CPU_CHECK="1")
    assert done.stdout.splitlines() == ["caught kernel x_ptr 5 7", "True", "True"]
