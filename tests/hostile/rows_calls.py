"""Changes of what calls read: arguments of functions in C, partial functions, methods, modules of
torch, imports, exceptions."""

from __future__ import annotations

import builtins
import dataclasses
import functools
import json
import logging
import operator
import os
import threading
import types
import weakref
from types import SimpleNamespace
from typing import Any

import torch

from tests.hostile.row import added, attribute, done, item, rows
from tests.plans.hosts import scaled

ROWS = rows()
row = ROWS.add

LIST, OTHER, TABLE = [2.0], [3.0], {"by": 2.0}
SPACE = SimpleNamespace(by=2.0, items=[2.0])


def set_global(name: str, value: Any) -> Any:
    """A change: another value for a global of this module."""
    return lambda patch: patch.setitem(globals(), name, value)


# -- new containers that hold old ones ------------------------------------------------------------


@row(item(LIST, 0, 5.0))
def a_list_in_a_new_list_that_is_summed(x):
    return scaled(x, sum([LIST, OTHER], [])[0])  # noqa: RUF017


@row(item(LIST, 0, 5.0))
def a_list_in_a_new_list_that_is_compared(x):
    return scaled(x, 2.0 if [LIST] == [[2.0]] else 3.0)


@row(item(LIST, 0, 5.0))
def a_list_in_a_new_tuple_that_is_formatted(x):
    return scaled(x, float(("%s %s" % (LIST, 1))[1]))  # noqa: UP031


@row(item(LIST, 0, 5.0))
def a_list_in_a_new_dict_that_is_written(x):
    return scaled(x, float(json.dumps({"a": LIST})[7]))


@row(item(LIST, 0, 5.0))
def the_greatest_of_two_lists(x):
    return scaled(x, max([LIST, OTHER])[0])


@row(item(LIST, 0, 5.0))
def a_list_in_a_new_list_of_a_new_list(x):
    return scaled(x, float(str([[LIST]])[3]))


@dataclasses.dataclass
class Holding:
    items: Any

    def first(self):
        return self.items[0]


@row(item(LIST, 0, 5.0))
def a_list_in_a_new_object_that_is_copied(x):
    return scaled(x, dataclasses.asdict(Holding(LIST))["items"][0])


@row(item(LIST, 0, 5.0))
def a_list_in_a_new_object(x):
    return scaled(x, Holding(LIST).first())


class Stack(list):
    pass


@row(item(LIST, 0, 5.0))
def a_list_that_is_copied_by_a_class(x):
    return scaled(x, Stack(LIST)[0])


@row(item(LIST, 0, 5.0))
def a_width_that_is_given_to_a_text(x):
    width = 3
    return scaled(x, float(f"{LIST!s:>{width}}"[1]))


@row(item(LIST, 0, 5.0))
def a_text_with_a_list(x):
    return scaled(x, float(f"{LIST}"[1]))


# -- stars -----------------------------------------------------------------------------------------


def first(*numbers):
    return numbers[0]


def by_name(**numbers):
    return numbers["by"]


@row(item(LIST, 0, 5.0))
def a_star(x):
    return scaled(x, first(*LIST))


@row(item(LIST, 0, 5.0))
def a_star_of_a_generator(x):
    return scaled(x, first(*(each for each in LIST)))


@row(item(LIST, 0, 5.0))
def a_star_of_a_map(x):
    return scaled(x, first(*map(float, LIST)))


@row(item(TABLE, "by", 5.0))
def two_stars(x):
    return scaled(x, by_name(**TABLE))


@row(item(LIST, 0, 5.0))
def stars_among_others(x):
    return scaled(x, first(*LIST, *OTHER, 3.0))


# -- partial functions and methods -----------------------------------------------------------------


def multiplied(x, by=1.0, items=(1.0,)):
    return scaled(x, by * items[0])


PARTIAL = functools.partial(multiplied, by=2.0)
OF_LIST = functools.partial(multiplied, items=LIST)
WEIGHT = torch.ones(4)
OF_WEIGHT = functools.partial(lambda weight, x: scaled(x, float(weight.shape[0])), WEIGHT)


