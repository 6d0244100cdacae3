"""Plans over sizes: a recording at one size says what a call with another size does."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

import tzero
from tests.plans.sized_hosts import HOSTS
from tests.plans.tiers import assert_same
from tzero.arguments.situation import leaves
from tzero.plans.plan import Launch, Plan
from tzero.plans.sized import concrete
from tzero.plans.sizes import sources


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
    assert kernel.stats().native_replays > 30


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
