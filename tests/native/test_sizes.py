"""Native code replays a plan over sizes for sizes that were never seen."""
# ruff: noqa: F401, F811 (fixtures are imported, and go by their names as parameters)

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.native.native_plans import add_kernel, native, plan, scale_kernel, slot
from tests.native.sized_plans import (
    BLOCK,
    NUMBER,
    SIZE,
    STRIDE,
    SizedStub,
    Written,
    add_description,
    adding,
    pair,
    settled,
    total,
    variant,
)
from tzero.plans.describe import ValueDescription, describe
from tzero.plans.plan import Allocate, Call, Constant, Fill, Launch, Plan, Tensor, View
from tzero.plans.sized_description import SizedLaunchDescription

# -- which plan a call gets ------------------------------------------------------------------------


def made(kernel: Any) -> tuple[int, int]:
    """How many calls Python made since the last question: missed, and left to the twin."""
    found = kernel.misses, kernel.twins
    kernel.misses = kernel.twins = 0
    return found


def check_sum(kernel: Any, *sizes: int) -> None:
    for n in sizes:
        x, y = pair(n)
        torch.testing.assert_close(kernel(x, y), x + y, rtol=0, atol=0)


def test_a_size_never_seen_is_replayed(add_kernel: Any) -> None:
    kernel = adding(add_kernel, 100)
    check_sum(kernel, 101, 7, 300, 1000, 5001, 100)
    assert made(kernel) == (0, 0)
    assert kernel._count() == 1


def test_an_empty_grid_launches_nothing(add_kernel: Any) -> None:
    kernel = adding(add_kernel, 100, 16)
    assert kernel(*pair(0)).shape == (0,)
    assert made(kernel) == (0, 0)


def test_a_size_of_another_class_gets_a_binary_of_its_own(add_kernel: Any) -> None:
    classes = iter([(100,), (16,), (1,)])
    kernel = SizedStub(total, lambda x, y: add_description(add_kernel, *next(classes)))
    kernel(*pair(100))
    for count, n in enumerate((16, 1), start=2):
        check_sum(kernel, n)
        assert made(kernel)[0] >= 1
        assert kernel._count() == count
    check_sum(kernel, 32, 101, 1, 64, 7, 300, 1, 16)
    assert made(kernel) == (0, 0)


def test_a_plan_with_several_binaries_chooses_by_size(add_kernel: Any) -> None:
    kernel = adding(add_kernel, 100, 16, 1)
    check_sum(kernel, 32, 101, 1, 64, 7, 300, 1, 16, 0)
    assert made(kernel) == (0, 0)
    assert kernel._count() == 1


def test_a_call_that_does_not_meet_a_condition_runs_the_host(add_kernel: Any) -> None:
    kernel = adding(add_kernel, 100, 1)
    x, y = torch.rand(100), torch.rand(1)  # of one class with the others, but broadcast
    torch.testing.assert_close(kernel(x, y), x + y)
    assert made(kernel) == (1, 0)
    with pytest.raises(RuntimeError, match="must match"):
        kernel(torch.rand(100), torch.rand(99))


@pytest.mark.parametrize(
    "other",
    [
        lambda n: (torch.rand(n).double(), torch.rand(n)),
        lambda n: (torch.rand(n), torch.rand(n).double()),
        lambda n: (torch.rand(2 * n)[::2], torch.rand(n)),
        lambda n: (torch.rand(n, requires_grad=True), torch.rand(n)),
        lambda n: (torch.rand(n + 1)[1:], torch.rand(n)),
        lambda n: (torch.rand(1, n), torch.rand(n)),
    ],
    ids=["dtype", "other dtype", "stride", "requires grad", "alignment", "dimensions"],
)
def test_a_call_that_differs_in_more_than_its_sizes_is_none_of_the_class(
    add_kernel: Any, other: Any
) -> None:
    kernel = adding(add_kernel, 100)
    kernel.describe_for = lambda x, y: None
    for n in (100, 101):
        x, y = other(n)
        torch.testing.assert_close(kernel(x, y), x + y)
    assert made(kernel) == (2, 0)


