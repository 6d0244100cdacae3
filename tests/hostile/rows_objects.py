"""Objects that find their attributes themselves, whose dict is replaced or read, or that are made
while the host function runs; and context variables."""

from __future__ import annotations

import collections
import collections.abc
import contextvars
import dataclasses
from typing import Any

import torch
from torch import nn

from tests.hostile.row import Patch, added, attribute, done, item, nothing, rows
from tests.plans.hosts import scaled

ROWS = rows()
row = ROWS.add


# -- attributes that the class finds ---------------------------------------------------------------


class Mapped:
    """As configurations do that have several names for one setting."""

    names = {"width": "size"}  # noqa: RUF012 - a row changes it

    def __init__(self) -> None:
        object.__setattr__(self, "size", 2.0)
        object.__setattr__(self, "other", 5.0)

    def __getattribute__(self, name):
        if name != "names" and name in super().__getattribute__("names"):
            name = super().__getattribute__("names")[name]
        return super().__getattribute__(name)

    @property
    def twice(self):
        return self.width * 2


MAPPED = Mapped()


@row(done(lambda: vars(MAPPED).update(size=5.0), lambda: vars(MAPPED).update(size=2.0)))
def an_attribute_by_another_name(x):
    return scaled(x, MAPPED.width)


@row(item(Mapped.names, "width", "other"))
def the_name_of_an_attribute(x):
    return scaled(x, MAPPED.width)


@row(attribute(Mapped, "names", {"width": "other"}))
def the_names_of_all_attributes(x):
    return scaled(x, MAPPED.width)


@row(attribute(Mapped, "__getattribute__", lambda self, name: 5.0))
def the_method_that_finds_attributes(x):
    return scaled(x, MAPPED.width)


@row(attribute(Mapped, "twice", property(lambda self: 7.0)))
def a_property_beside_a_method_that_finds_attributes(x):
    return scaled(x, MAPPED.twice)


@row(done(lambda: vars(MAPPED).update(more=5.0), lambda: vars(MAPPED).pop("more")))
def a_missing_attribute_that_the_class_finds(x):
    return scaled(x, getattr(MAPPED, "more", 2.0))


@row(added(Mapped, "__getattr__", lambda self, name: 5.0))
def a_class_that_gets_a_way_to_missing_attributes(x):
    return scaled(x, getattr(MAPPED, "more", 2.0))


class WithSlot:
    __slots__ = ("by",)

    def __getattribute__(self, name):
        return super().__getattribute__(name)


SLOTTED = WithSlot()
SLOTTED.by = 2.0


@row(attribute(SLOTTED, "by", 5.0), refused="cannot see changes of a WithSlot")
def a_slot_of_a_class_that_finds_attributes(x):
    return scaled(x, SLOTTED.by)


@row(nothing, refused="access to hidden state")
def a_hidden_attribute_by_a_method_of_object(x):
    found = object.__getattribute__(MAPPED, "__getattribute__")
    return scaled(x, found("size"))


# -- dicts of attributes ---------------------------------------------------------------------------


class Plain:
    def __init__(self, by):
        self.by = by


PLAIN = Plain(2.0)


def other_dict(owner: Any, **changes: Any) -> Any:
    """A change: an object gets another dict of attributes."""
    before = vars(owner)

    def change(found: dict[str, Any]) -> None:
        owner.__dict__ = found

    return done(lambda: change({**before, **changes}), lambda: change(before))


@row(other_dict(PLAIN, by=5.0))
def an_object_with_another_dict(x):
    return scaled(x, PLAIN.by)


MODULE = nn.Identity()
MODULE.by = 2.0


@row(other_dict(MODULE, by=5.0))
def a_module_with_another_dict(x):
    return scaled(x, MODULE.by)


@row(other_dict(PLAIN, more=5.0))
def a_missing_attribute_of_an_object_with_another_dict(x):
    return scaled(x, getattr(PLAIN, "more", 2.0))


