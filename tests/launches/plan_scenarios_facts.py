# mypy: allow-untyped-defs
"""Scenarios about what a plan assumes: arguments, modes of torch and tzero, globals."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tzero
from tests.launches.plan_scenario import X, put_number, same, table, tells_apart, twice, warm
from tests.plans.hosts import gathered, scaled
from tzero.arguments.key import Options

SCENARIOS = table()
fails_without = SCENARIOS.add

# -- what the arguments are ------------------------------------------------------------------------


def by_type(x):
    return scaled(x, 3.0 if isinstance(x, torch.nn.Parameter) else 2.0)


@fails_without("plan_tensor_type")
def a_parameter_is_no_tensor(make):
    tells_apart(make, by_type, (X,), (torch.nn.Parameter(X, requires_grad=False),))


def by_gradients(x):
    return scaled(x.detach(), 3.0 if x.requires_grad else 2.0)


@fails_without("plan_requires_grad")
def a_tensor_may_require_gradients(make):
    tells_apart(make, by_gradients, (X.clone(),), (X.clone().requires_grad_(),))


@fails_without("plan_dtype")
def a_dtype_decides_the_binary(make):
    tells_apart(make, twice, (X,), (X.to(torch.int32),))


@fails_without("plan_sizes")
def sizes_decide_what_is_made(make):
    tells_apart(make, twice, (X,), (torch.arange(7.0),))


@fails_without("plan_strides")
def strides_decide_what_is_read(make):
    square = torch.arange(9.0).view(3, 3)
    tells_apart(make, gathered, (square,), (square.t(),))


def by_negation(x):
    return scaled(torch.ones(2), 3.0 if x.is_neg() else 2.0)


@fails_without("plan_keys")
def a_tensor_may_be_negated_lazily(make):
    tells_apart(make, by_negation, (X,), (torch._neg_view(X),))


def by_identity(x, y):
    return scaled(x, 3.0 if x is y else 2.0)


@fails_without("plan_same_tensor")
def one_tensor_twice_is_not_two(make):
    tells_apart(make, by_identity, (X, X.clone()), (X, X))


def by_identity_of_lists(x, one, other):
    return scaled(x, 3.0 if one is other else 2.0)


@fails_without("plan_same_container")
def one_list_twice_is_not_two(make):
    one = [1]
    tells_apart(make, by_identity_of_lists, (X, one, [1]), (X, one, one))


def by_kind(x, values):
    return scaled(x, 3.0 if isinstance(values, list) else 2.0)


@fails_without("plan_container")
def a_list_is_no_tuple(make):
    tells_apart(make, by_kind, (X, (1, 2)), (X, [1, 2]))


def passed_on(x, n):
    put_number[(1,)](x, n)
    return x.clone()


@fails_without("plan_class")
def a_number_that_is_one_is_compiled_in(make):
    tells_apart(make, passed_on, (X.clone(), 1), (X.clone(), 5))


def looked_at(x, n):
    return scaled(x, float(n))


@fails_without("plan_value")
def a_number_that_is_looked_at_counts(make):
    tells_apart(make, looked_at, (X, 2), (X, 3))


@fails_without("plan_text")
def a_text_counts(make):
    tells_apart(make, by_text, (X, "two"), (X, "three"))


def by_text(x, text):
    return scaled(x, {"two": 2.0, "three": 3.0}[text])


def by_names(x, numbers):
    return scaled(x, 2.0 if "a" in numbers else 3.0)


@fails_without("plan_text")
def the_names_in_a_dict_count(make):
    tells_apart(make, by_names, (X, {"a": 1}), (X, {"b": 1}))


def of_dtype(x, dtype):
    return scaled(torch.ones(2, dtype=dtype), 2.0)


@fails_without("plan_dtype_value")
def a_dtype_that_is_an_argument_counts(make):
    tells_apart(make, of_dtype, (X, torch.float32), (X, torch.float64))


def of_shape(x, shape):
    return scaled(x, float(shape[0]))


@fails_without("plan_other_value")
def a_size_that_is_an_argument_counts(make):
    tells_apart(make, of_shape, (X, torch.Size([2, 3])), (X, torch.Size([3, 2])))


def of_number(x, number):
    return scaled(x, number.imag)


@fails_without("plan_other_value")
def a_complex_number_that_is_an_argument_counts(make):
    tells_apart(make, of_number, (X, 1 + 2j), (X, 1 + 3j))


def of_place(x, place):
    return scaled(x, 2.0 if place.type == "cpu" else 3.0)


@fails_without("plan_other_value")
def a_device_that_is_an_argument_counts(make):
    tells_apart(make, of_place, (X, torch.device("cpu")), (X, torch.device("meta")))


# -- what torch and tzero are set to ---------------------------------------------------------------


def by_mode(x):
    return scaled(x, 3.0 if torch.is_grad_enabled() else 2.0)


@fails_without("plan_modes")
def gradients_may_be_off(make):
    kernel = make(by_mode)
    warm(kernel, X)
    with torch.no_grad():
        same(kernel(X), by_mode(X))


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return func(*args, **(kwargs or {}))


@fails_without("plan_functions_on")
def a_function_mode_sees_the_host_function(make):
    kernel = make(twice)
    warm(kernel, X)
    with Functions() as mode:
        kernel(X)
    assert mode.seen > 0


@fails_without("plan_keys_on", "plan_modes")
def a_dispatch_mode_sees_the_host_function(make):
    # The keys that are on are words of the plan, too, and allocating goes by torch.
    kernel = make(by_nothing_new)
    warm(kernel, X.clone())
    with Operators() as mode:
        kernel(X.clone())
    assert mode.seen > 1  # `clone` above is one


def by_nothing_new(x):
    y = x.view(2, 2)
    put_number[(1,)](y, 5)
    return x


inner: Any = None


def around(x):
    return scaled(inner(x), 2.0)


@fails_without("plan_recorders", "plan_functions_on", "plan_keys_on", "plan_modes")
def a_kernel_in_another_is_recorded_with_it(make):
    global inner  # the modes of a recording show, too
    inner = make(twice)
    warm(inner, X)
    outer = make(around)
    for _ in range(3):
        same(outer(X), X * 4)
    plan = outer.explain(X).plan
    assert plan is not None
    assert [type(step).__name__ for step in plan.steps].count("Launch") == 2


@fails_without("plan_quiet")
def who_measures_sees_calls(make):
    kernel = make(twice)
    warm(kernel, X)
    with tzero.measure.recording() as record:
        kernel(X)
    assert record.count("call", "twice") == 1


@fails_without("plan_unwatched")
def who_observes_sees_hits(make):
    kernel, seen = make(twice), []
    warm(kernel, X)
    with tzero.events.observe(seen.append):
        kernel(X)
    assert "hit" in [event.kind for event in seen]


# -- what the host function reads ------------------------------------------------------------------

FACTOR = 2.0
WEIGHT = torch.arange(6.0).view(2, 3)


def by_a_global(x):
    return scaled(x, FACTOR)


def change_the_global(make):
    global FACTOR
    kernel = make(by_a_global)
    warm(kernel, X)
    FACTOR = 3.0
    same(kernel(X), by_a_global(X))


@fails_without("plan_names")
def a_global_is_asked_for(make):
    change_the_global(make)


@fails_without("plan_versions")
def a_namespace_that_changed_is_asked_again(make):
    change_the_global(make)


def closing_over(factor):
    def host(x):
        return scaled(x, factor)

    def change(to):
        nonlocal factor
        factor = to

    return host, change


@fails_without("plan_names")
def a_closure_is_asked_for(make):
    host, change = closing_over(2.0)
    kernel = make(host)
    warm(kernel, X)
    change(3.0)
    same(kernel(X), host(X))


def with_named(x, *, factor=2.0):
    return scaled(x, factor)


@fails_without("plan_names")
def named_defaults_are_asked_for(make):
    host = by_a_named_default
    kernel = make(host)
    warm(kernel, X)
    with_named.__kwdefaults__["factor"] = 3.0
    same(kernel(X), host(X))


def by_a_named_default(x):
    return with_named(x)


NESTED = {"deep": {"factor": 2.0}}


def by_a_table(x):
    return scaled(x, NESTED["deep"]["factor"])


@fails_without("plan_names")
def a_table_in_a_table_is_asked_for(make):
    kernel = make(by_a_table)
    warm(kernel, X)
    NESTED["deep"]["factor"] = 3.0
    same(kernel(X), by_a_table(X))


def by_a_failed_import(x):
    try:
        from tzero_not_there import factor
    except ImportError:
        factor = 2.0
    return scaled(x, factor)


@fails_without("plan_names")
def directories_of_modules_are_asked_for(make):
    with tempfile.TemporaryDirectory() as folder:
        sys.path.append(folder)
        kernel = make(by_a_failed_import)
        warm(kernel, X)
        (Path(folder) / "tzero_not_there.py").write_text("factor = 3.0")
        os.utime(folder, (1, 1))
        same(kernel(X), by_a_failed_import(X))


def by_a_value(x):
    return scaled(x, x[0].item())


@fails_without("plan_read")
def a_value_is_read(make):
    tells_apart(make, by_a_value, (X + 1,), (X + 2,))


def by_a_weight(x):
    return gathered(WEIGHT)


@fails_without("plan_global_tensors")
def a_tensor_in_a_global_is_looked_at(make):
    kernel = make(by_a_weight)
    warm(kernel, X)
    WEIGHT.t_()
    same(kernel(X), by_a_weight(X))


def by_being_the_weight(x):
    return scaled(x, 3.0 if x is WEIGHT else 2.0)


@fails_without("plan_global_arguments")
def an_argument_may_be_a_tensor_of_a_global(make):
    kernel = make(by_being_the_weight)
    warm(kernel, WEIGHT.clone())
    same(kernel(WEIGHT), by_being_the_weight(WEIGHT))


def by_an_attribute(x):
    return scaled(x, getattr(x, "factor", 2.0))


@fails_without("plan_bare")
def an_argument_has_an_attribute_of_its_own(make):
    kernel = make(by_an_attribute)
    warm(kernel, X)
    other = X.clone()
    other.factor = 5.0
    same(kernel(other), by_an_attribute(other))


TABLE = [2.0]


def by_being_the_table(x, table):
    return scaled(x, 3.0 if table is TABLE else TABLE[0])


@fails_without("plan_global_containers")
def an_argument_may_be_a_list_of_a_global(make):
    kernel = make(by_being_the_table)
    warm(kernel, X, [2.0])
    same(kernel(X, TABLE), by_being_the_table(X, TABLE))


class Holder:
    def __init__(self, factor):
        self.factor = factor


def by_a_holder(x, holder):
    return scaled(x, holder.factor)


@fails_without("plan_object")
def an_argument_may_be_another_object(make):
    kernel = make(by_a_holder, options=Options(objects=True), graph=True)
    one, other = Holder(2.0), Holder(5.0)
    kernel(X, one)  # recorded when it is repeated
    warm(kernel, X, one)
    same(kernel(X, other), by_a_holder(X, other))