def test_a_tensor_given_twice_is_another_class(add_kernel: Any) -> None:
    kernel = adding(add_kernel, 100)
    kernel.describe_for = lambda x, y: None
    x = torch.rand(101)
    kernel(x, x)
    assert made(kernel) == (1, 0)


def test_an_input_that_is_not_free_stays_in_the_key(add_kernel: Any) -> None:
    def describe_for(x: Any, y: Any) -> Any:
        written = Written((SIZE, 0, 0), (SIZE, 1, 0), free=(False, False))
        return add_description(add_kernel, len(x), written=written)

    kernel = settled(SizedStub(total, describe_for), *pair(100))
    check_sum(kernel, 101)
    assert made(kernel) == (1, 0)
    check_sum(kernel, 101, 100, 101)
    assert made(kernel) == (0, 0)


def test_plans_of_one_class_take_turns_by_their_conditions(add_kernel: Any) -> None:
    def describe_for(x: Any, y: Any) -> Any:
        written = Written((SIZE, 0, 0), (SIZE, 1, 0))
        written.demand("<", 0, written.constant(200), len(x) < 200)
        found = add_description(add_kernel, len(x), written=written)
        text = ValueDescription(
            native.VALUE_KINDS["constant"], object="small" if len(x) < 200 else "large"
        )
        return found._replace(result=text)

    kernel = settled(SizedStub(total, describe_for), *pair(100))
    kernel(*pair(300))
    made(kernel)
    assert kernel._count() == 2
    assert [kernel(*pair(n)) for n in (199, 201, 7, 999)] == ["small", "large"] * 2
    assert made(kernel) == (0, 0)


def test_a_plan_replaces_an_earlier_description_of_it(add_kernel: Any) -> None:
    first = add_description(add_kernel, 100)
    more = add_description(add_kernel, 100, 16)._replace(plan=first.plan)
    descriptions = iter([first, more])
    kernel = SizedStub(total, lambda x, y: next(descriptions))
    kernel(*pair(100))
    kernel(*pair(16))
    assert kernel._count() == 1
    made(kernel)
    check_sum(kernel, 101, 32)
    assert made(kernel) == (0, 0)


# -- what has no value -----------------------------------------------------------------------------


def refused(written: Written, add_kernel: Any, **changes: int) -> Any:
    """A kernel whose plan has other formulas in some places."""
    found = add_description(add_kernel, 100, written=written)
    [launch], sizes = found.sizes.launches, found.sizes
    if "grid" in changes:
        grid = (changes["grid"], *launch.grid[1:])
        sizes = sizes._replace(launches=(launch._replace(grid=grid),))
    if "size" in changes:
        out = ((changes["size"],), *sizes.slots[2][1:])
        sizes = sizes._replace(slots=(*sizes.slots[:2], out))
    found = found._replace(sizes=sizes)
    return SizedStub(total, lambda x, y: found)


@pytest.mark.parametrize("place", ["grid", "size"])
def test_a_negative_grid_or_size_leaves_the_call_to_python(add_kernel: Any, place: str) -> None:
    written = Written((SIZE, 0, 0), (SIZE, 1, 0))
    less = written.apply("-", 0, written.constant(50))
    nothing = {"grid": written.constant(0)}  # the tensor may be too small to write to
    kernel = settled(refused(written, add_kernel, **{**nothing, place: less}), *pair(100))
    kernel(*pair(50))
    assert made(kernel) == (0, 0)
    check_sum(kernel, 49)
    assert made(kernel) == (1, 0)


def test_a_grid_above_what_cuda_takes_leaves_the_call_to_python(add_kernel: Any) -> None:
    written = Written((SIZE, 0, 0), (SIZE, 1, 0))
    blocks = written.apply("+", 0, written.constant((1 << 31) - 101))
    kernel = SizedStub(total, refused(written, add_kernel, grid=blocks).describe_for)
    kernel(*pair(101))
    check_sum(kernel, 101)
    assert made(kernel) == (2, 0)


