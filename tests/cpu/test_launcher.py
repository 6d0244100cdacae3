"""The launcher: how arguments reach a kernel, and which are rejected before it runs."""

from __future__ import annotations

import ctypes
import gc
import math
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.runtime.jit import reinterpret
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.cpu.handwritten import COUNT, COUNTERS, RAISE, RAISING, SITES, Kernel
from tzero.cpu import driver, loading, toolchain
from tzero.errors import KernelAssertion

# ---- hooks --------------------------------------------------------------------------------------


def test_when_a_launch_raises_the_exit_hook_is_not_called() -> None:
    """As with Triton's GPU launchers."""
    seen: list[str] = []
    kernel = Kernel(RAISE, RAISING, cpu_sites=SITES)
    with pytest.raises(KernelAssertion):
        kernel(
            (1, 1, 1),
            torch.zeros(1),
            0,
            0,
            enter=lambda facts: seen.append(f"in {facts}"),
            exit=lambda facts: seen.append("out"),
        )
    assert seen == ["in facts"]


def test_hooks_run_around_the_kernel() -> None:
    seen: list[int] = []
    counts, where = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
    note = lambda _: seen.append(int(counts[0]))  # noqa: E731
    Kernel(COUNT, COUNTERS)((1, 1, 1), counts, where, enter=note, exit=note)
    assert seen == [0, 1]


# ---- checked mode -------------------------------------------------------------------------------

SPANS = """
    struct { int64_t *out; } const *a = launch->args;
    int64_t n = sizeof(uintptr_t[2]) * 7;
    memcpy(a->out, launch->spans, (size_t)n);
"""


def test_checked_mode_passes_the_bytes_of_each_tensor() -> None:
    class Address:
        def data_ptr(self) -> int:
            return 4096

    out = torch.zeros(14, dtype=torch.int64)
    base = torch.zeros(8, 10)
    view = base[1:7:2, 2:5]
    names = ("out", "view", "empty", "null", "raw", "object", "n")
    signature = dict.fromkeys(names[:-1], "*i64") | {"n": "i64"}
    empty = torch.empty(0, 5)
    Kernel(SPANS, signature, cpu_check=True)((1, 1, 1), out, view, empty, None, 4096, Address(), 5)
    first = base.data_ptr() + 12 * 4
    assert out.view(7, 2).tolist() == [
        [out.data_ptr(), out.data_ptr() + 14 * 8],
        [first, first + (2 * 20 + 2) * 4 + 4],
        [empty.data_ptr(), empty.data_ptr()],
        [0, 0],
        [0, -1],
        [0, -1],
        [0, 0],
    ]


def test_without_checked_mode_there_are_no_spans() -> None:
    body = "struct { int64_t *out; } const *a = launch->args; a->out[0] = launch->spans == 0;"
    out = torch.zeros(1, dtype=torch.int64)
    Kernel(body, {"out": "*i64"})((1, 1, 1), out)
    assert out.item() == 1


# ---- arguments ----------------------------------------------------------------------------------


def bytes_passed(types_: dict[str, Any], args: tuple[Any, ...], count: int) -> bytes:
    """The first bytes of `args` in a kernel with these parameters (after `out`)."""
    body = "memcpy(*(void *const *)launch->args, (const char *)launch->args + 8, COUNT);"
    out = torch.zeros(count, dtype=torch.uint8)
    Kernel(body.replace("COUNT", str(count)), {"out": "*u8"} | types_)((1, 1, 1), out, *args)
    return bytes(out.tolist())


SCALARS = [
    ("u1", True, "?", True),
    ("i8", -128, "b", -128),
    ("u8", 255, "B", 255),
    ("i16", -(2**15), "h", -(2**15)),
    ("u16", 2**16 - 1, "H", 2**16 - 1),
    ("i32", -(2**31), "i", -(2**31)),
    ("u32", 2**32 - 1, "I", 2**32 - 1),
    ("i64", -(2**63), "q", -(2**63)),
    ("u64", 2**64 - 1, "Q", 2**64 - 1),
    ("fp16", -1.5, "e", -1.5),
    ("bf16", -1.5, "H", 0xBFC0),
    ("bf16", 1e300, "H", 0x7F80),
    ("bf16", -1e300, "H", 0xFF80),
    ("fp32", 0.1, "f", 0.1),
    ("fp32", 3, "f", 3.0),
    ("fp32", -1e300, "f", -math.inf),
    ("fp32", math.inf, "f", math.inf),
    ("fp64", 0.1, "d", 0.1),
]


@pytest.mark.parametrize(("type_", "value", "code", "stored"), SCALARS)
def test_scalars_are_passed_as_their_declared_type(
    type_: str, value: Any, code: str, stored: Any
) -> None:
    size = struct.calcsize(code)
    assert bytes_passed({"a": type_}, (value,), size) == struct.pack(code, stored)


def test_arguments_are_laid_out_as_a_c_struct_without_constants() -> None:
    types_ = {"a": "i8", "b": "constexpr", "c": "i32", "d": "u1", "e": "fp64", "f": "constexpr"}
    found = bytes_passed(types_, (-1, "x", 7, True, 2.5, None), 24)
    assert found[:1] + found[4:9] + found[16:] == struct.pack("=bi?d", -1, 7, True, 2.5)