@row(item(PARTIAL.keywords, "by", 5.0))
def a_keyword_of_a_partial_function(x):
    return PARTIAL(x)


@row(item(PARTIAL.keywords, "by", 5.0))
def a_keyword_of_a_partial_function_by_name(x):
    return scaled(x, PARTIAL.keywords["by"])


STATED = functools.partial(multiplied, by=2.0)


def state(by):
    return lambda: STATED.__setstate__((multiplied, (), {"by": by}, {}))


@row(done(state(5.0), state(2.0)))
def the_state_of_a_partial_function(x):
    return STATED(x)


@row(item(LIST, 0, 5.0))
def a_list_in_a_partial_function(x):
    return OF_LIST(x)


@row(done(lambda: WEIGHT.resize_(3), lambda: WEIGHT.resize_(4).fill_(1.0)))
def a_tensor_in_a_partial_function(x):
    return OF_WEIGHT(x)


class Multiplying:
    def __init__(self):
        self.by = 2.0

    def times(self, x):
        return scaled(x, self.by)

    def other(self, x):
        return scaled(x, 5.0)


Multiplying.times.gain = 2.0
OBJECT = Multiplying()
BOUND = OBJECT.times


@row(attribute(OBJECT, "by", 5.0))
def a_bound_method(x):
    return BOUND(x)


@row(attribute(OBJECT, "by", 5.0))
def the_object_of_a_bound_method(x):
    return scaled(x, BOUND.__self__.by)


@row(attribute(Multiplying.times, "gain", 5.0))
def an_attribute_of_a_method(x):
    return scaled(x, OBJECT.times.gain)


@row(attribute(Multiplying.times, "gain", 5.0))
def an_attribute_of_a_bound_method(x):
    return scaled(x, BOUND.gain)


@row(attribute(OBJECT, "times", lambda x: scaled(x, 5.0)))
def a_method_shadowed_on_the_object(x):
    return OBJECT.times(x)


@row(attribute(Multiplying.times, "__code__", Multiplying.other.__code__))
def the_code_of_a_method(x):
    return OBJECT.times(x)


REFERENCE = weakref.ref(OBJECT)


@row(attribute(OBJECT, "by", 5.0), refused="REFERENCE")
def what_a_weak_reference_returns(x):
    return scaled(x, REFERENCE().by)


GETTER = operator.itemgetter("by")


@row(item(TABLE, "by", 5.0))
def an_item_by_a_getter(x):
    return scaled(x, GETTER(TABLE))


class Calling:
    def __call__(self, x):
        return scaled(x, SPACE.by)


CALLING = Calling()


@row(attribute(SPACE, "by", 5.0))
def an_object_that_is_called(x):
    return CALLING(x)


@row(attribute(Calling, "__call__", lambda self, x: scaled(x, 5.0)))
def the_call_of_a_class(x):
    return CALLING(x)


# -- closures, defaults ----------------------------------------------------------------------------


def made(by, inner=None):
    def host(x, items=LIST, *, named=OTHER):
        if inner is not None:
            return inner(x)
        return scaled(x, by * items[0] * named[0])

    return host


outer_of_two = made(1.0, made(2.0))


@row(item(OTHER, 0, 5.0))
def functions_of_one_code(x):
    return outer_of_two(x)


def with_names(x, *, by=2.0):
    return scaled(x, by)


@row(item(with_names.__kwdefaults__, "by", 5.0))
def a_named_default_in_place(x):
    return with_names(x)


def with_list(x, items=LIST):
    return scaled(x, items[0])


@row(item(LIST, 0, 5.0))
def a_list_as_a_default(x):
    return with_list(x)


# -- modules of torch ------------------------------------------------------------------------------

SOFTMAX, LINEAR, LEAKY = torch.nn.Softmax(0), torch.nn.Linear(4, 4), torch.nn.LeakyReLU(0.1)
LINEAR.requires_grad_(False)


