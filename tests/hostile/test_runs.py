"""A recording runs nothing of the program that the call did not run: neither a property, nor a
comparison, nor a hook is run once more, or for nothing."""

from __future__ import annotations

import collections
import functools
from typing import Any

import torch

from tests.plans.hosts import scaled
from tests.plans.tiers import of_tier
from tests.rows import Rows, by_row

RUNS: collections.Counter[str] = collections.Counter()


class Meta(type):
    def __getattribute__(cls, name):
        if not name.startswith("__"):
            RUNS[f"Meta.{name}"] += 1
        return type.__getattribute__(cls, name)


def counting(name: str, answer: Any) -> Any:
    def method(self, *args):
        RUNS[name] += 1
        return answer(self, *args)

    method.__name__ = name
    return method


class Counting:
    """Counts whatever is done to it."""

    def __init__(self) -> None:
        self.plain = 2.0

    by = property(counting("by", lambda self: 2.0))
    twice = functools.cached_property(counting("twice", lambda self: 4.0))
    __eq__ = counting("__eq__", lambda self, other: self is other)
    __hash__ = counting("__hash__", lambda self: 3)
    __bool__ = counting("__bool__", lambda self: True)
    __len__ = counting("__len__", lambda self: 2)
    __iter__ = counting("__iter__", lambda self: iter((1.0, 2.0)))
    __getitem__ = counting("__getitem__", lambda self, key: 2.0)
    __contains__ = counting("__contains__", lambda self, key: True)
    __str__ = counting("__str__", lambda self: "2.0")
    __repr__ = counting("__repr__", lambda self: "2.0")
    __format__ = counting("__format__", lambda self, spec: "2.0")
    __call__ = counting("__call__", lambda self: 2.0)
    __float__ = counting("__float__", lambda self: 2.0)


class Answering(Counting):
    __getattr__ = counting("__getattr__", lambda self, name: 2.0)


class Hooked(Counting):
    def __getattribute__(self, name):
        RUNS[f"__getattribute__ {name}"] += 1
        return object.__getattribute__(self, name)


class Classy(Counting):
    @property
    def __class__(self):
        RUNS["__class__"] += 1
        return Counting


class OfMeta(metaclass=Meta):
    by = 2.0


class Pair(tuple):
    __getitem__ = counting("Pair.__getitem__", lambda self, key: tuple.__getitem__(self, key))
    __iter__ = counting("Pair.__iter__", lambda self: tuple.__iter__(self))
    __len__ = counting("Pair.__len__", lambda self: tuple.__len__(self))


ONE, OTHER, ANSWERING, HOOKED, CLASSY = Counting(), Counting(), Answering(), Hooked(), Classy()
PAIR = Pair((2.0, 3.0))
LIST = [ONE, OTHER]
TABLE = {ONE: 2.0, OTHER: 3.0}
SPACE = type("Space", (), {})()
SPACE.one, SPACE.answering = ONE, ANSWERING


@functools.lru_cache
def cached(value, by=2.0):
    return by


class Host:
    def __init__(self, name: str, function: Any) -> None:
        self.name, self.function = name, function


HOSTS = Rows(Host)
host = HOSTS.add()


@host
def a_property(x):
    return scaled(x, ONE.by)


@host
def a_property_of_an_attribute(x):
    return scaled(x, SPACE.one.by)


@host
def a_cached_property(x):
    return scaled(x, ONE.twice)


@host
def a_plain_attribute(x):
    return scaled(x, ONE.plain)


@host
def an_attribute_that_is_answered(x):
    return scaled(x, ANSWERING.anything)


@host
def an_attribute_that_is_answered_by_an_attribute(x):
    return scaled(x, SPACE.answering.anything)


@host
def an_attribute_by_getattr(x):
    return scaled(x, getattr(ANSWERING, "anything", 3.0) if hasattr(ONE, "by") else 3.0)


@host
def attributes_that_are_hooked(x):
    return scaled(x, HOOKED.plain)


@host
def an_object_with_a_class_of_its_own(x):
    return scaled(x, CLASSY.plain)


@host
def an_attribute_of_a_class(x):
    return scaled(x, OfMeta.by)


@host
def equality(x):
    return scaled(x, 2.0 if ONE == OTHER else 3.0)


@host
def an_item_by_an_object(x):
    return scaled(x, TABLE[ONE])


@host
def an_item_by_a_method(x):
    return scaled(x, TABLE.get(OTHER))


@host
def an_object_in_a_list(x):
    return scaled(x, 2.0 if OTHER in LIST else 3.0)


@host
def an_object_in_a_dict(x):
    return scaled(x, 2.0 if OTHER in TABLE else 3.0)


@host
def a_cached_function(x):
    return scaled(x, cached(ONE, by=3.0))


@host
def a_cached_function_of_a_tuple(x):
    return scaled(x, cached((ONE, 1)))


@host
def truth(x):
    return scaled(x, 2.0 if ONE else 3.0)


@host
def length(x):
    return scaled(x, float(len(ONE)))


@host
def a_loop(x):
    total = 0.0
    for each in ONE:
        total += each
    return scaled(x, total)


def last(*numbers):
    return numbers[-1]


@host
def a_star(x):
    return scaled(x, last(*ONE))


@host
def an_item(x):
    return scaled(x, ONE[0])


@host
def a_member(x):
    return scaled(x, 2.0 if 1 in ONE else 3.0)


@host
def a_text(x):
    return scaled(x, float(f"{ONE}"))


@host
def a_text_of_a_list(x):
    return scaled(x, float(len(str(LIST))))


@host
def a_call(x):
    return scaled(x, ONE())


@host
def a_number(x):
    return scaled(x, float(ONE))


@host
def an_item_of_a_pair(x):
    return scaled(x, PAIR[0])


@host
def the_items_of_a_pair(x):
    one, _ = PAIR
    return scaled(x, one)


@host
def an_object_that_is_not_looked_at(x):
    return scaled(x, 2.0 if ONE is OTHER else 3.0)


@host
def objects_that_are_passed_on(x):
    one, other = ONE, ANSWERING
    return scaled(x, last(one, other, 2.0))


@host
def a_new_object(x):
    return scaled(x, Counting().by)


def counted(call: Any) -> list[collections.Counter[str]]:
    """What each of three calls runs."""
    for one in (ONE, OTHER, ANSWERING, HOOKED, CLASSY):
        vars(one).pop("twice", None)
    cached.cache_clear()
    found = []
    for _ in range(3):
        RUNS.clear()
        call()
        found.append(collections.Counter(RUNS))
    return found


@by_row(HOSTS)
def test_the_recorded_call_runs_what_the_plain_call_runs(row: Any, tier: int, reader: str) -> None:
    x = torch.arange(4.0)
    plain = counted(lambda: row.function(x))
    kernel = of_tier(tier, row.function)
    ours = counted(lambda: kernel(x))
    assert ours == plain
