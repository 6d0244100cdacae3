"""Plans made by hand, replayed natively: what is done, and what is returned."""
# ruff: noqa: F401, F811 (fixtures are imported, and go by their names as parameters)

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch

from tests.native.native_plans import (
    N,
    Stub,
    add_kernel,
    added,
    adding,
    launch,
    plan,
    scale_kernel,
    slot,
    warm,
    xy,
)
from tzero.plans.plan import (
    Allocate,
    Call,
    Constant,
    Fill,
    Nest,
    Scalar,
    Tensor,
    Value,
    View,
)

# -- steps ----------------------------------------------------------------------------------------


def test_an_addition_is_replayed(added: Stub, xy: Any) -> None:
    warm(added, *xy)
    for _ in range(3):
        out = added(*xy)
        assert torch.equal(out, xy[0] + xy[1])
    other = torch.rand(N)
    assert torch.equal(added(other, xy[1]), other + xy[1])
    assert (added.misses, added.twins, added._count()) == (0, 0, 1)


def test_names_and_places_find_the_same_plan(added: Stub, xy: Any) -> None:
    warm(added, *xy)
    x, y = xy
    assert torch.equal(added(y=y, x=x), x + y)
    assert torch.equal(added(x, y=y), x + y)
    assert (added.misses, added._count()) == (0, 1)


def test_three_launches_over_views(add_kernel: Any, scale_kernel: Any) -> None:
    half = N // 2

    def host(x, y):
        return (x + y) * 2.5 + y

    def made(x, y):
        # t2 = x + y; t3 = t2 * 2.5; t3[:50] += y[:50] and t3[50:] += y[50:] by views
        two = Constant(half)
        sample = torch.zeros(N)[half:]
        shifted = add_kernel[(1,)](sample, sample, sample, half, BLOCK=128)
        whole = torch.zeros(N)
        first = add_kernel[(1,)](whole, whole, whole, half, BLOCK=128)

        def view(at: int, base: int, offset: int) -> View:
            call = Call(torch.Tensor.narrow, "Tensor.narrow", (Tensor(base),), (), Tensor(at), 1)
            return View(at, base, offset, call, 1)

        steps = (
            Allocate(2, 1),
            Allocate(3, 1),
            launch(add_kernel, 0, 1, 2, Constant(N), None),
            launch(scale_kernel, 2, 3, Constant(N), Constant(2.5), None),
            view(4, 3, half),
            view(5, 1, half),
            view(6, 3, 0),
            launch(add_kernel, 6, 1, 6, two, None, compiled=first),
            launch(add_kernel, 4, 5, 4, two, None, compiled=shifted),
        )
        views = tuple(slot(f"v{k}", size=(half,)) for k in range(3))
        slots = (slot("x", 0), slot("y", 1), slot("a"), slot("b"), *views)
        return plan(steps, slots, Tensor(3))

    kernel = Stub(host, made)
    x, y = torch.rand(N), torch.rand(N)
    warm(kernel, x, y)
    assert torch.allclose(kernel(x, y), host(x, y))
    assert (kernel.misses, kernel.twins, kernel.resumed) == (0, 0, [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int8])
@pytest.mark.parametrize("value", [0, 3, 1.0])
@pytest.mark.parametrize("count", [0, 1, 7, 70_000, 1_200_000])
def test_a_fill(dtype: torch.dtype, value: Any, count: int) -> None:
    steps = (Allocate(1, 1), Fill(1, value, 1))
    slots = (slot("x", 0), slot("t", dtype=dtype, size=(count,)))
    kernel = Stub(lambda x: None, lambda x: plan(steps, slots, Tensor(1), ("x",)))
    x = torch.rand(N)
    warm(kernel, x)
    expected = torch.full((count,), value, dtype=dtype)
    for _ in range(3):
        assert torch.equal(kernel(x), expected)
    assert (kernel.misses, kernel.twins) == (0, 0)


def test_a_call_of_torch_between_launches(add_kernel: Any) -> None:
    def made(x, y):
        args = (Tensor(2), Constant(0))
        call = Call(
            torch.sort, "sort", (Tensor(2),), (("descending", Constant(True)),),
            Nest(torch.return_types.sort, (Tensor(3), Tensor(4))), 1,
        )  # fmt: skip
        picked = Call(torch.unsqueeze, "unsqueeze", args, (), Tensor(5), 1)
        steps = (
            Allocate(2, 1),
            launch(add_kernel, 0, 1, 2, Constant(N), None),
            call,
            picked,
            launch(add_kernel, 3, 3, 2, Constant(N), None),
        )
        slots = (
            *(slot("x", 0), slot("y", 1), slot("a"), slot("sorted")),
            *(slot("at", dtype=torch.int64), slot("picked", size=(1, N))),
        )
        return plan(steps, slots, Nest(tuple, (Tensor(2), Tensor(4), Tensor(5))))

    def host(x, y):
        values, at = torch.sort(x + y, descending=True)
        return values + values, at, (values + values).unsqueeze(0)

    kernel = Stub(host, made)
    x, y = torch.rand(N), torch.rand(N)
    warm(kernel, x, y)
    out, at, picked = kernel(x, y)
    expected = host(x, y)
    assert torch.equal(out, expected[0]) and torch.equal(at, expected[1])
    assert torch.equal(picked, expected[2]) and picked.data_ptr() == out.data_ptr()
    assert (kernel.misses, kernel.twins) == (0, 0)


