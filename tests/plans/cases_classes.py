"""Host functions that use classes and their methods, and a change of each."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import itertools
from typing import Any, ClassVar, NamedTuple

import torch
import triton.language as tl

from tests.plans.case import cases
from tests.plans.hosts import scaled

CASES = cases()
case = CASES.add

FLAG = 2.0


def flag(patch: Any) -> None:
    """A change: the global that the methods here read."""
    patch.setitem(globals(), "FLAG", 5.0)


def put(owner: Any, name: str, value: Any) -> Any:
    """A change: a new attribute."""
    return lambda patch: patch.setattr(owner, name, value, raising=False)


def put_on(kind: type, name: str, value: Any) -> Any:
    """The same for a class; `monkeypatch` would leave an inherited attribute on it."""

    @contextlib.contextmanager
    def change() -> Any:
        setattr(kind, name, value)
        try:
            yield
        finally:
            delattr(kind, name)

    return lambda patch: change()


def nothing(patch: Any) -> None:
    """No change: what is refused runs each time."""


# -- methods and class attributes ------------------------------------------------------------------


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


@case(flag)
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


@case(flag)
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


@case(flag)
def a_number_of_a_class_of_its_own(x):
    real = REAL
    return scaled(x, real.factor)


COUNT = itertools.count()


class Counting:
    @property
    def factor(self):
        return 2.0 if next(COUNT) >= 0 else 3.0


COUNTING = Counting()


@case(nothing, refused="to next, whose reads tzero does not see")
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


@case(lambda patch: patch.setattr(SIZE, "value", 5))
def a_constant_of_tritons_in_a_list(x):
    return scaled(x, float(SIZES[0].value))


# -- functions wrapped by decorators of libraries --------------------------------------------------


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