def helper():
    """A function with an attribute."""


helper.by = 2.0


@row(other_dict(helper, by=5.0))
def a_function_with_another_dict(x):
    return scaled(x, helper.by)


@row(attribute(PLAIN, "by", 5.0))
def an_attribute_read_in_a_dict(x):
    return scaled(x, PLAIN.__dict__["by"])


@row(attribute(PLAIN, "more", 5.0))
def an_attribute_that_a_dict_does_not_have(x):
    return scaled(x, PLAIN.__dict__.get("more", 2.0))


@row(other_dict(PLAIN, by=5.0))
def another_dict_that_is_read(x):
    return scaled(x, PLAIN.__dict__["by"])


@row(attribute(PLAIN, "more", 5.0))
def the_length_of_a_dict_of_attributes(x):
    return scaled(x, float(len(PLAIN.__dict__)))


@row(nothing, refused="it changes")
def an_attribute_set_in_a_dict(x):
    PLAIN.__dict__["by"] = PLAIN.by
    return scaled(x, 2.0)


# -- classes that have methods of `collections` ----------------------------------------------------


class Registry(collections.abc.MutableMapping):
    """Functions by name, some for all registries and some for one."""

    of_all = {"by": 2.0}  # noqa: RUF012 - a row changes it

    def __init__(self) -> None:
        self.own = {}

    def __getitem__(self, name):
        return self.own[name] if name in self.own else self.of_all[name]

    def __setitem__(self, name, value):
        self.own[name] = value

    def __delitem__(self, name):
        del self.own[name]

    def __iter__(self):
        return iter({**self.of_all, **self.own})

    def __len__(self):
        return len(self.of_all.keys() | self.own.keys())


REGISTRY = Registry()


@row(item(Registry.of_all, "by", 5.0))
def an_item_by_a_method_of_collections(x):
    return scaled(x, REGISTRY.get("by"))


@row(done(lambda: REGISTRY.own.update(by=5.0), REGISTRY.own.clear))
def an_item_that_a_registry_gets_for_itself(x):
    return scaled(x, REGISTRY.get("by", 3.0))


@row(done(lambda: REGISTRY.own.update(more=5.0), REGISTRY.own.clear))
def an_item_that_a_registry_does_not_have(x):
    return scaled(x, 5.0 if "more" in REGISTRY else 2.0)


@row(attribute(Registry, "get", lambda self, name: 5.0))
def a_method_of_collections_that_is_hidden(x):
    return scaled(x, REGISTRY.get("by"))


class ByText(dict):
    def get(self, key):
        return super().get(str(key)) or 3.0


BY_TEXT = ByText({"1": 2.0})


@row(item(BY_TEXT, "1", 5.0))
def an_item_of_a_class_made_from_dict(x):
    return scaled(x, BY_TEXT.get(1))


@row(done(lambda: BY_TEXT.update({"2": 5.0}), lambda: BY_TEXT.pop("2")))
def a_missing_item_of_a_class_made_from_dict(x):
    return scaled(x, BY_TEXT.get(2))


# -- objects that are made in the call -------------------------------------------------------------


@dataclasses.dataclass
class Output(collections.OrderedDict):
    """As modules return that several parts of a program take apart."""

    last: Any
    cache: Any = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            self[field.name] = getattr(self, field.name)

    def __setattr__(self, name, value):
        super().__setitem__(name, value)
        super().__setattr__(name, value)


@row(attribute(PLAIN, "by", 5.0))
def an_object_that_is_kept_in_a_new_dict(x):
    made = Output(last=scaled(x, PLAIN.by), cache=PLAIN)
    return made.last * made["cache"].by


@row(attribute(PLAIN, "by", 5.0))
def an_object_that_is_kept_in_a_new_list(x):
    made = []
    made.append(PLAIN)
    return scaled(x, made[0].by)


