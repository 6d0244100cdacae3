"""Host functions that come to classes, to methods, and to what someone puts on things, and a change
of each."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import itertools
import operator
import socket
import timeit
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import triton.language as tl

from tests.plans.case import cases
from tests.plans.hosts import scaled

CASES = cases()
case = CASES.add

FLAG = 2.0


def flag(patch: Any) -> None:
    """A change: what the methods here read."""
    patch.setitem(globals(), "FLAG", 5.0)


def put(owner: Any, name: str, value: Any) -> Any:
    """A change: something under a name where there was nothing of that name before."""
    return lambda patch: patch.setattr(owner, name, value, raising=False)


def put_on(kind: type, name: str, value: Any) -> Any:
    """The same for a class, which has nothing of that name itself afterwards either."""

    @contextlib.contextmanager
    def change() -> Any:
        setattr(kind, name, value)
        try:
            yield
        finally:
            delattr(kind, name)

    return lambda patch: change()


def nothing(patch: Any) -> None:
    """No change: what is refused is run each time."""


# -- methods and what else is in classes -----------------------------------------------------------


class Base:
    def inherited(self):
        return FLAG

    def plain(self):
        return 2.0


class Between(Base):
    pass


class Descriptor:
    def __get__(self, value, kind=None):
        return FLAG


def made():
    return [FLAG]


@dataclasses.dataclass
class Options(Between):
    by: float = 2.0
    items: list = dataclasses.field(default_factory=made)
    table: ClassVar = {"by": 2.0}
    number: ClassVar[float] = 2.0
    described: ClassVar = Descriptor()

    def __post_init__(self):
        pass

    @functools.cached_property
    def kept(self):
        return FLAG

    @property
    def asked(self):
        return FLAG

    def method(self):
        return 2.0

    def above(self):
        return super().inherited()

    def never_called(self):
        self.by = 3.0


@case(flag)
def an_inherited_method(x):
    return scaled(x, Options().inherited())


@case(put_on(Between, "plain", lambda self: 5.0))
def a_method_that_is_put_in_between(x):
    return scaled(x, Options().plain())


@case(lambda patch: patch.setattr(Base, "plain", lambda self: 5.0))
def a_method_that_is_replaced_above(x):
    return scaled(x, Options().plain())


@case(lambda patch: patch.setattr(Options, "method", lambda self: 5.0))
def a_method_that_is_replaced(x):
    options = Options()
    return scaled(x, options.method())


class OtherBase(Base):
    def plain(self):
        return 5.0


@contextlib.contextmanager
def other_bases():
    before, Options.__bases__ = Options.__bases__, (OtherBase,)
    try:
        yield
    finally:
        Options.__bases__ = before


@case(lambda patch: other_bases())
def the_bases_of_a_class(x):
    return scaled(x, Options().plain())


@case(flag)
def a_method_by_super(x):
    return scaled(x, Options().above())


@case(flag)
def a_cached_property(x):
    return scaled(x, Options().kept)


@case(flag)
def a_property(x):
    return scaled(x, Options().asked)


@case(lambda patch: patch.setattr(Options, "number", 5.0))
def a_variable_of_a_class(x):
    options = Options()
    return scaled(x, options.number)


@case(lambda patch: patch.setitem(Options.table, "by", 5.0))
def the_contents_of_a_variable_of_a_class(x):
    options = Options()
    return scaled(x, options.table["by"])


@case(flag, refused="tzero cannot see changes of a Descriptor")
def a_descriptor_of_a_class(x):
    options = Options()
    return scaled(x, options.described)


@case(flag)
def what_makes_a_field(x):
    return scaled(x, Options().items[0])


OPTIONS = Options()


def asked_of(options):
    return options.asked


@case(flag)
def a_property_of_an_object_that_is_passed_on(x):
    return scaled(x, asked_of(OPTIONS))


def more_of(options):
    try:
        return options.more
    except AttributeError:
        return 2.0


@case(put(OPTIONS, "more", 5.0))
def what_is_put_on_an_object_that_is_passed_on(x):
    return scaled(x, more_of(OPTIONS))


MADE = dataclasses.make_dataclass("MADE", ["x"], namespace={"get": lambda self: FLAG})


@case(flag)
def a_class_that_a_library_made(x):
    return scaled(x, MADE(1).get())


class Outer:
    class Inner:
        def get(self):
            return FLAG


@case(flag, refused="a class that is no dataclass, named tuple, enum or exception")
def a_class_in_a_class(x):
    return scaled(x, Outer.Inner().get())


class Pair(NamedTuple):
    items: list = [2.0]  # noqa: RUF012


@case(lambda patch: patch.setattr(Pair.__new__, "__defaults__", ([5.0],)))
def a_default_of_a_named_tuple(x):
    return scaled(x, Pair().items[0])


class Kind(enum.Enum):
    ONE = 1

    def __init__(self, number):
        self.weight = 2.0

    @property
    def factor(self):
        return FLAG

    def method(self):
        return FLAG


ONE = Kind.ONE


@case(flag)
def a_property_of_an_enum(x):
    kind = Kind.ONE
    return scaled(x, kind.factor)


@case(flag)
def a_property_of_a_global_member(x):
    return scaled(x, ONE.factor)


@case(flag)
def a_method_of_a_global_member(x):
    return scaled(x, ONE.method())


@case(lambda patch: patch.setattr(Kind.ONE, "weight", 5.0))
def an_attribute_of_a_member(x):
    kind = ONE
    return scaled(x, kind.weight)


class Real(float):
    @property
    def factor(self):
        return FLAG


REAL = Real(2.0)


@case(flag, refused="tzero cannot see changes of a Real")
def a_number_of_a_class_of_its_own(x):
    real = REAL
    return scaled(x, real.factor)


COUNT = itertools.count()


class Counting:
    @property
    def factor(self):
        return 2.0 if next(COUNT) >= 0 else 3.0


COUNTING = Counting()


@case(nothing, refused="tzero cannot see changes of a count")
def a_property_that_counts(x):
    return scaled(x, COUNTING.factor)


SIZE = tl.constexpr(2)
SIZES = [SIZE]


@case(lambda patch: patch.setattr(SIZE, "value", 5))
def the_value_of_a_constant_of_tritons(x):
    return scaled(x, float(SIZE.value))


@case(lambda patch: patch.setattr(SIZE, "value", 5))
def the_value_of_a_constant_that_is_passed_on(x):
    size = SIZE
    return scaled(x, float(size.value))


@case(lambda patch: patch.setattr(SIZE, "value", 5), refused="cannot see changes of a constexpr")
def a_constant_of_tritons_in_a_list(x):
    return scaled(x, float(SIZES[0].value))


# -- what decorators of libraries wrap -------------------------------------------------------------


@contextlib.contextmanager
def giving():
    yield FLAG


@case(flag)
def a_context_manager(x):
    with giving() as factor:
        return scaled(x, factor)


@torch.no_grad()
def without_gradients(x):
    return scaled(x, FLAG)


@case(flag)
def a_helper_without_gradients(x):
    return without_gradients(x)


@functools.singledispatch
def dispatched(x):
    return FLAG


@case(flag)
def a_function_by_type(x):
    return scaled(x, dispatched(x))


# -- what someone puts on torch --------------------------------------------------------------------


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


@case(nothing, refused="tzero cannot see changes of a partial")
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


@case(nothing, refused="a module, as a value")
def torch_under_another_name(x):
    there = torch
    return scaled(x, 2.0 if there.get_default_dtype() is torch.float32 else 3.0)


# -- what someone puts on functions and tensors ----------------------------------------------------


def helper(x):
    return scaled(x, 2.0)


WEIGHT = torch.ones(5)


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


# -- other ways to an attribute --------------------------------------------------------------------


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


@case(put(helper, "factor", 5.0), refused="builtins.getattr")
def getattr_under_another_name(x):
    return scaled(x, get(helper, "factor", 2.0))


@case(nothing, refused="operator.attrgetter")
def an_attribute_by_its_name(x):
    return scaled(x, operator.attrgetter("by")(OPTIONS))


@case(flag, refused="it reads __globals__, which gives access to hidden state")
def the_globals_of_a_function(x):
    return scaled(x, (lambda: 0).__globals__["FLAG"])


# -- what torch and other libraries are set to -----------------------------------------------------


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


@case(nothing, refused="torch.get_autocast_dtype")
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


@case(lambda patch: torch.autocast("cpu", torch.bfloat16), guard="obstacle")
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


@case(nothing, refused="tzero cannot see changes of a list")
def a_list_that_holds_itself(x):
    return scaled(x, float(len(CYCLE)))


@case(nothing, guard="none")
def a_tuple_of_nothing(x):
    return scaled(x, 2.0 + len(()))