@pytest.mark.parametrize(
    ("type_", "value"),
    [("i8", 128), ("u8", -1), ("i32", 2**31), ("u32", 2**32), ("i64", 2**63), ("fp16", 1e6)],
)
def test_a_number_that_does_not_fit_is_an_error_that_names_the_argument(
    type_: str, value: Any
) -> None:
    with pytest.raises(OverflowError, match=f"test_kernel: argument 'size' is {value}.*{type_}"):
        bytes_passed({"size": type_}, (value,), 1)


def test_a_number_of_the_wrong_kind_is_an_error_that_names_the_argument() -> None:
    with pytest.raises(TypeError, match=r"argument 'size' must be .* i32; it is a str"):
        bytes_passed({"size": "i32"}, ("7",), 1)


def test_pointers_come_from_tensors_objects_addresses_and_none() -> None:
    class Holder:
        def __init__(self, address: int) -> None:
            self.address = address

        def data_ptr(self) -> int:
            return self.address

    x = torch.zeros(4)
    parameter = torch.nn.Parameter(x)
    wrapped = reinterpret(x, triton.language.int32)
    for value in (x, parameter, wrapped, Holder(x.data_ptr()), x.data_ptr()):
        assert bytes_passed({"x": "*fp32"}, (value,), 8) == struct.pack("P", x.data_ptr())
    assert bytes_passed({"x": "*fp32"}, (None,), 8) == bytes(8)


def test_a_tensor_on_another_device_is_an_error_that_names_the_argument() -> None:
    with pytest.raises(ValueError, match="test_kernel: argument 'x' is on device meta"):
        bytes_passed({"x": "*fp32"}, (torch.zeros(4, device="meta"),), 8)


def test_an_object_that_is_no_pointer_is_an_error_that_names_the_argument() -> None:
    with pytest.raises(TypeError, match=r"test_kernel: argument 'x' .* it is a list"):
        bytes_passed({"x": "*fp32"}, ([1.0],), 8)


def test_tuples_are_flattened_and_named() -> None:
    types_ = {"a": ("i32", ("constexpr", "i64")), "b": "i32"}
    found = bytes_passed(types_, ((1, (None, 2)), 3), 20)
    assert found[:4] + found[8:] == struct.pack("=iqi", 1, 2, 3)
    with pytest.raises(OverflowError, match=r"argument 'a\[1\]\[1\]' is"):
        bytes_passed(types_, ((1, (None, 2**70)), 3), 20)


@pytest.mark.parametrize("inside_tuple", [False, True])
def test_descriptors_are_flattened_as_the_rewrite_to_pointers_does(inside_tuple: bool) -> None:
    x = torch.zeros(6, 8)
    described = TensorDescriptor.from_tensor(x, [2, 4], padding="nan")
    type_: Any = "tensordesc<fp32[2, 4]>"
    rounds = hasattr(described, "round_f32_to_tf32")
    layout = struct.Struct("@P4q?" + "?" * rounds + "2i2q")
    values = [x.data_ptr(), 6, 8, 8, 1, True, *([False] * rounds), 6, 8, 8, 1]
    types_ = {"d": (type_, "i32") if inside_tuple else type_}
    argument = (described, 5) if inside_tuple else described
    found = bytes_passed(types_, (argument,), layout.size)
    assert list(layout.unpack(found)) == values


def test_a_kernel_with_other_parameters_than_triton_passes_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"test_kernel: .*\['i32'\].*\['i64'\]"):
        Kernel(COUNT, {"n": "i32"}, cpu_params=["i64"])


# ---- shared objects -----------------------------------------------------------------------------


def test_objects_loaded_and_unloaded_in_turn_are_not_mistaken_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for number in range(6):
        binary = toolchain.find().build(f"int f(void) {{ return {number}; }}", "f", optimization=0)
        first, second = loading.open_object(binary), loading.open_object(binary)
        loading.close_object(first)
        assert second.f() == number
        loading.close_object(second)
    assert list(tmp_path.iterdir()) == []


def test_the_types_of_a_function_are_its_object_s_own() -> None:
    binary = toolchain.find().build("double f(double x) { return x / 2; }", "f", optimization=0)
    typed, plain = loading.open_object(binary), loading.open_object(binary)
    assert typed.f is not plain.f
    typed.f.restype, typed.f.argtypes = ctypes.c_double, [ctypes.c_double]
    assert typed.f(3) == 1.5
    assert plain.f.restype is ctypes.c_int
    assert plain.f.argtypes is None
    for each in (typed, plain):
        loading.close_object(each)


def test_kernels_resolve_the_c_librarys_math_functions() -> None:
    body = (
        "double sinh(double); struct { double *x; } const *a = launch->args; *a->x = sinh(*a->x);"
    )
    x = torch.ones(1, dtype=torch.float64)
    Kernel(body, {"x": "*fp64"})((1, 1, 1), x)
    assert x.item() == pytest.approx(math.sinh(1))


def test_a_dropped_launcher_and_library_leave_nothing_behind() -> None:
    kernel = Kernel(COUNT, COUNTERS)
    counts, where = torch.zeros(4, dtype=torch.int32), torch.zeros(4, dtype=torch.int64)
    kernel((4, 1, 1), counts, where)
    address = ctypes.cast(kernel.library.tz_kernel, ctypes.c_void_p).value
    assert address == kernel.function
    driver.CPUDriver().utils.unload_module(kernel.library)
    del kernel
    gc.collect()
    maps = Path("/proc/self/maps")
    if maps.exists():
        ranges = [line.split()[0].split("-") for line in maps.read_text().splitlines()]
        assert not any(int(lo, 16) <= address < int(hi, 16) for lo, hi in ranges)