class Gain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.by = 2.0
        self.inner = SOFTMAX

    def forward(self, x):
        return scaled(self.inner(x), self.by)


GAIN, SEQUENCE = Gain(), torch.nn.Sequential(torch.nn.LeakyReLU(0.1), Gain())


@row(attribute(LEAKY, "negative_slope", 5.0))
def a_setting_of_a_module_of_torch(x):
    return scaled(LEAKY(x - 2.0), 2.0)


@row(attribute(SEQUENCE[0], "negative_slope", 5.0))
def a_setting_of_a_module_in_a_sequence(x):
    return SEQUENCE(x - 2.0)


@row(attribute(GAIN, "by", 5.0))
def an_attribute_of_a_module(x):
    return GAIN(x)


@row(attribute(LINEAR, "weight", torch.nn.Parameter(torch.ones(4, 4), requires_grad=False)))
def a_parameter_of_a_module(x):
    return scaled(x * LINEAR.weight.sum(), 2.0)


@row(attribute(LINEAR, "weight", torch.nn.Parameter(torch.ones(4, 4), requires_grad=False)))
def a_parameter_of_a_module_that_is_called(x):
    return scaled(LINEAR(x), 2.0)


@row(added(Gain, "__call__", lambda self, x: scaled(x, 9.0)))
def a_module_that_gets_a_call_of_its_own(x):
    return GAIN(x)


@row(lambda patch: patch.setattr(torch.nn.Softmax, "forward", lambda self, x: x + 1))
def a_method_of_a_class_of_torch(x):
    return scaled(SOFTMAX(x), 2.0)


class Doubled(torch.nn.Softmax):
    def forward(self, x):
        return x * 2


@row(lambda patch: patch.setattr(SOFTMAX, "__class__", Doubled))
def the_class_of_a_module_of_torch(x):
    return scaled(SOFTMAX(x), 2.0)


# -- classes ---------------------------------------------------------------------------------------


def bases(kind, *others):
    return lambda: setattr(kind, "__bases__", others)


class Base:
    pass


class OtherBase:
    pass


class Derived(Base):
    pass


HOLDING, DERIVED = Holding([2.0]), Derived()


@row(done(bases(Derived, OtherBase), bases(Derived, Base)))
def the_bases_of_the_class_of_an_instance(x):
    return scaled(x, 2.0 if isinstance(DERIVED, Base) else 3.0)


@row(done(bases(Derived, OtherBase), bases(Derived, Base)))
def the_bases_of_a_subclass(x):
    return scaled(x, 2.0 if issubclass(Derived, Base) else 3.0)


class Checked(type):
    pass


class OfChecked(metaclass=Checked):
    pass


@row(added(Checked, "__instancecheck__", lambda cls, value: True))
def how_a_class_checks_instances(x):
    return scaled(x, 2.0 if isinstance(HOLDING, OfChecked) else 3.0)


def named(name):
    return lambda: setattr(Base, "__name__", name)


@row(done(named("Bottom"), named("Base")))
def the_name_of_a_class(x):
    return scaled(x, float(len(Base.__name__)))


@row(done(named("Bottom"), named("Base")))
def the_name_of_the_class_of_an_object(x):
    return scaled(x, float(len(type(BASE).__name__)))


BASE = Base()


@row(added(Base, "__eq__", lambda self, other: True))
def a_class_that_gets_an_equality(x):
    return scaled(x, 2.0 if BASE == DERIVED else 3.0)


@row(added(Base, "__eq__", lambda self, other: True))
def a_class_that_gets_an_equality_asked_for_difference(x):
    return scaled(x, 2.0 if BASE != 3 else 3.0)


OBJECTS = [BASE]


@row(added(Base, "__eq__", lambda self, other: True))
def a_class_that_gets_an_equality_used_in_a_list(x):
    return scaled(x, 2.0 if 3 in OBJECTS else 3.0)


