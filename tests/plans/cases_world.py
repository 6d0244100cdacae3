"""Host functions that read globals, closures and helpers of this module, and a change of each."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import threading
from types import SimpleNamespace

import torch

from tests.plans.case import cases
from tests.plans.hosts import scaled
from tests.plans.kernels import BLOCK, scale

CASES = cases()
case = CASES.add


def set_global(name, value):
    """A change: another value for a global of this module."""
    return lambda patch: patch.setitem(globals(), name, value)


# -- plain values ----------------------------------------------------------------------------------

NUMBER, COUNT, FLAG, MODE, ZERO = 2.0, 3, True, "double", 0.0


@case(set_global("NUMBER", 5.0))
def a_global_number(x):
    return scaled(x, NUMBER)


@case(set_global("COUNT", 3.0))
def a_global_number_of_another_type(x):
    return COUNT, scaled(x, 2.0)


@case(set_global("FLAG", 1))
def a_global_bool_that_becomes_one(x):
    return FLAG, scaled(x, 2.0)


@case(set_global("ZERO", -0.0))
def a_global_zero_that_becomes_minus_zero(x):
    return ZERO, scaled(x, ZERO)


@case(set_global("MODE", "triple"))
def a_global_text(x):
    return scaled(x, 2.0 if MODE == "double" else 3.0)


@case(set_global("BLOCK", 32))
def a_global_that_is_compiled_in(x):
    out = torch.empty_like(x)
    scale[(1,)](x, out, 2.0, x.numel(), BLOCK=BLOCK)
    return out, BLOCK


@case(lambda patch: patch.delitem(globals(), "NUMBER"))
def a_global_that_is_deleted(x):
    try:
        return scaled(x, NUMBER)
    except NameError:
        return scaled(x, 7.0)


DTYPE = torch.float32


@case(set_global("DTYPE", torch.float64))
def a_global_dtype(x):
    return scaled(torch.ones(3, dtype=DTYPE), 2.0)


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


KIND = Kind.ONE


@case(set_global("KIND", Kind.TWO))
def a_global_member_of_an_enum(x):
    return scaled(x, 2.0 if KIND is Kind.ONE else 3.0)


# -- containers and objects ------------------------------------------------------------------------

PAIR, ITEMS, TABLE = (1.0, 2.0), [1.0, 2.0], {"by": 2.0, "deep": {"a": [1.0]}}


@case(set_global("PAIR", (1.0, 3.0)))
def a_global_tuple(x):
    return scaled(x, PAIR[1])


@case(lambda patch: patch.setitem(_Index(ITEMS), 1, 9.0))
def the_contents_of_a_global_list(x):
    return scaled(x, ITEMS[1])


class _Index(dict):
    """A list, in the form that `monkeypatch.setitem` takes."""

    def __init__(self, items):
        super().__init__(enumerate(items))
        self.items_ = items

    def __setitem__(self, k, value):
        super().__setitem__(k, value)
        self.items_[k] = value


@case(lambda patch: patch.setitem(TABLE, "by", 9.0))
def the_contents_of_a_global_dict(x):
    return scaled(x, TABLE["by"])


@case(lambda patch: patch.setitem(TABLE["deep"], "a", [4.0]))
def what_is_deep_in_a_global_dict(x):
    return scaled(x, TABLE["deep"]["a"][0])


@case(lambda patch: patch.setitem(TABLE, "more", 1.0))
def the_length_of_a_global_dict(x):
    return scaled(x, float(len(TABLE)))


@dataclasses.dataclass
class Options:
    by: float = 2.0
    deep: SimpleNamespace = dataclasses.field(default_factory=lambda: SimpleNamespace(by=2.0))


OPTIONS, SPACE, LOCAL = Options(), SimpleNamespace(by=2.0, deep=Options()), threading.local()
LOCAL.by = 2.0


@case(lambda patch: patch.setattr(OPTIONS, "by", 3.0))
def an_attribute_of_a_global_object(x):
    return scaled(x, OPTIONS.by)


@case(lambda patch: patch.setattr(SPACE.deep.deep, "by", 3.0))
def an_attribute_of_an_attribute(x):
    return scaled(x, SPACE.deep.deep.by)


@case(set_global("SPACE", SimpleNamespace(by=4.0)))
def an_attribute_of_another_object(x):
    return scaled(x, SPACE.by)


@case(lambda patch: patch.delattr(SPACE, "by"))
def an_attribute_that_is_deleted(x):
    try:
        return scaled(x, SPACE.by)
    except AttributeError:
        return scaled(x, 7.0)


@case(lambda patch: patch.setattr(LOCAL, "by", 3.0))
def an_attribute_of_this_thread(x):
    return scaled(x, LOCAL.by)


class Config:
    by = 2.0
    table = {"by": 2.0}  # noqa: RUF012

    @staticmethod
    def twice(value):
        return 2 * value


@case(lambda patch: patch.setattr(Config, "by", 3.0))
def an_attribute_of_a_class(x):
    return scaled(x, Config.by)


@case(lambda patch: patch.setitem(Config.table, "by", 3.0))
def the_contents_of_an_attribute_of_a_class(x):
    return scaled(x, Config.table["by"])


@case(lambda patch: patch.setattr(Config, "twice", staticmethod(lambda value: 5 * value)))
def a_static_method(x):
    return scaled(x, Config.twice(2.0))


# -- functions and what they read ------------------------------------------------------------------


def helper(x):
    return scaled(x, NUMBER)


def outer_helper(x):
    return helper(x)


def other_helper(x):
    return scaled(x, 11.0)


def with_default(x, by=2.0, *, more=1.0):
    return scaled(x, by * more)


HELPERS = {"a": helper}


@case(set_global("helper", other_helper))
def a_helper(x):
    return helper(x)


@case(set_global("NUMBER", 5.0))
def a_global_of_a_helper(x):
    return helper(x)


@case(set_global("helper", other_helper))
def a_helper_of_a_helper(x):
    return outer_helper(x)


@case(set_global("NUMBER", 5.0))
def a_global_of_a_helper_of_a_helper(x):
    return outer_helper(x)


@case(set_global("NUMBER", 5.0))
def a_global_of_a_function_in_a_table(x):
    return HELPERS["a"](x)


@case(lambda patch: patch.setitem(HELPERS, "a", other_helper))
def a_function_in_a_table(x):
    return HELPERS["a"](x)


@case(lambda patch: patch.setattr(with_default, "__defaults__", (5.0,)))
def a_default_of_a_helper(x):
    return with_default(x)


@case(lambda patch: patch.setattr(with_default, "__kwdefaults__", {"more": 5.0}))
def a_named_default_of_a_helper(x):
    return with_default(x)


@case(lambda patch: patch.setattr(helper, "__code__", other_helper.__code__))
def the_code_of_a_helper(x):
    return helper(x)


helper.by = 2.0


@case(lambda patch: patch.setattr(helper, "by", 5.0))
def an_attribute_of_a_function(x):
    return scaled(x, helper.by)


@functools.cache
def cached(mode):
    return NUMBER


@contextlib.contextmanager
def forgotten():
    cached.cache_clear()
    yield
    cached.cache_clear()


@case(lambda patch: (patch.setitem(globals(), "NUMBER", 5.0), forgotten())[1])
def a_global_of_a_cached_helper(x):
    return scaled(x, cached("a"))


@case(set_global("NUMBER", 5.0))
def a_global_of_a_function_in_it(x):
    def inner(y):
        return scaled(y, NUMBER)

    return inner(x)


@case(set_global("NUMBER", 5.0))
def a_global_in_a_comprehension(x):
    return [scaled(x, NUMBER + k) for k in range(2)]


# -- closures --------------------------------------------------------------------------------------


def closing():
    by, items = 2.0, [2.0]

    def host(x):
        return scaled(x, by)

    def contents(x):
        return scaled(x, items[0])

    def inner(x):
        return [scaled(x, by) for _ in range(1)]

    def set_by(value):
        nonlocal by
        by = value

    return host, contents, inner, set_by, items


_closed, _contents, _inner, _set_by, _items = closing()


def rebind(patch):
    """Change what a closure's cell holds."""
    patch.setattr(_closed.__closure__[0], "cell_contents", 6.0)


case(rebind)(_closed)
case(rebind)(_inner)
case(lambda patch: patch.setitem(_Index(_items), 0, 6.0))(_contents)