def test_a_size_above_64_bits_leaves_the_call_to_python(add_kernel: Any) -> None:
    written = Written((SIZE, 0, 0), (SIZE, 1, 0))
    written.apply("*", 0, written.constant((1 << 62) // 50))
    kernel = settled(refused(written, add_kernel), *pair(99))
    check_sum(kernel, 98, 3)
    assert made(kernel) == (0, 0)
    check_sum(kernel, 101)
    assert made(kernel) == (1, 0)


# -- steps -----------------------------------------------------------------------------------------


def scaling(kernel: Any, rows: int, columns: int) -> Plan:
    """``a = full((m, n), 3.); out = empty(m, n); scale(a.view(-1)[n:], out, (m - 1) * n, 2.)``"""
    count = (rows - 1) * columns
    compiled = kernel[(0,)](torch.zeros(9), torch.zeros(9), count, 2.0, BLOCK=BLOCK)
    size = (rows, columns)
    whole = Call(torch.Tensor.view, "view", (Tensor(1), Constant(-1)), (), Tensor(2), 1)
    args = (Tensor(2), Tensor(3), Constant(count), Constant(2.0), Constant(BLOCK))
    steps = (
        Allocate(1, 1),
        Fill(1, 3.0, 1),
        View(2, 1, columns, whole, 1),
        Allocate(3, 1),
        Fill(3, 1.0, 1),
        Launch(kernel, (-(-count // BLOCK), 1, 1), args, (), compiled, 1),
    )
    slots = (
        slot("x", 0, size=size),
        slot("a", size=size),
        slot("b", size=(count,)),
        slot("out", size=size),
    )
    return plan(steps, slots, Tensor(3), leaves=("x",))


def scaling_description(kernel: Any, rows: int, columns: int) -> Any:
    found = describe(native, scaling(kernel, rows, columns))
    assert found is not None
    these = Written((SIZE, 0, 0), (SIZE, 0, 1), (STRIDE, 0, 0))
    zero, one = these.constant(0), these.constant(1)
    count = these.apply("*", these.apply("-", 0, one), 1)
    grid = these.apply("cdiv", count, these.constant(BLOCK))
    these.demand("==", 1, 2)
    whole = ((0, 1), (1, one), zero)
    slots = [((0, 1), (2, one), zero), whole, ((count,), (one,), 1), whole]
    launch = found.steps[5].details
    [move] = [m for m in launch.binary.moves if m.argument == 2]
    selected = variant(found, 5, (rows - 1) * columns, count)
    selected = selected._replace(numbers=((count, move.type, move.offset),))
    launches = [SizedLaunchDescription((grid, one, one), ((count, False),), (selected,))]
    return found._replace(sizes=these.description(slots, launches))


def scaled(x: torch.Tensor) -> torch.Tensor:
    out = torch.ones_like(x)
    out.view(-1)[: x.numel() - x.shape[1]] = 6.0
    return out


def test_fills_views_and_strides_are_those_of_the_call(scale_kernel: Any) -> None:
    kernel = settled(
        SizedStub(scaled, lambda x: scaling_description(scale_kernel, *x.shape)), torch.rand(3, 20)
    )
    for rows, columns in ((4, 12), (2, 4), (8, 20), (31, 36), (3, 20)):
        x = torch.rand(rows, columns)
        assert kernel(x).equal(scaled(x)), (rows, columns)
        assert kernel(x).stride() == x.stride()
    assert made(kernel) == (0, 0)


def test_an_address_that_is_not_aligned_is_left_to_python(scale_kernel: Any) -> None:
    kernel = settled(
        SizedStub(scaled, lambda x: scaling_description(scale_kernel, *x.shape)), torch.rand(3, 20)
    )
    resumed: list[tuple[int, int]] = []

    def resume(plan: Any, start: int, held: Any, given: Any) -> str:
        resumed.append((start, len(held)))
        return "resumed"

    kernel._resume = resume
    assert kernel(torch.rand(4, 7)) == "resumed"
    assert resumed == [(5, 4)]


def kind(name: str, index: int = 0, *items: Any, object: Any = None) -> ValueDescription:
    return ValueDescription(native.VALUE_KINDS[name], index, object, items)


def like_x(one: int, zero: int) -> Any:
    return (0,), (one,), zero


def called(function: Any, size: tuple[int, ...], *args: ValueDescription, out: Any = None) -> Any:
    """A kernel ``f(x, n)`` that calls a function of torch with formulas: 0 is the size of x, 1 is
    n, 2 is their sum."""

    def describe_for(x: Any, n: int) -> Any:
        these = Written((SIZE, 0, 0), (NUMBER, 1, 0))
        total, zero, one = these.apply("+", 0, 1), these.constant(0), these.constant(1)
        assert total == 2
        call = Call(function, "f", (Tensor(0),), (), Tensor(1), 1)
        slots = (slot("x", 0, size=tuple(x.shape)), slot("out", size=size))
        found = describe(native, plan((call,), slots, Tensor(1), leaves=("x", "n")))
        assert found is not None
        [step] = found.steps
        step = step._replace(details=step.details._replace(args=args))
        result = kind("tuple", 0, kind("tensor", 1), kind("formula", 2))
        shapes = [((0,), (one,), zero), out and out(one, zero)]
        found = found._replace(steps=(step,), result=result)
        return found._replace(sizes=these.description(shapes, []))

    return describe_for


def test_formulas_are_arguments_of_calls_and_results() -> None:
    def host(x: Any, n: int) -> Any:
        return torch.full((x.shape[0] + n,), n), x.shape[0] + n

    args = (kind("tuple", 0, kind("formula", 2)), kind("formula", 1))
    stub = SizedStub(
        host, called(torch.full, (9,), *args, out=lambda one, zero: ((2,), (one,), zero))
    )
    stub.by_value = (False, True)
    found = add_dtype(stub, torch.int64)
    settled(found, torch.rand(5), 4)
    for size, n in ((5, 5), (1, 1), (70, 16), (5, -2)):
        tensor, total = found(torch.rand(size), n)
        assert tensor.tolist() == [n] * total and total == size + n
    assert made(found) == (0, 0)


def add_dtype(stub: SizedStub, dtype: torch.dtype) -> SizedStub:
    """Let the second slot have another dtype."""
    inner = stub.describe_for
    number = native.tensor_words(torch.empty(0, dtype=dtype))[0] >> 8 & 0xFF

    def describe_for(*args: Any) -> Any:
        found = inner(*args)
        first, second = found.slots
        return found._replace(slots=(first, second._replace(dtype=number)))

    stub.describe_for = describe_for
    return stub


def test_a_slice_and_a_size_are_made_of_formulas() -> None:
    def host(x: Any, n: int) -> Any:
        return x[:n].clone(), x.shape[0] + n

    def taken(x: Any, index: slice, size: torch.Size) -> Any:
        assert type(size) is torch.Size and size == (x.shape[0], index.stop)
        return x[index].clone()

    none = kind("constant")
    args = (
        kind("tensor", 0),
        kind("slice", 0, none, kind("formula", 1), none),
        kind("sequence", 0, kind("formula", 0), kind("formula", 1), object=torch.Size),
    )
    kernel = SizedStub(host, called(taken, (4,), *args, out=lambda one, zero: ((1,), (one,), zero)))
    kernel.by_value = (False, True)
    settled(kernel, torch.rand(5), 4)
    for size, n in ((8, 5), (9, 1), (70, 16)):
        x = torch.rand(size)
        assert kernel(x, n)[0].equal(x[:n])
    assert made(kernel) == (0, 0)


def test_a_result_of_other_geometry_than_the_formulas_is_drift() -> None:
    drifted: list[Any] = []

    def host(x: Any, n: int) -> Any:
        return x.clone(), x.shape[0] + n

    kernel = SizedStub(
        host,
        called(
            lambda x: x[:5].clone(), (5,), kind("tensor", 0), out=like_x
        ),
    )  # fmt: skip
    kernel.by_value = (False, True)
    settled(kernel, torch.rand(5), 4)

    def refuse(plan: Any, number: int, given: Any) -> None:
        drifted.append(tuple(given.shape))
        raise ZeroDivisionError

    kernel._drifted = refuse
    with pytest.raises(ZeroDivisionError):
        kernel(torch.rand(6), 4)
    assert drifted == [(5,)]


@pytest.mark.parametrize("other", [lambda x: x[:3].clone(), lambda x: x[:7].clone()])
def test_a_result_that_nothing_depends_on_may_have_any_size(other: Any) -> None:
    kernel = SizedStub(lambda x, n: (other(x), len(x) + n), called(other, (3,), kind("tensor", 0)))
    kernel.by_value = (False, True)
    settled(kernel, torch.rand(3), 4)
    for size in (8, 9):
        x = torch.rand(size)
        assert kernel(x, 3)[0].equal(other(x))
    assert made(kernel) == (0, 0)


def test_a_result_that_nothing_depends_on_has_the_recorded_dtype() -> None:
    kernel = SizedStub(
        lambda x, n: (x.clone(), len(x) + n),
        called(lambda x: x.double() if len(x) > 5 else x.clone(), (3,), kind("tensor", 0)),
    )
    kernel.by_value = (False, True)
    settled(kernel, torch.rand(3), 4)

    def refuse(plan: Any, number: int, given: Any) -> None:
        raise ZeroDivisionError

    kernel._drifted = refuse
    with pytest.raises(ZeroDivisionError):
        kernel(torch.rand(6), 4)


def test_a_number_that_counts_by_its_class_is_read_from_the_call() -> None:
    describe_for = called(torch.clone, (5,), kind("tensor", 0), out=like_x)
    kernel = settled(
        SizedStub(lambda x, n: (x.clone(), x.shape[0] + n), describe_for), torch.rand(5), 4
    )
    for size, n in ((6, 7), (5, 1), (7, 1 << 40), (8, -(1 << 62)), (9, 32)):
        assert kernel(torch.rand(size), n)[1] == size + n
    assert made(kernel) == (0, 0)
    kernel.describe_for = lambda x, n: None
    for n in (1 << 63, True):  # above 64 bits; of another type
        assert kernel(torch.rand(5), n)[1] == 5 + n
    assert made(kernel) == (2, 0)


def test_a_call_may_call_the_kernel_again_with_another_size(add_kernel: Any) -> None:
    inner_kernel: list[SizedStub] = []
    depth: list[int] = []

    def again(x: torch.Tensor) -> torch.Tensor:
        if len(depth) < 3:
            depth.append(len(x))
            inner_kernel[0](torch.rand(len(x) + 10), 1)
            depth.pop()
        return x.clone()

    def host(x: Any, n: int) -> Any:
        return x.clone(), x.shape[0] + n

    kernel = SizedStub(host, called(again, (5,), kind("tensor", 0), out=like_x))
    inner_kernel.append(kernel)
    settled(kernel, torch.rand(5), 4)
    for size in (7, 9, 7):
        x = torch.rand(size)
        tensor, total = kernel(x, 3)
        assert tensor.equal(x) and total == size + 3
    assert made(kernel) == (0, 0)


# -- outputs that are used again -------------------------------------------------------------------


def test_outputs_are_used_again_for_the_same_sizes_only(add_kernel: Any) -> None:
    rings: list[Any] = []

    def ring() -> Any:
        rings.append(native.Ring())
        return rings[-1]

    kernel = adding(add_kernel, 100, 16, ring=ring)
    for n in (101, 102, 101, 102, 7):
        check_sum(kernel, n)
    assert made(kernel) == (0, 0)
    [found] = rings
    assert found.reused >= 2
    assert {len(each) for each in found.held()} <= {100, 101, 102, 7}
    before = found.made, found.reused
    for _ in range(3):
        kernel(*pair(0))
    assert (found.made, found.reused) == before
