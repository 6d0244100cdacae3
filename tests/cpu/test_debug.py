"""Debugging: prints go to stdout, and a failed assertion raises in the caller, with its line."""

from __future__ import annotations

import re

import pytest
import torch
import triton
import triton.language as tl
from triton.compiler.errors import CompilationError, CompileTimeAssertionFailure

from tests.cpu.childprocess import line_of
from tzero.errors import KernelAssertion, TzeroError

BLOCK = 8


@triton.jit
def print_kernel(x_ptr, scale, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    x = tl.load(x_ptr + pid * BLOCK + tl.arange(0, BLOCK))
    tl.device_print("value", x)
    tl.device_print("both ", pid, scale)
    print("bits", pid + 42)


def test_device_print_shows_program_index_and_value(capfd: pytest.CaptureFixture[str]) -> None:
    x = torch.arange(2 * BLOCK, dtype=torch.int32) * 5 - 7
    print_kernel[(2,)](x, 1.5, BLOCK=BLOCK)
    lines = capfd.readouterr().out.splitlines()
    for pid in range(2):
        for i in range(BLOCK):
            wanted = rf"pid \({pid}, 0, 0\) idx \( ?{i}\) value ?: {x[pid * BLOCK + i]}$"
            assert sum(bool(re.match(wanted, line)) for line in lines) == 1, wanted
        both = rf"pid \({pid}, 0, 0\) idx \(\) both ?: \(operand "
        assert any(re.match(rf"{both}0\) {pid}$", line) for line in lines)
        assert any(re.match(rf"{both}1\) 1\.50*$", line) for line in lines)
        assert any(re.search(rf"bits ?: {pid + 42}$", line) for line in lines)
    assert len(lines) == 2 * (BLOCK + 3)


@triton.jit
def print_types_kernel(f_ptr, u_ptr, b_ptr):
    tl.device_print("single", tl.load(f_ptr))
    tl.device_print("half", tl.load(f_ptr).to(tl.float16))
    tl.device_print("brain", tl.load(f_ptr).to(tl.bfloat16))
    tl.device_print("unsigned", tl.load(u_ptr).to(tl.uint32))
    tl.device_print("byte", tl.load(u_ptr).to(tl.int8))
    tl.device_print("wide", tl.load(u_ptr).to(tl.int64) * (1 << 33))
    tl.device_print("flag", tl.load(b_ptr))
    tl.device_print("hex", tl.load(u_ptr), hex=True)
    tl.device_print("alone")


def test_device_print_of_every_kind_of_value(capfd: pytest.CaptureFixture[str]) -> None:
    values = torch.tensor([0.5]), torch.tensor([-2], dtype=torch.int32), torch.tensor([True])
    print_types_kernel[(1,)](*values)
    out = capfd.readouterr().out
    for name, value in [
        ("single", r"0\.50*"),
        ("half", r"0\.50*"),
        ("brain", r"0\.50*"),
        ("unsigned", "4294967294"),
        ("byte", "-2"),
        ("wide", str(-(2**34))),
        ("flag", "(1|True|true)"),
        ("hex", "0xfffffffe"),
    ]:
        assert re.search(rf"{name} ?: {value}$", out, re.MULTILINE), f"{name} in\n{out}"
    assert re.search(r"pid \(0, 0, 0\).*alone", out)


@triton.jit
def print_matrix_kernel(x_ptr, R: tl.constexpr, C: tl.constexpr):
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tl.device_print("cell", tl.load(x_ptr + at))


def test_device_print_of_a_matrix_shows_both_indices(capfd: pytest.CaptureFixture[str]) -> None:
    x = torch.arange(8, dtype=torch.float32).reshape(2, 4)
    print_matrix_kernel[(1,)](x, R=2, C=4)
    out = capfd.readouterr().out
    for i in range(2):
        for j in range(4):
            assert re.search(rf"idx \( ?{i}, ?{j}\) cell ?: {4 * i + j}\.?0*$", out, re.MULTILINE)


@triton.jit
def print_range_kernel(BLOCK: tl.constexpr):
    tl.device_print("i", tl.arange(0, BLOCK)[None, :])


def test_device_print_aligns_indices(capfd: pytest.CaptureFixture[str]) -> None:
    print_range_kernel[(1,)](BLOCK=128)
    lines = capfd.readouterr().out.splitlines()
    assert lines == [f"pid (0, 0, 0) idx (0, {i:3}) i: {i}" for i in range(128)]


@triton.jit(debug=True)
def assert_kernel(x_ptr, out_ptr, limit, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    tl.device_assert(x < limit, "x must stay below the limit")  # below the limit
    tl.store(out_ptr + at, x * 2)


def test_device_assert_raises_in_the_caller() -> None:
    x = torch.zeros(6 * BLOCK)
    x[4 * BLOCK + 3] = 100
    with pytest.raises(KernelAssertion) as caught:
        assert_kernel[(6,)](x, torch.zeros_like(x), 10.0, BLOCK=BLOCK)
    error = caught.value
    assert isinstance(error, AssertionError)
    assert isinstance(error, TzeroError)
    assert "x must stay below the limit" in error.message
    assert error.kernel == "assert_kernel"
    assert error.program == (4, 0, 0)
    assert error.file is not None
    assert error.file.endswith("test_debug.py")
    assert error.line == line_of(__file__, "below the limit")
    for part in ("x must stay below the limit", "assert_kernel", f"test_debug.py:{error.line}"):
        assert part in str(error)


def test_kernel_is_usable_after_a_failed_assertion() -> None:
    x, out = torch.full((6 * BLOCK,), 5.0), torch.zeros(6 * BLOCK)
    for _ in range(3):
        with pytest.raises(KernelAssertion):
            assert_kernel[(6,)](x, out, 1.0, BLOCK=BLOCK)
    assert_kernel[(6,)](x, out, 10.0, BLOCK=BLOCK)
    assert torch.equal(out, x * 2)


@triton.jit
def switched_kernel(x_ptr):
    tl.device_assert(tl.load(x_ptr) > 0, "positive")


def test_assertions_are_compiled_only_when_debugging() -> None:
    x = torch.tensor([-1.0])
    switched_kernel[(1,)](x)
    with pytest.raises(KernelAssertion, match="positive"):
        switched_kernel[(1,)](x, debug=True)
    switched_kernel[(1,)](x)


@triton.jit(debug=True)
def loop_kernel(x_ptr, out_ptr, rounds):
    total = 0.0
    for i in range(rounds):
        value = tl.load(x_ptr + i)
        assert value >= 0, "negative in the loop"  # in the loop
        total += value
        tl.store(out_ptr, total)


def test_assertion_inside_a_loop_stops_it() -> None:
    x, out = torch.tensor([1.0, 2.0, -3.0, 4.0]), torch.zeros(1)
    with pytest.raises(KernelAssertion, match="negative in the loop") as caught:
        loop_kernel[(1,)](x, out, 4)
    assert caught.value.line == line_of(__file__, "in the loop")
    assert out.item() == 3.0
    loop_kernel[(1,)](x, out, 2)
    assert out.item() == 3.0


@triton.jit(debug=True)
def masked_assert_kernel(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    tl.device_assert(x > 0, "positive where it counts", mask=at < n)


def test_masked_assertion_looks_only_at_its_lanes() -> None:
    x = torch.ones(BLOCK)
    x[5:] = -1
    masked_assert_kernel[(1,)](x, 5, BLOCK=BLOCK)
    with pytest.raises(KernelAssertion, match="where it counts"):
        masked_assert_kernel[(1,)](x, 6, BLOCK=BLOCK)


@triton.jit(noinline=True)
def checked_half(x):
    tl.device_assert(x % 2 == 0, "odd number")  # odd number
    return x // 2


@triton.jit(debug=True)
def calls_asserting_kernel(x_ptr, out_ptr):
    pid = tl.program_id(0)
    if pid > 0:
        tl.store(out_ptr + pid, checked_half(tl.load(x_ptr + pid)))


def test_assertion_inside_a_called_function() -> None:
    x = torch.tensor([7, 4, 6, 9], dtype=torch.int32)
    out = torch.zeros(4, dtype=torch.int32)
    calls_asserting_kernel[(3,)](x, out)
    assert out.tolist() == [0, 2, 3, 0]
    with pytest.raises(KernelAssertion, match="odd number") as caught:
        calls_asserting_kernel[(4,)](x, out)
    assert caught.value.line == line_of(__file__, "odd number")
    assert caught.value.program == (3, 0, 0)


@triton.jit(debug=True)
def two_asserts_kernel(a, b):
    tl.device_assert(a > 0, 'says "a" % 100\n of 1')
    tl.device_assert(b > 0, "")


def test_messages_may_hold_any_text_or_none() -> None:
    with pytest.raises(KernelAssertion) as caught:
        two_asserts_kernel[(1,)](-1, 2)
    assert 'says "a" % 100' in caught.value.message
    with pytest.raises(KernelAssertion) as caught:
        two_asserts_kernel[(1,)](5, -7)
    assert caught.value.message == ""


@triton.jit
def arithmetic_kernel(x_ptr, y_ptr, out_ptr, HOW: tl.constexpr):
    x, y = tl.load(x_ptr), tl.load(y_ptr)
    if HOW == "add":
        z = x + y  # the checked sum
    elif HOW == "sub":
        z = x - y
    else:
        z = x * y
    tl.store(out_ptr, z)


@pytest.mark.parametrize(
    ("how", "x", "y", "dtype"),
    [
        ("add", 2**31 - 1, 1, torch.int32),
        ("add", -(2**15), -1, torch.int16),
        ("add", 255, 1, torch.uint8),
        ("sub", -(2**31), 1, torch.int32),
        ("sub", 0, 1, torch.uint32),
        ("mul", 2**16, -(2**16), torch.int32),
    ],
)
def test_overflow_raises_when_debugging_and_wraps_otherwise(
    how: str, x: int, y: int, dtype: torch.dtype
) -> None:
    args = [torch.tensor([each], dtype=dtype) for each in (x, y, 0)]
    exact = {"add": x + y, "sub": x - y, "mul": x * y}[how]
    with pytest.raises(RuntimeError, match=f"overflow detected for operation {how}") as caught:
        arithmetic_kernel[(1,)](*args, HOW=how, debug=True)
    assert isinstance(caught.value, KernelAssertion)
    if how == "add":
        assert caught.value.line == line_of(__file__, "the checked sum")
    for options in ({}, {"debug": True, "sanitize_overflow": False}):
        arithmetic_kernel[(1,)](*args, HOW=how, **options)
        bits = 8 * dtype.itemsize
        assert (args[2].item() - exact) % 2**bits == 0


@triton.jit(debug=True)
def sums_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    tl.store(out_ptr + at, tl.cumsum(x))
    tl.store(out_ptr + BLOCK, tl.sum(x))
    tl.store(out_ptr + BLOCK + 1 + at, tl.sort(x))


def test_overflow_is_checked_inside_reductions() -> None:
    x, out = torch.arange(BLOCK, 0, -1, dtype=torch.int32), torch.zeros(2 * BLOCK + 1).int()
    sums_kernel[(1,)](x, out, BLOCK=BLOCK)
    assert torch.equal(out[:BLOCK], x.cumsum(0).int())
    assert out[BLOCK] == x.sum()
    assert torch.equal(out[BLOCK + 1 :], x.flip(0))
    x[5] = 2**31 - 3
    with pytest.raises(KernelAssertion, match="int32 overflow detected for operation add"):
        sums_kernel[(1,)](x, out, BLOCK=BLOCK)


@triton.jit
def static_kernel(out_ptr, BLOCK: tl.constexpr):
    tl.static_print("the block is", BLOCK)
    tl.static_assert(BLOCK % 4 == 0, "the block must be a multiple of 4")
    tl.store(out_ptr + tl.arange(0, BLOCK), tl.full((BLOCK,), 1.0, tl.float32))


def test_static_print_and_assert_speak_at_compile_time(
    capfd: pytest.CaptureFixture[str], tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    out = torch.zeros(8)
    static_kernel[(1,)](out, BLOCK=8)
    assert "the block is" in capfd.readouterr().out
    static_kernel[(1,)](out, BLOCK=8)
    assert "the block is" not in capfd.readouterr().out
    with pytest.raises((CompilationError, CompileTimeAssertionFailure), match="multiple of 4"):
        static_kernel[(1,)](out, BLOCK=2)
    static_kernel[(1,)](out, BLOCK=4)
    assert out.eq(1).all()
