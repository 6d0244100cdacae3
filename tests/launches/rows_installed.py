"""Rows about launches that `tzero.install` makes besides those of kernels: of compiled kernels by
themselves, and through heuristics.

A row gets a device, and runs with Triton's own functions and with the native ones in their place.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy
import pytest
import torch
import triton
from triton import knobs
from triton.compiler.compiler import CompiledKernel
from triton.runtime.driver import driver

import tzero
from tests.launches import kernels
from tests.launches.row import table
from tests.launches.rows_arguments import Mine, Pointer, floats, integers

ROWS = table()
row = ROWS.add

GRID = (1, 1, 1)


def compiled(function, *args, **options):
    """The binary of a launch, which has been launched by itself too."""
    made = triton.jit(function)[GRID](*args, **options)
    for _ in range(2):
        made[GRID](*args)
    return made


# -- compiled kernels ------------------------------------------------------------------------------


@row()
def a_compiled_kernel_is_launched_with_what_it_is_given(device):
    x, y = torch.arange(33.0, device=device), floats(device, 33)
    kernel = compiled(kernels.copy, x, y, 33, 32)
    for count in (33, 5, 1, 16):
        y.zero_()
        assert kernel[(2, 1, 1)](x, y, count, 32) is None
        assert y.tolist() == [*range(count), *[0.0] * (33 - count)]
    kernel[(0, 1, 1)](x, y.zero_(), 33, 32)
    assert not y.any()
    kernel[(2, 1, 1)](x, y, 33, "whatever a constant is")
    assert torch.equal(x, y)


@row()
def too_few_arguments_are_refused_as_by_triton(device):
    out = integers(device)
    kernel = compiled(kernels.put, out, 7)
    with pytest.raises((TypeError, ValueError, IndexError)) as refused:
        kernel[GRID](out)
    assert "tzero" not in str(refused.type)
    kernel[GRID](out, 9)
    assert out[0].item() == 9


@row()
def values_of_all_kinds_are_what_triton_makes_of_them(device):
    out = floats(device)
    kernel = compiled(kernels.put, out, 2.5)
    for value in (3.5, 7, True, -0.0, float("inf")):
        kernel[GRID](out, value)
        assert out[0].item() == float(value)
    whole = integers(device)
    number = compiled(kernels.put, whole, 7)
    for value in (9, -(2**31), True, 1, 16):
        number[GRID](whole, value)
        assert whole[0].item() == int(value)
    for value in (2**31, 2.5, "text", None):
        with pytest.raises((TypeError, OverflowError)):
            number[GRID](whole, value)
    for target in (whole.as_subclass(Mine), Pointer(whole), torch.nn.Parameter(whole, False)):
        whole.zero_()
        number[GRID](target, 5)
        assert whole[0].item() == 5
    number[GRID](whole.data_ptr(), 6)
    number[GRID](whole[1:], 8)
    assert whole.tolist()[:2] == [6, 8]


@row()
def the_grid_is_read_when_it_is_launched(device):
    out = integers(device, 24)
    kernel = compiled(kernels.count_programs, out)
    grid = [2, 1, 1]
    launch = kernel[grid]
    grid[:] = (3, 2, 2)
    launch(out.zero_())
    assert out.tolist() == [*range(1, 13), *[0] * 12]
    for sizes in ((2, 1, 1, 5), (numpy.int64(2), 1, 1), (True, 2, 1)):
        kernel[sizes](out.zero_())
        assert out.tolist() == [1, 2, *[0] * 22]
    for sizes in ((2,), (2, 1), ()):
        with pytest.raises(IndexError):
            kernel[sizes](out)
    with pytest.raises(TypeError):
        kernel[None](out)


@row()
def a_stream_may_be_given(device):
    out = integers(device)
    kernel = compiled(kernels.put, out, 7)
    stream = driver.active.get_current_stream(driver.active.get_current_device())
    kernel[GRID](out, 9, stream=stream)
    assert out[0].item() == 9
    with pytest.raises(TypeError, match="unexpected keyword argument 'value'"):
        kernel[GRID](out, value=11)


@row("compiled_hooks")
def hooks_attached_late_see_launches_of_a_compiled_kernel(device):
    out, seen = integers(device), []
    kernel = compiled(kernels.put, out, 7)
    launch = kernel[GRID]

    def enter(metadata: Any) -> None:
        seen.append((metadata.get()["name"], out[0].item()))

    knobs.runtime.launch_enter_hook.add(enter)
    launch(out, 9)
    kernel[GRID](out, 11)
    assert seen == [("put", 7), ("put", 9)]
    knobs.runtime.launch_enter_hook.remove(enter)
    knobs.runtime.launch_exit_hook.add(lambda metadata: seen.append("exit"))
    launch(out, 13)
    assert seen[2:] == ["exit"] and out[0].item() == 13


@row("compiled_hooks")
def hooks_see_the_metadata_of_a_compiled_kernel(device):
    out, seen = integers(device), []

    def metadata(grid, metadata, args):
        return {"flops": args["value"] * grid[0]}

    made = triton.jit(kernels.put, launch_metadata=metadata)[GRID](out, 7)
    for _ in range(3):
        made[GRID](out, 7)
    knobs.runtime.launch_enter_hook.add(lambda lazy: seen.append(lazy.get()["flops"]))
    made[(2, 1, 1)](out, 9)
    assert seen == [18]


@row("compiled_attributes")
def another_launcher_of_a_compiled_kernel_is_called(device):
    out, seen = integers(device), []
    kernel = compiled(kernels.put, out, 7)
    own, launch = kernel._run, kernel[GRID]
    kernel._run = lambda *given: (seen.append(given[:3]), own(*given))
    launch(out, 9)
    kernel[GRID](out, 11)
    assert seen == [GRID] * 2 and out[0].item() == 11
    kernel._run = own
    launch(out, 13)
    assert len(seen) == 2 and out[0].item() == 13


@row("compiled_attributes")
def metadata_of_its_own_is_asked_of_a_compiled_kernel(device):
    out, seen = integers(device), []
    kernel = compiled(kernels.put, out, 7)
    kernel.launch_metadata = lambda grid, stream, *args: seen.append(grid)
    kernel[GRID](out, 9)
    del kernel.launch_metadata
    kernel[GRID](out, 11)
    assert seen == [GRID] and out[0].item() == 11


@row("compiled_class")
def a_changed_class_of_compiled_kernels_is_seen(device):
    out, seen = integers(device), []
    kernel = compiled(kernels.put, out, 7)
    own = CompiledKernel.launch_metadata

    def metadata(self, *given):
        seen.append(self)
        return own(self, *given)

    CompiledKernel.launch_metadata = metadata
    try:
        kernel[GRID](out, 9)
    finally:
        CompiledKernel.launch_metadata = own
    kernel[GRID](out, 11)
    assert seen == [kernel] and out[0].item() == 11


@row("compiled_driver")
def the_driver_of_the_moment_is_asked_for_its_stream(device):
    out, seen = integers(device), []
    kernel = compiled(kernels.put, out, 7)
    first = driver.active

    def asked(device):
        seen.append(device)
        return first.get_current_stream(device)

    other = type(first)()
    other.get_current_stream = asked  # CUDA's driver has its functions in the instance too
    driver.set_active(other)
    kernel[GRID](out, 9)
    driver.set_active(first)
    kernel[GRID](out, 11)
    assert len(seen) == 1 and out[0].item() == 11


@row()
def a_failed_assertion_in_a_compiled_kernel_raises(device):
    out = integers(device)
    kernel = compiled(kernels.checked, out, 7, debug=True)
    if device.type == "cuda":
        return  # the process could not go on
    with pytest.raises(tzero.errors.KernelAssertion, match="n is too large"):
        kernel[GRID](out, 100)
    kernel[GRID](out, 9)
    assert out[0].item() == 9


@row()
def a_copy_of_a_compiled_kernel_has_its_own_attributes(device):
    out, seen = integers(device), []
    kernel = compiled(kernels.put, out, 7)
    other = copy.copy(kernel)
    other[GRID](out, 9)
    other._run = lambda *given: seen.append(given[-1])
    other[GRID](out, 11)
    kernel[GRID](out, 13)
    other[GRID](out, 15)
    assert seen == [11, 15] and out[0].item() == 13
    beside = vars(kernel).get("_tzero_beside")
    assert pickle.loads(pickle.dumps(beside)) is None
    assert copy.deepcopy(beside) is beside


@row()
def a_compiled_kernel_that_takes_a_tuple_is_launched(device):
    out = floats(device)
    kernel = compiled(kernels.numbers, out, (7, 8))
    kernel[GRID](out, (3, 5))
    assert out.tolist()[:2] == [3.0, 5.0]


# -- heuristics ------------------------------------------------------------------------------------


def looking(seen, change=None):
    """Heuristics that note what they are given."""

    def first(given):
        seen.append(("first", dict(given)))
        if change is not None:
            change(given)
        return 5

    def second(given):
        seen.append(("second", dict(given)))
        return given["A"] * 10 + given.get("b", 0)

    return triton.heuristics({"A": first, "b": second})(triton.jit(kernels.positional_defaults))


@row()
def a_heuristic_gets_what_the_one_before_computed(device):
    out, seen = integers(device), []
    kernel = looking(seen)
    for _ in range(3):
        kernel[(1,)](out, num_warps=2)
        assert out[0].item() == 5 * 100 + 50 * 10
    for name, given in seen:
        extra = {} if name == "first" else {"A": 5}
        expected = {"out": out, "grid": (1,), "warmup": False, "num_warps": 2, **extra}
        assert list(given) == list(expected) and all(given[k] is expected[k] for k in ("out",))


@row("heuristics_dict")
def what_a_heuristic_does_to_its_arguments_is_its_own(device):
    out, seen = integers(device), []
    kernel = looking(seen, lambda given: given.update(b=7, mine=8))
    for _ in range(2):
        kernel[(1,)](out)
    assert out[0].item() == 5 * 100 + 50 * 10
    assert all("mine" not in given for name, given in seen)


@row("heuristics_dict")
def what_a_heuristic_keeps_stays_as_it_was(device):
    out, seen, kept = integers(device), [], []
    kernel = looking(seen, kept.append)
    for _ in range(2):
        kernel[(1,)](out)
    assert all("A" not in given and "b" not in given for given in kept) and len(kept) == 2