def test_a_view_that_is_returned_is_a_tensor(add_kernel: Any) -> None:
    def made(x, y):
        call = Call(
            torch.Tensor.view, "Tensor.view", (Tensor(2), Constant((10, 10))), (), Tensor(3), 1
        )
        steps = (
            Allocate(2, 1),
            View(3, 2, 0, call, 1),
            launch(add_kernel, 0, 1, 3, Constant(N), None),
        )
        slots = (slot("x", 0), slot("y", 1), slot("a"), slot("v", size=(10, 10)))
        return plan(steps, slots, Tensor(3))

    kernel = Stub(lambda x, y: (x + y).view(10, 10), made)
    x, y = torch.rand(N), torch.rand(N)
    warm(kernel, x, y)
    assert torch.equal(kernel(x, y), (x + y).view(10, 10))
    assert kernel.misses == 0


def test_a_number_that_is_passed_on_is_taken_anew(scale_kernel: Any) -> None:
    def made(x, by):
        steps = (Allocate(1, 1), launch(scale_kernel, 0, 1, Constant(N), Scalar(1), None))
        return plan(steps, (slot("x", 0), slot("out")), Tensor(1), ("x", "by"))

    kernel = Stub(lambda x, by: x * by, made)
    x = torch.rand(N)
    warm(kernel, x, 2.5)
    for by in (2.5, -1.0, 1e-3, 7.0):
        assert torch.equal(kernel(x, by), x * by)
    assert (kernel.misses, kernel._count()) == (0, 1)
    kernel.plan_of = lambda x, by: None
    assert torch.equal(kernel(x, 2), x * 2)  # an integer is another binary
    assert kernel.misses == 1


def test_what_is_left_of_a_plan_is_done_in_python(scale_kernel: Any) -> None:
    """A call of torch's attaches a hook: the launches after it are Triton's to make."""
    seen: list[str] = []

    def attach(x):
        scale_kernel.pre_run_hooks.append(lambda *args, **kwargs: seen.append("hook"))
        return x

    def made(x, by):
        call = Call(attach, "attach", (Tensor(0),), (), Tensor(0), 1)
        steps = (
            Allocate(1, 1),
            launch(scale_kernel, 0, 1, Constant(N), Scalar(1), None),
            call,
            launch(scale_kernel, 1, 1, Constant(N), Scalar(1), None),
        )
        return plan(steps, (slot("x", 0), slot("out")), Tensor(1), ("x", "by"))

    kernel = Stub(lambda x, by: x * by * by, made)
    x = torch.rand(N)
    kernel(x, 2.5)
    kernel(x, 2.5)
    try:
        kernel.misses = kernel.twins = 0
        kernel.resumed.clear()
        del scale_kernel.pre_run_hooks[:], seen[:]
        assert torch.equal(kernel(x, 2.5), x * 2.5 * 2.5)
        assert (kernel.resumed, seen, kernel.misses, kernel.twins) == ([3], ["hook"], 0, 0)
        assert torch.equal(kernel(x, 2.5), x * 2.5 * 2.5)  # before the first step: the twin
        assert (kernel.resumed, kernel.twins) == ([3], 1)
    finally:
        del scale_kernel.pre_run_hooks[:]


# -- results --------------------------------------------------------------------------------------

Pair = namedtuple("Pair", ["first", "second"])


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (Tensor(2), lambda x, y, out: out),
        (Tensor(0), lambda x, y, out: x),
        (Constant(None), lambda x, y, out: None),
        (Constant("text"), lambda x, y, out: "text"),
        (Nest(tuple, ()), lambda x, y, out: ()),
        (Nest(tuple, (Tensor(2), Tensor(2))), lambda x, y, out: (out, out)),
        (Nest(list, (Tensor(1), Constant(3))), lambda x, y, out: [y, 3]),
        (Nest(dict, (Tensor(2),), ("a",)), lambda x, y, out: {"a": out}),
        (Nest(Pair, (Tensor(0), Tensor(2))), lambda x, y, out: Pair(x, out)),
        (
            Nest(tuple, (Nest(list, (Tensor(2),)), Nest(dict, (Constant(1),), ("b",)))),
            lambda x, y, out: ([out], {"b": 1}),
        ),
    ],
)
def test_every_shape_of_result(add_kernel: Any, xy: Any, value: Value, shape: Any) -> None:
    kernel = Stub(lambda x, y: None, lambda x, y: adding(add_kernel, result=value))
    warm(kernel, *xy)
    result = kernel(*xy)
    assert kernel.misses == 0

    def check(one: Any, other: Any) -> None:
        assert type(one) is type(other)
        if isinstance(other, torch.Tensor):
            assert one is other if other is not new else torch.equal(one, new)
        elif isinstance(other, dict):
            assert list(one) == list(other)
            check(list(one.values()), list(other.values()))
        elif isinstance(other, (tuple, list)):
            assert len(one) == len(other)
            for each in zip(one, other, strict=True):
                check(*each)
        else:
            assert one == other

    new = xy[0] + xy[1]
    check(result, shape(*xy, new))
    if isinstance(value, Nest) and value.items == (Tensor(2), Tensor(2)):
        assert result[0] is result[1]


def test_a_number_of_the_arguments_is_given_back(scale_kernel: Any) -> None:
    def made(x, by):
        return plan(
            (), (slot("x", 0),), Nest(list, (Scalar(1), Scalar(2))), ("x", "by[0]", "by[1]")
        )

    kernel = Stub(lambda x, by: None, made)
    x, by = torch.rand(N), (1.5, 300)
    warm(kernel, x, by)
    result = kernel(x, by)
    assert result[0] is by[0] and result[1] is by[1]
