"""Launches of kernels, each with the answer it must give: one function for each row of the matrix.

Enters: what launches, so that the caller can say who compiles. Leaves: nothing, or an assertion
about a wrong answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
import triton

from bench import kernels as programs
from tests.backends import triton_zoo as zoo
from tests.launches import kernels as guards
from tests.plans import kernels as plans
from tests.rows import Rows


class Launch(Protocol):
    def __call__(self, kernel: Any, grid: Any, /, *args: Any, **options: Any) -> None: ...


class Row(NamedTuple):
    """Launches through `launch`, and checks what they computed."""

    name: str
    check: Callable[[Launch], None]


ROWS = Rows(Row)
row = ROWS.add()


def _is(got: torch.Tensor, *expected: float) -> None:
    torch.testing.assert_close(got, torch.tensor(expected, dtype=got.dtype))


@row
def guards_copy_and_double(launch: Launch) -> None:
    x, y = torch.arange(8.0), torch.zeros(8)
    launch(guards.copy, (1,), x, y, 8, BLOCK=8)
    launch(guards.double, (1,), y, 8)
    torch.testing.assert_close(y, 2 * x)


@row
def guards_numbers(launch: Launch) -> None:
    out = torch.zeros(4)
    for kernel, value in ((guards.put, 7), (guards.put, 1), (guards.put_wide, 16)):
        launch(kernel, (1,), out, value)
        _is(out[:1], value)
    launch(guards.put_if_any, (1,), out, None)
    _is(out[:1], -1)
    launch(guards.put_if_any, (1,), out, 2.5)
    _is(out[:1], 2.5)
    launch(guards.numbers, (1,), out, (3, 4.0))
    _is(out[:2], 3, 4)
    launch(guards.positional_defaults, (1,), out)
    _is(out[:1], 230)


@row
def guards_constants(launch: Launch) -> None:
    out = torch.zeros(2)
    for value in (3, -0.0, float("inf"), 0.1, True, 2**40):
        launch(guards.give, (1,), out, VALUE=value)
        _is(out[:1], value)
    launch(guards.give, (1,), out, VALUE=float("nan"))
    assert out[0].isnan()
    for kind, answer in ((None, 1), ("left", 2), ("right", 3), (5, 4)):
        launch(guards.choose, (1,), out, KIND=kind)
        _is(out[:1], answer)
    launch(guards.cast, (1,), out, KIND=triton.language.int32)
    _is(out[:1], 2)
    launch(guards.pair, (1,), out, PAIR=(5, 6.5))
    _is(out, 5, 6.5)


@row
def guards_functions_as_constants(launch: Launch) -> None:
    out = torch.ones(1)
    launch(guards.call, (1,), out, FUNCTION=guards.plus_one)
    launch(guards.call, (1,), out, FUNCTION=guards.times_five)
    _is(out, 10)


@row
def guards_globals(launch: Launch) -> None:
    out = torch.ones(1)
    launch(guards.with_global, (1,), out)
    launch(guards.with_inner_global, (1,), out)
    _is(out, 13)


@row
def guards_others(launch: Launch) -> None:
    out = torch.zeros(8)
    launch(guards.count_programs, (2, 2, 2), out)
    _is(out, *range(1, 9))
    launch(guards.checked, (1,), out, 5, debug=True)
    _is(out[:1], 5)
    launch(guards.fill, (1,), out, 3.0, 8, BLOCK=8)
    _is(out, *[3] * 8)
    launch(guards.odd_names, (1,), out, 1, 2, 4)
    _is(out[:1], 10)
    launch(guards.nested, (1,), out, (torch.tensor([9.0]), (2, 3)))
    _is(out[:3], 9, 2, 3)
    wide = torch.zeros(1, dtype=torch.int64)
    launch(guards.put_at, (1,), wide, 4)
    assert wide.tolist() == [4]


@row
def plans_places(launch: Launch) -> None:
    x, out = torch.arange(6.0), torch.zeros(6)
    launch(plans.gather, (1,), x, out, 6, 1, 1, 6, 0, 0, 0, 1, BLOCK=8)
    torch.testing.assert_close(out, x)
    launch(plans.stamp, (1,), out, 6, 1, 1, 6, 0, 0, 0, 1, BLOCK=8)
    _is(out, 1, 2, 3, 4, 5, 6)


@row
def plans_arithmetic(launch: Launch) -> None:
    x, out = torch.arange(6.0), torch.zeros(6)
    launch(plans.add, (1,), x, x, out, 6, BLOCK=8)
    launch(plans.increase, (1,), out, 1.0, 6, BLOCK=8)
    launch(plans.scale, (1,), out, out, 2.0, 6, BLOCK=8)
    launch(plans.shift, (1,), out, out, 3.0, 6, BLOCK=8)
    torch.testing.assert_close(out, 4 * x + 5)
    launch(plans.fast_scale, (1,), x, out, 2.0, 6, BLOCK=8)
    torch.testing.assert_close(out, 2 * x)
    launch(plans.put, (1,), out, 3)
    launch(plans.give, (1,), out[1:], VALUE=4)
    launch(plans.put_if_any, (1,), out[2:], None)
    _is(out[:3], 3, 4, -1)


@row
def program_softmax(launch: Launch) -> None:
    x, out = torch.randn(4, 30), torch.zeros(4, 30)
    launch(programs.softmax_kernel, (4,), x, out, 30, 30, 30, BLOCK=32)
    torch.testing.assert_close(out, x.softmax(1))


@row
def program_matmul(launch: Launch) -> None:
    a, b, c = torch.randn(32, 32), torch.randn(32, 32), torch.zeros(32, 32)
    sizes = (32, 32, 32, 32, 1, 32, 1, 32, 1)
    blocks = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 16, "GROUP": 2}
    launch(programs.matmul_kernel, (1,), a, b, c, *sizes, **blocks, ACTIVATION=programs.relu)
    torch.testing.assert_close(c, (a @ b).relu(), atol=1e-4, rtol=1e-4)


@row
def zoo_calls(launch: Launch) -> None:
    x, out = torch.arange(4.0), torch.zeros(4)
    launch(zoo.nested_calls, (1,), x, out, 4, BLOCK=4)
    torch.testing.assert_close(out, 3 * x)
    launch(zoo.calls_apart, (1,), x[1:], out)
    _is(out[:1], 4)
    launch(zoo.reduces, (1,), x, out, BLOCK=4)
    _is(out[:2], 6, 9)


@row
def zoo_modules(launch: Launch) -> None:
    x, out = torch.arange(4.0), torch.zeros(4)
    launch(zoo.through_modules, (1,), x, out, BLOCK=4)
    torch.testing.assert_close(out, (3 * x + 0.5) ** 2)
    launch(zoo.of_libdevice, (1,), x, out, BLOCK=4)
    torch.testing.assert_close(out, x * x + 2)


@row
def zoo_constants(launch: Launch) -> None:
    x, out = torch.arange(4.0), torch.zeros(4)
    launch(zoo.uses_constants, (1,), x, out)
    torch.testing.assert_close(out, 2.5 * x + torch.pi)
    launch(zoo.evaluates, (1,), out, N=10)
    _is(out[:3], 4, 4, 2)
    launch(zoo.takes_mode, (1,), out, MODE=zoo.Mode.FAST)
    _is(out[:1], 20)
    launch(zoo.makes_pairs, (1,), out, A=5)
    _is(out[:2], 5, 6)


@row
def zoo_closures(launch: Launch) -> None:
    x, out = torch.arange(4.0), torch.zeros(4)
    factor = triton.language.constexpr(7)
    launch(zoo.closing_over(factor, zoo.twice), (1,), x, out, BLOCK=4)
    torch.testing.assert_close(out, 14 * x)
    launch(zoo.closing_over(factor, zoo.thrice), (1,), x, out, BLOCK=4)
    torch.testing.assert_close(out, 21 * x)


@row
def zoo_names(launch: Launch) -> None:
    x, out = torch.arange(4.0), torch.zeros(4)
    launch(zoo.shadows, (1,), x, out, BLOCK=4)
    torch.testing.assert_close(out, x + 1)
    launch(zoo.reads_what_it_then_hides, (1,), out)
    _is(out[:1], 5)
    launch(zoo.gives_itself_a_name, (1,), out, N=3)
    _is(out[:1], 3)


@row
def zoo_decorated(launch: Launch) -> None:
    x, out = torch.arange(4.0), torch.zeros(4)
    launch(zoo.decorated.fn.fn, (1,), x, out, 4, BLOCK=4, EVEN=True)
    torch.testing.assert_close(out, x + 1)