@row(added(Base, "__str__", lambda self: "five!"))
def a_class_that_gets_a_text(x):
    return scaled(x, float(len(f"{BASE}")))


@row(added(Base, "__repr__", lambda self: "five!"))
def a_class_that_gets_a_text_used_in_a_list(x):
    return scaled(x, float(len(f"{OBJECTS}")))


@row(added(Base, "__str__", lambda self: "five!"))
def a_class_that_gets_a_text_used_by_an_operator(x):
    return scaled(x, float(len("%s" % BASE)))  # noqa: UP031


class Failed(Exception):
    pass


class Other(Exception):
    pass


class Worse(Failed):
    pass


WORSE = Worse()


@row(done(bases(Worse, Other), bases(Worse, Failed)))
def the_bases_of_an_exception(x):
    try:
        raise WORSE
    except Failed:
        return scaled(x, 2.0)
    except Exception:
        return scaled(x, 3.0)


# -- modules, builtins, environment, threads, logging ----------------------------------------------

MODULE = types.ModuleType("tzero_hostile_module")
MODULE.by = 2.0


class WithProperty(types.ModuleType):
    @property
    def by(self):
        return 5.0


@row(attribute(MODULE, "__class__", WithProperty))
def the_class_of_a_module(x):
    return scaled(x, MODULE.by)


@row(attribute(MODULE, "__getattr__", lambda name: 5.0))
def a_module_that_gets_a_getattr(x):
    return scaled(x, getattr(MODULE, "missing", 2.0))


CUSTOM: dict[str, Any] = {"__builtins__": {"BY": 2.0}}
exec("def by(): return BY\n", CUSTOM)
of_custom = CUSTOM["by"]


@row(item(CUSTOM["__builtins__"], "BY", 5.0))
def builtins_of_its_own(x):
    return scaled(x, of_custom())


_import = builtins.__import__


def importing(name, *rest):
    if name == "math":
        return SimpleNamespace(sqrt=lambda value: 5.0)
    return _import(name, *rest)


@row(lambda patch: patch.setattr(builtins, "__import__", importing))
def how_modules_are_imported(x):
    import math

    return scaled(x, math.sqrt(4.0))


@row(lambda patch: patch.setenv("TZERO_HOSTILE", "abcd"))
def a_variable_by_keyword(x):
    return scaled(x, float(len(os.getenv(default="ab", key="TZERO_HOSTILE"))))


LOG = logging.getLogger("tzero.hostile")


@row(done(lambda: LOG.setLevel(logging.DEBUG), lambda: LOG.setLevel(logging.NOTSET)))
def whether_a_logger_speaks(x):
    return scaled(x, 2.0 if LOG.isEnabledFor(logging.DEBUG) else 3.0)


@row(attribute(SPACE, "by", 5.0))
def a_function_that_is_made_in_the_call(x):
    def times(y, items=SPACE.items):
        return scaled(y, SPACE.by * items[0])

    return times(x)


LOCAL = threading.local()
LOCAL.by = 2.0


@row(attribute(LOCAL, "by", 5.0))
def an_attribute_of_a_thread(x):
    return scaled(x, LOCAL.by)


# -- many names ------------------------------------------------------------------------------------

MANY = "\n".join(
    [
        "def many(x):",
        "    total = 0.0",
        *(f"    total += N{k}" for k in range(300)),
        "    if LAST:",
        *(f"        total += N{k} * 2" for k in range(300)),
        "    return scaled(x, total)",
    ]
)
NUMBERS: dict[str, Any] = {"scaled": scaled, "LAST": [1], **{f"N{k}": float(k) for k in range(300)}}
NUMBERS["__name__"] = "tests.hostile.many"
exec(MANY, NUMBERS)
many = NUMBERS["many"]


@row(item(NUMBERS, "N299", 5.0))
def the_last_of_many_globals(x):
    return many(x)


@row(done(NUMBERS["LAST"].clear, lambda: NUMBERS["LAST"].append(1)))
def a_jump_over_many_instructions(x):
    return many(x)
