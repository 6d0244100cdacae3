"""Plans as data: how values compare, how a plan prints, and how two plans differ."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from tzero.plans.drift import drift
from tzero.plans.plan import (
    Allocate,
    Call,
    Constant,
    Fill,
    Launch,
    Nest,
    Plan,
    Refusal,
    Scalar,
    Slot,
    Tensor,
    View,
    replaced,
    tensors_in,
)
from tzero.reading.guards import Equal, Same

CPU = torch.device("cpu")


class Both(NamedTuple):
    one: Any
    other: Any


def slot(name: str, *size: int, leaf: int | None = None, guard: int | None = None) -> Slot:
    stride = tuple(math.prod(size[k + 1 :]) for k in range(len(size)))
    return Slot(name, torch.float32, CPU, size, stride, leaf, guard)


def call(name: str, *args: Any, result: Any, line: int, **kwargs: Any) -> Call:
    return Call(torch.add, name, args, tuple(kwargs.items()), result, line)


KERNEL = SimpleNamespace(__name__="scale")
GLOBALS = {"BLOCK": 64, "W": torch.ones(3)}
PARTS = call("Tensor.view", Tensor(1), Constant((2, 2)), result=Tensor(2), line=13)

PLAN = Plan(
    kernel="host",
    leaves=("x", "n", "by"),
    by_value=frozenset({2}),
    guards=(
        Equal("the global 'BLOCK'", GLOBALS, "BLOCK", 64),
        Same("the global 'W'", GLOBALS, "W", GLOBALS["W"]),
    ),
    slots=(
        slot("x", 4, leaf=0),
        slot("t1", 4),
        slot("t2", 2, 2),
        slot("W", 3, guard=1),
        slot("t4", 4),
    ),
    steps=(
        Allocate(1, 11),
        Fill(1, -0.0, 12),
        View(2, 1, 2, PARTS, 13),
        call("add", Tensor(0), Tensor(3), alpha=Constant(2), result=Tensor(4), line=14),
        Launch(
            KERNEL,
            (1, 1, 1),
            (Tensor(2), Scalar(1), Constant("a")),
            (("num_warps", Constant(4)),),
            None,
            15,
        ),
    ),
    result=Nest(tuple, (Tensor(1), Nest(dict, (Tensor(4),), ("sum",)), Constant(None))),
)

PAGE = """\
host(x, n, by)
  assumes x: float32[4] strides [1] on cpu
  assumes W: float32[3] strides [1] on cpu
  assumes the value of by
  assumes the global 'BLOCK': 64
  t1 = empty float32[4] strides [1] on cpu  # line 11
  fill t1 with -0.0  # line 12
  t2 = t1 as float32[2, 2] strides [2, 1] on cpu from 2  # line 13
  t4 = add(x, W, alpha=2)  # line 14
  launch scale[(1, 1, 1)](t2, n, 'a', num_warps=4)  # line 15
  return (t1, {'sum': t4}, None)"""


def test_a_plan_prints_as_what_it_assumes_and_does() -> None:
    assert str(PLAN) == PAGE


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Nest(list, (Tensor(0), Constant(1.5))), "[x, 1.5]"),
        (Nest(tuple, (Tensor(0),)), "(x,)"),
        (Nest(tuple, ()), "()"),
        (Nest(Both, (Tensor(0), Scalar(1))), "Both(x, n)"),
        (Nest(dict, (Constant("b"),), ("a",)), "{'a': 'b'}"),
        (Constant(torch.float32), "torch.float32"),
        (Constant(len), "len"),
        (Constant("x" * 100), f"'{'x' * 56}..."),
    ],
)
def test_results_print_as_they_are_written(value: Any, text: str) -> None:
    plan = dataclasses.replace(PLAN, result=value)
    assert str(plan).splitlines()[-1] == f"  return {text}"


# -- values ----------------------------------------------------------------------------------------


DISTINCT = [0, 0.0, -0.0, False, "0", None, 1, True, 1.0, 1j, math.inf, b"0", torch.float32]


def test_constants_are_equal_only_if_indistinguishable() -> None:
    for k, one in enumerate(DISTINCT):
        for m, other in enumerate(DISTINCT):
            assert (Constant(one) == Constant(other)) is (k == m), (one, other)
    assert Constant(math.nan) == Constant(float("nan"))
    assert hash(Constant(1)) == hash(Constant(1))


def test_slots_in_a_value_are_in_order() -> None:
    value = Nest(list, (Tensor(3), Nest(dict, (Tensor(1), Constant(3)), ("a", "b")), Tensor(3)))
    assert list(tensors_in(value)) == [3, 1, 3]


def test_values_are_replaced_in_launches_and_nests_and_nowhere_else() -> None:
    by = {Scalar(1): Constant(7)}
    launch = PLAN.steps[4]
    found = replaced(launch, by)
    assert found.args == (Tensor(2), Constant(7), Constant("a"))
    assert replaced(Nest(list, (Nest(tuple, (Scalar(1),)),)), by).items[0].items == (Constant(7),)
    assert replaced(Scalar(2), by) == Scalar(2)
    assert replaced(PLAN.steps[0], by) is PLAN.steps[0]
    assert replaced(launch, {}) is launch


# -- two plans -------------------------------------------------------------------------------------


def changed(**changes: Any) -> Plan:
    return dataclasses.replace(PLAN, **changes)


def with_step(k: int, **changes: Any) -> Plan:
    steps = list(PLAN.steps)
    steps[k] = dataclasses.replace(steps[k], **changes)
    return changed(steps=tuple(steps))


DRIFTS = [
    (changed(by_value=frozenset()), "the set of arguments used by value"),
    (changed(slots=(*PLAN.slots[:4], slot("t4", 5))), "the tensors"),
    (with_step(1, value=0.0), "step 1"),
    (with_step(1, value=0), "step 1"),
    (with_step(2, offset=0), "step 2"),
    (with_step(3, args=(Tensor(0), Tensor(0))), "step 3"),
    (with_step(3, kwargs=()), "step 3"),
    (with_step(4, grid=(2, 1, 1)), "step 4"),
    (with_step(4, args=(Tensor(2), Constant(3), Constant("a"))), "step 4"),
    (with_step(4, options=()), "step 4"),
    (changed(steps=PLAN.steps[:4]), "step 4"),
    (changed(steps=(*PLAN.steps, Allocate(1, 16))), "step 5"),
    (changed(result=Tensor(1)), "its result"),
]


@pytest.mark.parametrize(("other", "fact"), DRIFTS)
def test_a_drift_names_the_first_difference(other: Plan, fact: str) -> None:
    for before, now in ((PLAN, other), (other, PLAN)):
        found = drift(before, now)
        assert found is not None
        assert found.words == fact
        assert found.before != found.now


def test_what_a_second_recording_reads_must_be_guarded() -> None:
    less = changed(guards=PLAN.guards[:1])
    found = drift(less, PLAN)
    assert found is not None
    assert found.words == "what it reads" and found.before == "nothing"
    assert drift(PLAN, less) is None  # a first call may have read more


def test_a_missing_step_is_shown_as_nothing() -> None:
    found = drift(PLAN, changed(steps=PLAN.steps[:4]))
    assert found is not None
    assert found.now == "nothing"


def test_the_compiled_binary_is_no_drift() -> None:
    assert drift(PLAN, PLAN) is None
    assert drift(PLAN, with_step(4, compiled=object())) is None


def test_a_refusal_is_a_drift_that_says_why() -> None:
    found = drift(PLAN, Refusal("it reads the value of a tensor", "add.py", 3))
    assert found is not None
    assert found == ("it", "replayed", "not replayed: it reads the value of a tensor, at add.py:3")
