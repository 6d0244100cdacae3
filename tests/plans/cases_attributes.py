"""Host functions that read attributes which the program adds, attributes that are computed, and
settings of libraries; and a change of each."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import socket
import sys
import timeit
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tests.plans.case import cases
from tests.plans.cases_classes import OPTIONS, nothing, put, put_on
from tests.plans.cases_modes import default_dtype
from tests.plans.hosts import scaled

CASES = cases()
case = CASES.add

FLAG = 2.0


def flag(patch: Any) -> None:
    """A change: the global that the functions here read."""
    patch.setitem(globals(), "FLAG", 5.0)


# -- attributes added to torch ---------------------------------------------------------------------


def five_times(x):
    return x * 5


@case(put_on(torch.Tensor, "relu", five_times), guard="none")
def a_method_of_tensors(x):
    return scaled(x.relu(), 2.0)


@case(put_on(torch.Tensor, "relu", five_times), guard="none")
def a_method_of_tensors_by_their_class(x):
    return scaled(torch.Tensor.relu(x), 2.0)


@case(put_on(torch.Tensor, "__mul__", lambda x, other: x + 5))
def an_operator_of_tensors(x):
    return scaled(x * 2, 2.0)


@case(put_on(torch.Tensor, "factor", 5.0))
def an_attribute_that_tensors_get(x):
    try:
        factor = x.factor
    except AttributeError:
        factor = 2.0
    return scaled(x, factor)


torch.Tensor.put_there = lambda self: self * FLAG  # type: ignore[attr-defined]
torch.put_there = lambda x: x * FLAG  # type: ignore[attr-defined]
torch.put_object = functools.partial(operator.mul, 2)  # type: ignore[attr-defined]
torch.put_list = [2.0]  # type: ignore[attr-defined]


@case(flag)
def a_method_that_someone_put_on_tensors(x):
    return scaled(x.put_there(), 2.0)


@case(flag)
def a_function_that_someone_put_into_torch(x):
    return scaled(torch.put_there(x), 2.0)


@case(lambda patch: patch.setattr(torch, "put_object", functools.partial(operator.mul, 3)))
def an_object_that_someone_put_into_torch(x):
    return scaled(torch.put_object(x), 2.0)


@contextlib.contextmanager
def another_item():
    torch.put_list[0] = 5.0
    try:
        yield
    finally:
        torch.put_list[0] = 2.0


@case(lambda patch: another_item())
def a_list_that_someone_put_into_torch(x):
    return scaled(x, torch.put_list[0])


@case(lambda patch: patch.setattr(F, "relu", five_times))
def a_function_of_a_module_of_torchs(x):
    return scaled(F.relu(x), 2.0)


@case(lambda patch: patch.setattr(F, "relu", five_times))
def a_module_of_torchs_that_it_imports(x):
    from torch.nn import functional

    return scaled(functional.relu(x), 2.0)


@case(lambda patch: default_dtype(torch.float64))
def torch_under_another_name(x):
    there = torch
    return scaled(x, 2.0 if there.get_default_dtype() is torch.float32 else 3.0)


# -- attributes added to functions and tensors -----------------------------------------------------


def helper(x):
    return scaled(x, 2.0)


WEIGHT = torch.ones(5)


def marked(x):
    return scaled(x, 2.0)


marked.factor = 3.0  # type: ignore[attr-defined]


def scaled_by_attribute(x, function=marked):
    return scaled(x, function.factor)


@case(put(marked, "factor", 5.0))
def an_attribute_of_a_default_of_a_helper(x):
    return scaled_by_attribute(x)


@case(put(helper, "factor", 5.0))
def an_attribute_that_a_function_gets(x):
    try:
        return scaled(x, helper.factor)
    except AttributeError:
        return helper(x)


@case(put(helper, "factor", 5.0))
def an_attribute_that_a_function_gets_under_another_name(x):
    known = helper
    try:
        return scaled(x, known.factor)
    except AttributeError:
        return known(x)


@case(put(WEIGHT, "factor", 5.0))
def an_attribute_that_a_tensor_gets(x):
    try:
        return scaled(x, WEIGHT.factor)
    except AttributeError:
        return scaled(x, 2.0)


@contextlib.contextmanager
def hidden():
    WEIGHT.relu = lambda: torch.full((5,), 5.0)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del WEIGHT.relu


@case(lambda patch: hidden())
def a_method_that_a_tensor_gets(x):
    return scaled(x, 2.0) + WEIGHT.relu()


# -- attributes that are computed ------------------------------------------------------------------


class Meta(type):
    @property
    def factor(cls):
        return FLAG


class OfMeta(metaclass=Meta):
    pass


@case(flag)
def a_property_of_a_class_of_classes(x):
    return scaled(x, OfMeta.factor)


class Answering:
    def __getattr__(self, name):
        return FLAG


ANSWERING = Answering()


@case(flag)
def an_attribute_that_is_computed(x):
    return scaled(x, ANSWERING.anything)


LAZY = ModuleType("lazy")
exec("NUMBER = 2.0\ndef __getattr__(name):\n    return NUMBER\n", vars(LAZY))


@case(lambda patch: patch.setattr(LAZY, "NUMBER", 5.0))
def an_attribute_that_a_module_computes(x):
    return scaled(x, LAZY.anything)


class Changed(Answering):
    factor = 5.0


@case(lambda patch: patch.setattr(ANSWERING, "__class__", Changed))
def an_object_of_another_class(x):
    return scaled(x, ANSWERING.factor)


get = getattr


@case(put(helper, "factor", 5.0))
def getattr_under_another_name(x):
    return scaled(x, get(helper, "factor", 2.0))


@case(nothing, refused="operator.attrgetter")
def an_attribute_by_its_name(x):
    return scaled(x, operator.attrgetter("by")(OPTIONS))


@case(flag, refused="it reads __globals__, which gives access to hidden state")
def the_globals_of_a_function(x):
    return scaled(x, (lambda: 0).__globals__["FLAG"])


# -- settings of torch and other libraries ---------------------------------------------------------


@contextlib.contextmanager
def of_double():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@case(lambda patch: of_double())
def the_limits_of_the_default_dtype(x):
    return scaled(x, float(torch.finfo().bits))


@contextlib.contextmanager
def autocast_to_half():
    torch.set_autocast_dtype("cpu", torch.float16)
    try:
        yield
    finally:
        torch.set_autocast_dtype("cpu", torch.bfloat16)


@case(lambda patch: autocast_to_half())
def the_dtype_of_autocast(x):
    return scaled(x, 2.0 if torch.get_autocast_dtype("cpu") is torch.bfloat16 else 3.0)


@contextlib.contextmanager
def without_cache():
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(True)


@case(lambda patch: without_cache())
def the_cache_of_autocast(x):
    return scaled(x, 2.0 if torch.is_autocast_cache_enabled() else 3.0)


@case(lambda patch: torch.autocast("cpu", torch.bfloat16), guard="modes")
def whether_autocast_is_on(x):
    return scaled(x, 2.0 if torch.is_autocast_enabled("cpu") else 3.0)


@case(nothing, refused="flash_sdp_enabled")
def a_question_to_a_backend(x):
    return scaled(x, 2.0 if torch.backends.cuda.flash_sdp_enabled() else 3.0)


@case(nothing, refused="time.perf_counter")
def a_clock_by_another_module(x):
    return scaled(x, 2.0 if timeit.default_timer() > 0 else 3.0)


@case(nothing, refused="socket.gethostname")
def the_name_of_the_machine(x):
    return scaled(x, float(len(socket.gethostname()) > 0))


@case(nothing, refused="numpy.random")
def chance_that_it_imports(x):
    from numpy.random import rand

    return scaled(x, 2.0 if rand() < 2 else 3.0)


@case(nothing, refused="numpy.geterr")
def what_numpy_is_set_to(x):
    return scaled(x, 2.0 if np.geterr() else 3.0)


@functools.cache
def cached():
    return FLAG


@case(nothing, refused="cache_info")
def what_a_cache_counts(x):
    return scaled(x, 2.0 if cached.cache_info() else 3.0)


CYCLE: list[Any] = []
CYCLE.append(CYCLE)


@case(lambda patch: patch.setattr(sys.modules[__name__], "CYCLE", [1, 2]))
def a_list_that_holds_itself(x):
    return scaled(x, float(len(CYCLE)))


@case(nothing, guard="none")
def a_tuple_of_nothing(x):
    return scaled(x, 2.0 + len(()))


# -- what a call reads on its path -----------------------------------------------------------------


@case(lambda patch: patch.setenv("TZERO_ANY", "abcd"))
def the_environment(x):
    return scaled(x, float(len(os.environ.get("TZERO_ANY", "abc"))))


@case(lambda patch: patch.setenv("TZERO_ANY", "abcd"))
def the_environment_by_name(x):
    return scaled(x, float(len(os.getenv("TZERO_ANY", "abc"))))


def another_partial(patch):
    patch.setattr(sys.modules[__name__], "PARTIAL", functools.partial(scaled, by=3.0))


PARTIAL = functools.partial(scaled, by=2.0)


@case(another_partial)
def a_partial(x):
    return PARTIAL(x)


class Counter:
    step = 2

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> int:
        self.count += self.step
        return self.count


@case(lambda patch: patch.setattr(Counter, "step", 3))
def an_object_that_it_makes(x):
    counter = Counter()
    counter.next()
    return scaled(x, float(counter.next()))
