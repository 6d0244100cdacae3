"""Rows about grids, and about the other ways to a launch: run, warmup, autotune, heuristics."""

from __future__ import annotations

import numpy
import pytest
import torch
import triton
from triton.runtime.jit import MockTensor

from tests.launches import kernels
from tests.launches.looking import VERSION, is_fast, warm
from tests.launches.row import table
from tests.launches.rows_arguments import GRID, floats, integers

ROWS = table()
row = ROWS.add


def programs(kernel, grid, out):
    """How many programs a grid makes, seen in memory."""
    out.zero_()
    kernel[grid](out)
    values = out.tolist()
    count = max(values)
    assert values == [*range(1, count + 1), *([0] * (len(values) - count))]
    return count


@row("grid")
def the_grid_of_each_launch_counts(make, device):
    kernel, out = make(kernels.count_programs), integers(device, 64)
    warm(kernel, lambda: kernel[(2,)](out))
    for grid, count in (
        ((3,), 3),
        ((2, 3), 6),
        ((2, 3, 4), 24),
        ([5], 5),
        ((1, 1, 7), 7),
        ((2, 2, 2, 9), 8),  # Triton looks at three
        (torch.Size([4]), 4),
        ((2,), 2),
    ):
        for _ in range(2):
            assert programs(kernel, grid, out) == count


@row("grid")
def a_grid_of_nothing_launches_nothing(make, device):
    kernel, out = make(kernels.count_programs), integers(device)
    warm(kernel, lambda: kernel[(2,)](out))
    for grid in ((0,), (2, 0), (0, 1, 1), (2, 1, 0)):
        assert programs(kernel, grid, out) == 0
    assert programs(kernel, (2,), out) == 2


@row("grid")
def a_list_as_grid_may_change(make, device):
    kernel, out = make(kernels.count_programs), integers(device)
    grid = [2]
    launch = kernel[grid]
    warm(kernel, lambda: launch(out))
    grid[0] = 5
    out.zero_()
    launch(out)
    assert max(out.tolist()) == 5
    grid.append(0)
    out.zero_()
    launch(out)
    assert not out.any()


@row()
def numbers_of_other_libraries_are_grids(make, device):
    kernel, out = make(kernels.count_programs), integers(device)
    warm(kernel, lambda: kernel[(2,)](out))
    for grid, count in (
        ((numpy.int64(3),), 3),
        ((torch.tensor(4),), 4),
        ((numpy.int32(5), 1), 5),
        ((True,), 1),
        ((2, True), 2),
    ):
        for _ in range(2):
            assert programs(kernel, grid, out) == count


class Size:
    """Counts as a number, and cannot be hashed: as a symbolic integer of torch's cannot."""

    __hash__ = None

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, Size) and self.value == other.value

    def __index__(self):
        return self.value


@row()
def a_grid_need_not_be_hashable(make, device):
    kernel, out = make(kernels.count_programs), integers(device)
    warm(kernel, lambda: kernel[(2,)](out))
    size = Size(3)
    assert programs(kernel, [size], out) == 3
    assert programs(kernel, (size,), out) == 3
    size.value = 4
    assert programs(kernel, (size, 1), out) == 4


@row()
def a_tensor_in_a_grid_is_read_at_each_launch(make, device):
    kernel, out = make(kernels.count_programs), integers(device)
    size = torch.tensor(2)
    launch = kernel[(size,)]
    warm(kernel, lambda: launch(out))
    size.fill_(5)
    out.zero_()
    launch(out)
    assert max(out.tolist()) == 5


@row()
def what_is_no_grid_is_refused_as_by_triton(make, device):
    kernel, out = make(kernels.count_programs), integers(device)
    warm(kernel, lambda: kernel[(1,)](out))
    for grid, error in (
        ((1.0,), TypeError),
        ((2.5,), TypeError),
        (("2",), TypeError),
        ((None,), TypeError),
        ((1, 1.0), TypeError),
        ((2**31,), OverflowError),
        ((2**80,), OverflowError),
        ((), IndexError),
        (2, TypeError),
        (None, AssertionError if VERSION < (3, 7) else TypeError),
        (lambda meta: 2, TypeError),
        (lambda meta: (1.0,), TypeError),
    ):
        out.zero_()
        for _ in range(2):
            with pytest.raises(error):
                kernel[grid](out)
        assert not out.any()
    assert programs(kernel, (1,), out) == 1