@row(item(Output.__dataclass_fields__, "cache", Output.__dataclass_fields__["last"]))
def the_fields_of_a_dataclass(x):
    return scaled(x, float(len({each.name for each in dataclasses.fields(Output)})))


# -- context variables -----------------------------------------------------------------------------

ACTIVE: contextvars.ContextVar[Any] = contextvars.ContextVar("ACTIVE", default=2.0)


def in_context(value: Any) -> Any:
    """A change: a context variable has another value."""
    tokens: list[Any] = []
    return done(lambda: tokens.append(ACTIVE.set(value)), lambda: ACTIVE.reset(tokens.pop()))


@row(in_context(5.0))
def a_context_variable(x):
    return scaled(x, ACTIVE.get())


@row(in_context(5.0))
def a_context_variable_with_a_default_of_its_own(x):
    return scaled(x, ACTIVE.get(3.0))


@row(in_context(5.0))
def a_context_variable_after_it_was_set_for_a_time(x):
    token = ACTIVE.set(7.0)
    inner = ACTIVE.get()
    ACTIVE.reset(token)
    return scaled(x, ACTIVE.get() + inner)


@row(nothing, refused="it sets the global 'ACTIVE', a context variable")
def a_context_variable_that_stays_set(x):
    ACTIVE.set([2.0])
    return scaled(x, 2.0)


# -- modules that derive from torch's --------------------------------------------------------------


class Twice(nn.Linear):
    def forward(self, x):
        return super().forward(x) * 2


LINEAR = Twice(4, 4).requires_grad_(False)


def patched_forward(patch: Patch) -> None:
    patch.setattr(nn.Linear, "forward", lambda self, x: x * 5)


@row(patched_forward)
def the_forward_of_a_module_of_torch_by_super(x):
    return scaled(x, 2.0) + LINEAR(x[:4])


@row(other_dict(LINEAR, weight=torch.zeros(4, 4), bias=None))
def the_weight_of_such_a_module(x):
    return scaled(x, 2.0) + LINEAR(x[:4])


# -- sets, which are asked for what they hold ------------------------------------------------------


EMPTY: set[str] = set()
OTHER = nn.Identity()
ONLY_MODULES: set[nn.Module] = {LINEAR}


@row(done(lambda: EMPTY.add("twice"), EMPTY.clear))
def what_an_empty_set_holds(x):
    return scaled(x, 2.0 if "twice" in EMPTY else 3.0)


@row(done(lambda: ONLY_MODULES.add(OTHER), lambda: ONLY_MODULES.discard(OTHER)))
def what_a_set_of_modules_holds(x):
    return scaled(x, 2.0 if OTHER in ONLY_MODULES else 3.0)


# -- finalizers ------------------------------------------------------------------------------------


class Ended:
    count = 0

    def __init__(self, value):
        self.value = value

    def __del__(self):
        type(self).count += 1


@row(nothing, refused="it uses Ended.__del__, which has side effects")
def an_object_with_a_finalizer(x):
    return scaled(x, Ended(2.0).value)


class Plain:
    def __init__(self, value):
        self.value = value


@row(added(Plain, "__del__", lambda self: ENDED.append(self.value)))
def an_object_that_gets_a_finalizer(x):
    before = len(ENDED)
    made = scaled(x, Plain(2.0).value)
    return made if len(ENDED) == before else made * 5


ENDED: list[float] = []


CLEANED: list[float] = []
FACTORS = [2.0, 3.0]


def factors():
    try:
        yield 2.0
    finally:
        CLEANED.append(1.0)


def guarded_factors():
    try:
        yield FACTORS[0]
        yield FACTORS[1]
    finally:
        pass


@row(nothing, refused="it leaves factors unfinished, whose cleanup no replay runs")
def a_generator_that_is_left_unfinished(x):
    return scaled(x, next(factors()))


@row(item(FACTORS, 0, 5.0))
def a_generator_that_ends(x):
    return scaled(x, sum(guarded_factors()))
