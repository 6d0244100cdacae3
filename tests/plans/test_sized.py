"""Plans over sizes: a recording at one size says what a call with another size does."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton

import tzero
from tests.plans.sized_hosts import HOSTS, scale_kernel, softmax
from tests.plans.tiers import assert_same, verifying
from tzero import settings
from tzero.arguments.situation import leaves
from tzero.plans import planner
from tzero.plans.plan import Launch, Plan, Refusal
from tzero.plans.sized import concrete
from tzero.plans.sizes import sources


def scaled_by_two(x):
    out = torch.empty_like(x)
    n = x.numel()
    scale_kernel[(triton.cdiv(n, 64),)](x, out, 2.0, n, BLOCK=64)
    return out


native_scale = tzero.jit(scale_kernel)


def scaled_natively(x):
    out = torch.empty_like(x)
    native_scale[(triton.cdiv(x.numel(), 64),)](x, out, 2.0, x.numel(), BLOCK=64)
    return out


def rows(x):
    return softmax(x.view(1, -1))


def looped(x):
    out = torch.empty_like(x)
    total = 0
    for k in range(x.size(0)):
        total += k
    scale_kernel[(1,)](x, out, float(total), x.numel(), BLOCK=64)
    return out


def configured(x, config):
    out = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), config.BLOCK),)](x, out, 2.0, x.numel(), **config)
    return out, config.BLOCK


def made_contiguous(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    scale_kernel[(max(1, triton.cdiv(x.numel(), 64)),)](x, out, 2.0, x.numel(), BLOCK=64)
    return out


def of_sums(x):
    total = x.sum(0)
    out = torch.empty_like(total)
    scale_kernel[(1,)](total, out, 2.0, total.numel(), BLOCK=64)
    return out


def beside_sums(x):
    out = torch.empty_like(x)
    scale_kernel[(1,)](x, out, 2.0, x.numel(), BLOCK=128)
    return out, x.sum(0)


def head_of(x, n):
    head = x[:n]
    out = torch.empty_like(head)
    scale_kernel[(triton.cdiv(n, 64),)](head, out, 2.0, n, BLOCK=64)
    return out, x[1 : n + 1].sum()


def on_two_paths(x):
    return scaled_by_two(x) if x.numel() < 256 else scaled_by_two(x[1:])


def with_a_slice(x):
    return scaled_by_two(x), (slice(1, None), ...), x.shape


def filled(x, by, more):
    return scaled_by_two(x), torch.full((2,), by), torch.full((2,), more[0])


def compared(x, by):
    return scaled_by_two(x), by > 1.5


def specialized(x):
    out = torch.empty_like(x)
    scale_kernel[(1,)](x, out, 2.0, tzero.specialize(x.numel()), BLOCK=64)
    return out


def recorded(kernel: Any, args: tuple[Any, ...]) -> Plan:
    """The plan of a call. Kernels are compiled before: compilers may interrupt a call that is
    followed."""
    kernel.function(*args)
    kernel(*args)
    plan, why = kernel.planner.look(kernel.bind(*args), args)
    assert plan is not None, why
    return plan


def pinned(plan: Plan, args: tuple[Any, ...]) -> Any:
    """What a plan over sizes does not leave open of the arguments."""
    assert plan.sizing is not None
    free = set(plan.sizing.free)
    every = [value for _, value in leaves(args, [str(k) for k in range(len(args))])]
    found = [n for k, value in enumerate(every) for s, n in sources(k, value) if s not in free]
    return [type(value) for value in every], found


def steps_of(plan: Plan) -> Any:
    """What a plan does, without the binaries and without how it was found out."""
    steps = [
        dataclasses.replace(step, compiled=None) if isinstance(step, Launch) else step
        for step in plan.steps
    ]
    slots = [
        dataclasses.replace(each, size=(), stride=(), opaque=False, guard=None)
        if each.opaque
        else each
        for each in plan.slots
    ]
    return slots, steps, plan.result


@pytest.mark.parametrize("name", HOSTS)
def test_calls_with_new_sizes_do_what_the_host_function_does(name: str) -> None:
    host, chance = HOSTS[name], random.Random(name)
    kernel = tzero.kernel(host.function)
    for _ in range(60):
        args = host.arguments(chance)
        assert_same(kernel(*args), host.function(*args))
    assert verifying() or kernel.stats().native_replays > 30


@pytest.mark.parametrize("name", HOSTS)
def test_python_replays_new_sizes_too_while_an_observer_sees_each_call(name: str) -> None:
    host, chance = HOSTS[name], random.Random(name)
    kernel = tzero.kernel(host.function)
    with tzero.events.observe(lambda event: None):
        for _ in range(30):
            args = host.arguments(chance)
            assert_same(kernel(*args), host.function(*args))
    assert verifying() or kernel.stats().python_replays > 10


@pytest.mark.parametrize("name", HOSTS)
def test_a_recording_at_one_size_says_what_one_at_another_size_would(name: str) -> None:
    host, chance = HOSTS[name], random.Random(name)
    symbolic = tzero.kernel(static_shapes=False)(host.function)
    known = [host.arguments(chance) for _ in range(4)]
    plans = [recorded(symbolic, args) for args in known]
    assert any(plan.sizing is not None for plan in plans), plans[0].unsized
    served = 0
    for _ in range(30):
        args = host.arguments(chance)
        exact = recorded(tzero.kernel(static_shapes=True)(host.function), args)
        given = [value for _, value in leaves(args, symbolic.host.parameters)]
        for plan, before in zip(plans, known, strict=True):
            if plan.sizing is None or pinned(plan, before) != pinned(plan, args):
                continue
            made = concrete(plan, given)
            if made is not None:
                served += 1
                hidden = {k for k, slot in enumerate(made.slots) if slot.opaque}
                now = dataclasses.replace(
                    exact,
                    slots=tuple(
                        dataclasses.replace(slot, opaque=k in hidden)
                        for k, slot in enumerate(exact.slots)
                    ),
                )
                assert steps_of(made) == steps_of(now)
    assert served


def called(kernel: Any, *sizes: int) -> tuple[int, int]:
    """Call a kernel of one vector with several sizes; returns how many calls were replayed
    natively, and how many were recorded."""
    before = kernel.stats()
    for n in sizes:
        x = torch.randn(n)
        assert_same(kernel(x), kernel.function(x))
    after = kernel.stats()
    return (
        after.native_replays - before.native_replays,
        after.recordings - before.recordings,
    )


@pytest.mark.usefixtures("replaying")
def test_the_first_size_is_exact_and_a_second_one_makes_it_free() -> None:
    kernel = tzero.kernel(scaled_by_two)
    assert called(kernel, 100, 100) == (1, 1)
    assert called(kernel, 200) == (0, 1)
    assert called(kernel, 201, 300, 100, 55, 1000) == (5, 0)


@pytest.mark.usefixtures("replaying")
def test_a_new_specialization_of_an_integer_records_once() -> None:
    kernel = tzero.kernel(scaled_by_two)
    called(kernel, 100, 200)
    assert called(kernel, 160, 320, 16) == (2, 1)
    assert called(kernel, 1, 1) == (1, 1)
    assert called(kernel, 99, 32, 1, 64, 77) == (5, 0)


@pytest.mark.usefixtures("replaying")
def test_a_constant_that_depends_on_sizes_records_once_for_each_value() -> None:
    kernel = tzero.kernel(rows)
    called(kernel, 100, 120)
    assert called(kernel, 90, 70, 65) == (3, 0)
    assert called(kernel, 200, 250, 140) == (2, 1)
    assert called(kernel, 101, 201) == (2, 0)


@pytest.mark.usefixtures("replaying")
def test_with_static_shapes_each_size_is_recorded() -> None:
    kernel = tzero.kernel(static_shapes=True)(scaled_by_two)
    assert called(kernel, 100, 200, 300, 100) == (1, 3)


@pytest.mark.usefixtures("replaying")
def test_without_static_shapes_the_first_recording_serves_other_sizes() -> None:
    kernel = tzero.kernel(static_shapes=False)(scaled_by_two)
    assert called(kernel, 100, 200, 300, 55) == (3, 1)


@pytest.mark.usefixtures("replaying")
def test_each_side_of_a_condition_is_recorded_once() -> None:
    kernel = tzero.kernel(HOSTS["conditions"].function)
    called(kernel, 300, 310)
    assert called(kernel, 257, 999) == (2, 0)
    assert called(kernel, 250, 252, 30) == (2, 1)
    assert called(kernel, 251, 253, 31) == (2, 1)
    assert called(kernel, 302, 254, 33) == (3, 0)


@pytest.mark.usefixtures("replaying")
def test_a_size_that_decides_how_often_a_loop_runs_is_pinned_and_told() -> None:
    kernel = tzero.kernel(looped)
    assert called(kernel, 3, 4, 5, 4) == (1, 3)
    told = str(kernel.explain(torch.randn(5)))
    assert "sizes: only these: x.size(0) == 5 is pinned in line" in told


@pytest.mark.usefixtures("replaying")
def test_a_new_binary_on_one_side_of_a_condition_leaves_the_other_side_as_it_is() -> None:
    kernel = tzero.kernel(static_shapes=False)(on_two_paths)
    called(kernel, 300, 250)
    assert called(kernel, 321) == (0, 1)  # a multiple of 16 elements
    assert called(kernel, 251, 301, 252, 337, 253, 302) == (6, 0)


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("static_shapes", [None, False])
def test_calls_with_tensors_at_any_address_replay_in_any_order(static_shapes: bool | None) -> None:
    kernel = tzero.kernel(static_shapes=static_shapes)(scaled_by_two)
    base = torch.randn(1000)
    for start in (0, 1, 0, 1):  # the address of the second is no multiple of 16
        for n in (100, 101, 160):
            x = base[start : start + n]
            assert_same(kernel(x), x * 2)
    before = kernel.stats()
    for n in range(200, 260):
        x = base[n % 2 : n % 2 + n]
        assert_same(kernel(x), x * 2)
    found = kernel.stats()
    # The odd multiples of 16 are a binary of their own, that none of the calls before had.
    assert found.recordings - before.recordings <= 1
    assert found.native_replays - before.native_replays >= 59


@pytest.mark.usefixtures("replaying")
def test_a_dim_marked_static_is_recorded_for_each_size() -> None:
    kernel = tzero.kernel(scaled_by_two)
    for n in (100, 200, 300):
        x = torch.randn(n)
        torch._dynamo.mark_static(x, 0)
        assert_same(kernel(x), x * 2)
    assert kernel.stats().recordings == 3


@pytest.mark.usefixtures("replaying")
def test_a_dim_marked_dynamic_is_free_from_the_first_call_on() -> None:
    kernel = tzero.kernel(scaled_by_two)
    x = torch.randn(100)
    torch._dynamo.mark_dynamic(x, 0)
    kernel(x)
    assert called(kernel, 200, 300) == (2, 0)


@pytest.mark.usefixtures("replaying")
def test_a_bound_kernel_with_a_config_of_its_own_keeps_it() -> None:
    kernel = tzero.kernel(config=tzero.Config(BLOCK=64))(configured)
    x, y = torch.randn(100), torch.randn(300)
    for n in (200, 250, 260):
        kernel(torch.randn(n))
    kernel.bind(x).set_config(tzero.Config(BLOCK=128))
    assert kernel(x)[1] == 128
    assert kernel(y)[1] == 64
    assert kernel(x)[1] == 128


@pytest.mark.usefixtures("replaying")
def test_sizes_that_do_not_fit_raise_what_the_host_function_raises() -> None:
    kernel = tzero.kernel(HOSTS["reshape"].function)
    for n in (40, 56, 72):
        assert_same(kernel(torch.ones(n), 4), torch.ones(n // 4, 4) / 2)
    assert kernel.stats().native_replays == 1
    with pytest.raises(RuntimeError, match="invalid for input of size 42"):
        kernel(torch.ones(42), 4)


@pytest.mark.usefixtures("replaying")
def test_a_transposed_tensor_does_not_get_the_plan_of_a_contiguous_one() -> None:
    kernel = tzero.kernel(made_contiguous)
    for shape in ((3, 4), (5, 6), (7, 8), (1, 5), (5, 1), (0, 3), (2, 2)):
        for x in (torch.randn(shape), torch.randn(shape[::-1]).t()):
            assert_same(kernel(x), kernel.function(x))
    assert kernel.stats().native_replays >= 4


@pytest.mark.usefixtures("replaying")
def test_empty_tensors_and_those_of_one_element_are_sizes_like_others() -> None:
    kernel = tzero.kernel(scaled_by_two)
    called(kernel, 5, 7, 0, 9, 1, 0, 1)


@pytest.mark.usefixtures("replaying")
def test_a_number_in_torch_functions_and_in_the_result_is_computed() -> None:
    kernel = tzero.kernel(HOSTS["several launches"].function)
    for n in (100, 200, 300, 310):
        assert kernel(torch.ones(n), torch.ones(n))[1] == n
    assert kernel.stats().native_replays == 2


@pytest.mark.usefixtures("replaying")
def test_the_geometry_of_a_result_without_a_rule_is_pinned_when_it_is_read() -> None:
    kernel = tzero.kernel(of_sums)
    for shape in ((3, 4), (5, 6), (7, 8), (9, 10)):
        x = torch.randn(shape)
        assert_same(kernel(x), kernel.function(x))
    unread = tzero.kernel(beside_sums)
    for shape in ((3, 4), (5, 6), (7, 8), (9, 10)):
        x = torch.randn(shape)
        assert_same(unread(x), unread.function(x))
    assert unread.stats().native_replays == 2


@pytest.mark.usefixtures("replaying")
def test_a_slice_up_to_a_number_is_computed() -> None:
    kernel = tzero.kernel(head_of)
    for n in (30, 40, 50, 70, 90):
        x = torch.randn(n + 20)
        assert_same(kernel(x, n), head_of(x, n))
    assert kernel.stats().native_replays == 3


@pytest.mark.usefixtures("replaying")
def test_a_slice_in_the_result_is_the_same_for_each_size() -> None:
    kernel = tzero.kernel(with_a_slice)
    assert called(kernel, 30, 50, 70, 90, 110) == (3, 2)


@pytest.mark.parametrize("observed", [False, True])
def test_a_float_that_is_used_by_value_has_plans_of_its_own(observed: bool) -> None:
    kernel = tzero.kernel(filled)
    with tzero.events.observe(lambda event: None) if observed else contextlib.nullcontext():
        for n in range(20, 44, 2):
            for by, more in ((1.0, [3.0]), (2.0, [3.0]), (1.0, [4.0]), (-0.0, [3.0])):
                x = torch.randn(n)
                assert_same(kernel(x, by, more), filled(x, by, more))


@pytest.mark.usefixtures("replaying")
def test_plans_that_differ_in_a_number_alone_do_not_replace_each_other() -> None:
    kernel = tzero.kernel(compared)
    for n in range(20, 60, 4):
        for by in (1.0, 2.0):
            x = torch.randn(n + 2)
            assert_same(kernel(x, by), compared(x, by))
    assert kernel.stats().recordings <= 4


@pytest.mark.usefixtures("replaying")
def test_what_interrupts_every_recording_over_sizes_leaves_exact_plans() -> None:
    kernel, x, seen = tzero.kernel(static_shapes=False)(scaled_by_two), torch.randn(100), []
    scale_kernel.add_pre_run_hook(hook := lambda *args, **kwargs: seen.append(1))
    try:
        for _ in range(25):
            assert_same(kernel(x), x * 2)
    finally:
        scale_kernel.pre_run_hooks.remove(hook)
    assert len(seen) == 25
    assert kernel.explain(x).plan is not None


@pytest.mark.usefixtures("replaying")
def test_a_plan_over_sizes_shows_its_formulas() -> None:
    kernel = tzero.kernel(scaled_by_two)
    called(kernel, 100, 200, 300)
    explained = kernel.explain(torch.randn(300))
    assert explained.hit and explained.replay is not None and explained.replay.how == "natively"
    told = str(explained)
    assert "t1 = empty float32[x.size(0)] strides [1] on cpu" in told
    assert "launch scale_kernel[(cdiv(x.size(0), 64), 1, 1)](x, t1, 2.0, x.size(0), 64)" in told
    assert "sizes: any x.size(0)" in told
    code = kernel.bind(torch.randn(200)).to_code()
    assert "launch_1[cdiv(x.size(0), 64), 1, 1](x, t1, 2.0, x.size(0), BLOCK=64)" in code


@pytest.mark.usefixtures("replaying")
def test_what_the_host_function_specializes_on_is_pinned() -> None:
    kernel = tzero.kernel(specialized)
    for n in (4, 8, 12, 16):
        assert_same(kernel(torch.ones(n)), torch.full((n,), 2.0))
    assert kernel.stats().native_replays == 0


MADE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: torch.nn.functional.softmax(x, -1),
    "the mean": lambda x: x + x.mean(),
    "random numbers": lambda x: torch.randn(x.shape),
    "another dtype": lambda x: x.double(),
    "a product": lambda x: x @ x.t(),
    "a number before": lambda x: 1 - x,
    "a copy": lambda x: x.clone(),
}


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("name", MADE)
def test_the_geometry_of_what_torch_computes_is_known_for_new_sizes(name: str) -> None:
    make = MADE[name]

    def host(x):
        made = make(x)
        out = torch.empty_like(made)
        n = made.numel()
        scale_kernel[(triton.cdiv(n, 64),)](made, out, 2.0, n, BLOCK=64)
        return out

    kernel = tzero.kernel(host)
    for shape in ((3, 10), (5, 14), (7, 22), (9, 26)):
        x = torch.randn(shape)
        torch.manual_seed(0)
        wanted = host(x)
        torch.manual_seed(0)
        assert_same(kernel(x), wanted)
    assert kernel.stats().native_replays == 2


@pytest.mark.usefixtures("replaying")
def test_explain_says_why_sizes_are_pinned_also_after_that_is_given_up() -> None:
    kernel = tzero.kernel(looped)
    called(kernel, 3, 4, 5, 6, 7, 8)
    assert "is pinned in line" in str(kernel.explain(torch.randn(8)))


@pytest.mark.usefixtures("replaying")
def test_plans_over_sizes_end_with_their_bound_kernels_which_are_limited() -> None:
    kernel = tzero.kernel(scaled_by_two)
    with settings.override(max_specializations=3), pytest.warns(UserWarning, match="more than 3"):
        for dtype in (torch.float32, torch.float64, torch.int16, torch.int32, torch.int64):
            for n in (100, 200, 300, 301):
                x = torch.ones(n, dtype=dtype)
                assert_same(kernel(x), x * 2)
            assert kernel.stats().entries <= 3
        held = kernel.table.bound_kernels()
        assert {each.key[0][0] for each in held} == {torch.int32, torch.int64}
        assert sum(len(each.plans) for each in held) == kernel._count() == 3
        assert called(kernel, 302, 303) == (1, 1)  # of floats no plan was left


@pytest.mark.usefixtures("replaying")
def test_a_class_has_a_limited_number_of_plans() -> None:
    def host(x):
        bound = 0
        while x.size(0) >= bound:  # each size takes a path of its own
            bound += 1
        return scaled_by_two(x)

    kernel = tzero.kernel(static_shapes=False)(host)
    called(kernel, *range(3, 43))
    assert kernel._count() == 32


def interrupted(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let something interrupt the next recordings of plans over sizes."""
    plain, left = planner.capture, [times]

    def capture(subject: Any, args: tuple[Any, ...]) -> Any:
        result, made = plain(subject, args)
        if not subject.free or not left[0]:
            return result, made
        left[0] -= 1
        return result, Refusal("a callback interrupts it", lasting=False, outside=True)

    monkeypatch.setattr(planner, "capture", capture)


@pytest.mark.usefixtures("replaying")
def test_a_recording_that_something_interrupts_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupted(monkeypatch, 15)
    kernel = tzero.kernel(scaled_by_two)
    called(kernel, *range(3, 40, 2))
    assert kernel.stats().native_replays > 0


@pytest.mark.usefixtures("replaying")
def test_recordings_that_are_always_interrupted_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupted(monkeypatch, 16)
    kernel = tzero.kernel(scaled_by_two)
    called(kernel, *range(3, 43, 2))
    assert kernel.stats().native_replays == 0
    assert "a callback interrupts it" in str(kernel.explain(torch.randn(41)))


@pytest.mark.parametrize("is_installed", [False, True], ids=["alone", "installed"])
@pytest.mark.parametrize("host", [scaled_natively, scaled_by_two])
def test_a_grid_like_that_of_an_earlier_call_stays_a_formula(host: Any, is_installed: bool) -> None:
    kernel = tzero.kernel(host)
    if is_installed:
        tzero.install()
    try:
        for size in (100, 101, 500, 501, 3000):
            x = torch.randn(size)
            assert torch.equal(kernel(x), x * 2), size
    finally:
        if is_installed:
            tzero.uninstall()