@row()
def a_negative_grid_is_what_the_backend_makes_of_it(make, device):
    kernel, out = make(kernels.count_programs), integers(device)
    plain = triton.jit(kernels.count_programs)
    warm(kernel, lambda: kernel[(2,)](out))
    for grid in ((-1,), (2, -1), (-2, -2)):
        answers = []
        for each in (plain, kernel):
            out.zero_()
            try:
                each[grid](out)
                answers.append(out.tolist())
            except Exception as error:
                answers.append(f"{type(error).__name__}: {error}")
        assert answers[0] == answers[1]


@row("grid")
def a_grid_function_is_asked_at_each_launch_with_all_arguments(make, device):
    kernel = make(kernels.double)
    x = torch.ones(64, device=device)
    seen = []

    def grid(meta):
        seen.append(dict(meta))
        return (-(-meta["n"] // meta["BLOCK"]),)

    warm(kernel, lambda: kernel[grid](x, 8))
    assert seen[-1] == {"x": x, "n": 8, "BLOCK": 8}
    x.fill_(1.0)
    kernel[grid](x, 24)
    assert x.tolist() == [2.0] * 24 + [1.0] * 40
    x.fill_(1.0)
    kernel[grid](x, 60, BLOCK=16)
    assert x.tolist() == [2.0] * 60 + [1.0] * 4
    assert len(seen) == 5 and seen[-1]["BLOCK"] == 16


@row("grid")
def a_grid_function_may_answer_otherwise_each_time(make, device):
    kernel, out = make(kernels.count_programs), integers(device)
    sizes = [2]
    launch = kernel[lambda meta: tuple(sizes)]
    warm(kernel, lambda: launch(out))
    for sizes[:] in ([3], [2, 2], [1], [0], [2, 1, 4]):
        out.zero_()
        launch(out)
        expected = sizes[0] * (sizes[1] if len(sizes) > 1 else 1) * (sizes[2:] or [1])[0]
        assert max(out.tolist()) == expected


@row()
def a_grid_function_may_keep_and_change_what_it_is_given(make, device):
    kernel, out = make(kernels.put), integers(device)
    kept = []

    def grid(meta):
        kept.append(meta)
        value = meta["value"]
        meta["value"] = 1000
        return (1 if value else 0,)

    warm(kernel, lambda: kernel[grid](out, 7))
    kernel[grid](out, 9)
    # Triton hands over the very dict that it launches from.
    assert out[0].item() == 1000
    assert kept[0] is not kept[1]


@row()
def a_grid_function_may_launch(make, device):
    kernel, out = make(kernels.put), integers(device)
    x = torch.ones(8, device=device)
    double = make(kernels.double)
    warm(double, lambda: double[GRID](x, 8))

    def grid(meta):
        double[GRID](x, 8)
        if meta["value"] > 3:
            kernel[grid](out[1:], meta["value"] - 2)  # itself, too
        return (1,)

    warm(kernel, lambda: kernel[grid](out, 3))
    x.fill_(1.0)
    kernel[grid](out, 7)
    assert out.tolist()[:2] == [7, 5]
    assert x.tolist() == [8.0] * 8


@row()
def a_grid_function_that_raises_is_heard_and_leaves_the_kernel_usable(make, device):
    kernel, out = make(kernels.put), integers(device)
    fail = []

    def grid(meta):
        if fail:
            raise LookupError("no grid today")
        return (1,)

    warm(kernel, lambda: kernel[grid](out, 7))
    fail.append(True)
    for _ in range(2):
        with pytest.raises(LookupError, match="no grid today"):
            kernel[grid](out, 9)
    assert out[0].item() == 7
    fail.clear()
    kernel[grid](out, 9)
    assert out[0].item() == 9


@row()
def a_launcher_may_be_kept_and_called_later(make, device):
    kernel, out = make(kernels.put), integers(device)
    launch = kernel[GRID]
    warm(kernel, lambda: launch(out, 7))
    for value in (1, 16, 2.5, 9):
        launch(out, value)
        assert out[0].item() == int(value)
    assert (kernel[(1,)] is kernel[(1,)]) is is_fast(kernel)
    assert kernel[(1,)] is not kernel[(2,)]
    assert kernel[(1,)] is not kernel[(True,)]


@row()
def thousands_of_grids_are_all_right(make, device):
    kernel, out = make(kernels.count_programs), integers(device, 8)
    warm(kernel, lambda: kernel[(1,)](out))
    for size in range(3000):
        kernel[(1 + size % 8, 1, 1, size)](out)  # equal to Triton, and another tuple
    assert programs(kernel, (5,), out) == 5


# -- other ways to a launch ----------------------------------------------------------------------


@row()
def run_is_a_launch_and_returns_the_compiled_kernel(make, device):
    kernel, out = make(kernels.put), integers(device)
    binary = warm(kernel, lambda: kernel[GRID](out, 7))
    assert type(binary).__name__ == "CompiledKernel"
    assert kernel.run(out, 9, grid=GRID, warmup=False) is binary
    assert out[0].item() == 9
    assert kernel.run(out, value=11, grid=lambda meta: (1,), warmup=False) is binary
    assert out[0].item() == 11
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'warmup'"):
        kernel.run(out, 9, grid=GRID)
    binary[(1, 1, 1)](out, 13)  # what was compiled can be launched by itself
    assert out[0].item() == 13


@row()
def warmup_compiles_and_launches_nothing(make, device):
    kernel, out = make(kernels.put), integers(device)
    compiled = kernel.warmup(torch.int64, 7, grid=GRID)
    assert kernel.run(MockTensor(torch.int64), 7, grid=GRID, warmup=True) is compiled
    assert not out.any()
    assert warm(kernel, lambda: kernel[GRID](out, 7)) is compiled
    assert kernel.warmup(torch.int64, 9, grid=GRID) is compiled
    assert out[0].item() == 7
    other = kernel.warmup(torch.int64, 16, grid=GRID)
    assert other is not compiled and kernel[GRID](out, 32) is other


@row()
def autotuning_works_as_with_triton(make, device):
    kernel = make(kernels.fill)
    out = integers(device, 100)
    tuned = triton.autotune(
        configs=[triton.Config({"BLOCK": size}) for size in (8, 16)],
        key=["n"],
        do_bench=lambda call, quantiles: [call() and 0.0, 0.0, 0.0],
    )(kernel)
    seen = []

    def grid(meta):
        seen.append(meta["BLOCK"])
        return (-(-meta["n"] // meta["BLOCK"]),)

    for value in (3, 4, 5, 16, 1):
        for n in (100, 33):
            out.zero_()
            tuned[grid](out, value, n)
            assert out.tolist() == [value] * n + [0] * (100 - n)
    assert set(seen) == {8, 16}


@row()
def heuristics_work_as_with_triton(make, device):
    kernel = make(kernels.fill)
    out = integers(device, 100)
    chosen = triton.heuristics({"BLOCK": lambda args: 8 if args["n"] < 50 else 32})(kernel)
    for n, size in ((20, 8), (60, 32), (20, 8), (100, 32), (21, 8)):
        out.zero_()
        binary = chosen[lambda meta: (-(-meta["n"] // meta["BLOCK"]),)](out, 5, n)
        assert out.tolist() == [5] * n + [0] * (100 - n)
        assert binary.src.constants[(3,)] == size


@row()
def launches_of_two_kernels_of_one_function_are_their_own(make, device):
    one, other = make(kernels.put), make(kernels.put)
    out = floats(device)
    first = warm(one, lambda: one[GRID](out, 7))
    second = warm(other, lambda: other[GRID](out, 7))
    assert first is not second
    assert one[GRID](out, 9) is first and other[GRID](out, 11) is second
    assert out[0].item() == 11.0
