"""How long native code keeps plans over sizes, and that it releases what it holds."""
# ruff: noqa: F401, F811 (fixtures are imported, and go by their names as parameters)

from __future__ import annotations

import functools
import gc
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.native.native_plans import add_kernel, native
from tests.native.sized_plans import (
    SIZE,
    SizedStub,
    Written,
    add_description,
    adding,
    pair,
    settled,
    total,
)
from tzero.launches.native import ParameterDescription
from tzero.plans.describe import ValueDescription
from tzero.plans.sized_description import ChoiceDescription, MarksDescription

MOST_OF_A_CLASS = 32


def for_one_size(kernel: Any) -> Any:
    """Describes a plan that demands the size of the call, so that each size has a plan."""

    def describe_for(x: Any, y: Any) -> Any:
        written = Written((SIZE, 0, 0), (SIZE, 1, 0))
        written.demand("==", 0, written.constant(len(x)))
        return add_description(kernel, len(x), written=written)

    return describe_for


def missed(kernel: SizedStub, n: int) -> bool:
    before = kernel.misses
    x, y = pair(n)
    assert kernel(x, y).equal(x + y)
    return kernel.misses > before


def test_a_class_keeps_the_plans_that_were_used_last(add_kernel: Any) -> None:
    kernel = settled(SizedStub(total, for_one_size(add_kernel)), *pair(101))
    sizes = [n for n in range(102, 102 + 2 * MOST_OF_A_CLASS) if n % 16][: MOST_OF_A_CLASS - 1]
    assert [missed(kernel, n) for n in sizes] == [True] * len(sizes)
    assert kernel._count() == MOST_OF_A_CLASS
    assert not missed(kernel, 101)  # so that it is not the oldest
    assert missed(kernel, 7)
    assert kernel._count() == MOST_OF_A_CLASS
    assert not missed(kernel, 101)
    assert [missed(kernel, n) for n in sizes[1:]] == [False] * (len(sizes) - 1)
    assert missed(kernel, sizes[0])


class Few(native.Dispatching):  # type: ignore[misc, name-defined]
    """A kernel that may keep two plans."""

    def __init__(self, like: SizedStub) -> None:
        self.like, self.misses = like, 0
        names = ("x", "y")
        self._prepare(tuple(map(ParameterDescription, names)), (False, False), 2)

    def __call__(self, *args: Any) -> Any:
        raise AssertionError("the call goes to _missed")

    def _missed(self, args: Any, kwargs: Any) -> Any:
        self.misses += 1
        description = self.like.describe_for(*args)
        return torch.add(*args), ("bound", description, None, (False, False), self._generation())


native.enable_calls(Few)


def test_the_plan_that_was_used_longest_ago_is_evicted(add_kernel: Any) -> None:
    kernel: Any = Few(SizedStub(total, for_one_size(add_kernel)))
    for n in (101, 102, 101, 103):
        kernel(*pair(n))
    assert (kernel.misses, kernel._count()) == (3, 2)
    kernel(*pair(101))
    assert kernel.misses == 3
    kernel(*pair(102))
    assert kernel.misses == 4


def test_forgetting_drops_the_plans_of_a_bound_kernel(add_kernel: Any) -> None:
    kernel = settled(SizedStub(total, for_one_size(add_kernel)), *pair(101))
    first, kernel.bound = kernel.bound, SimpleNamespace(name="other")
    assert missed(kernel, 102)
    assert [bound for bound, _ in kernel._used()] == [kernel.bound, first]
    kernel._forget(first)
    assert kernel._count() == 1
    assert not missed(kernel, 102)
    assert missed(kernel, 101)
    kernel._forget(None)
    assert kernel._count() == 0
    assert missed(kernel, 102)


def test_the_clock_of_the_latest_hit_is_that_of_any_size(add_kernel: Any) -> None:
    kernel = adding(add_kernel, 100)
    before = kernel._tick()
    kernel(*pair(200 + 1))
    assert kernel._used() == [(kernel.bound, before + 1)]


def test_a_number_that_counts_by_value_from_now_on_drops_all_plans(add_kernel: Any) -> None:
    kernel = adding(add_kernel, 100)
    kernel.by_value = (True, False)
    kernel.describe_for = lambda x, y: None
    assert missed(kernel, 1)
    assert kernel._count() == 1  # nothing was described
    kernel.describe_for = lambda x, y: add_description(add_kernel, 1)
    assert missed(kernel, 1)
    assert kernel._count() == 1  # the old plan is gone


class Owner:
    """What a plan may refer to."""


def hand_over(kernel: SizedStub, description: Any) -> None:
    """Give a kernel a plan in a call, and forget the description."""
    kernel.describe_for = lambda x, y: description
    kernel(*pair(100))
    kernel.describe_for = lambda x, y: None


def test_a_plan_that_refers_to_its_kernel_is_collected(add_kernel: Any) -> None:
    owner = Owner()
    kernel = adding(add_kernel, 100)
    found = add_description(add_kernel, 100)
    constant = ValueDescription(native.VALUE_KINDS["constant"], object=(owner, kernel))
    kernel._forget(None)
    hand_over(kernel, found._replace(result=constant))
    assert kernel(*pair(101))[0] is owner
    gone = weakref.ref(owner)
    del owner, kernel, found, constant
    gc.collect()
    assert gone() is None


def test_replays_with_ever_new_sizes_leave_nothing_behind(add_kernel: Any) -> None:
    kernel = adding(add_kernel, 100)
    pairs = [pair(n) for n in range(300, 400) if n % 16]

    def held() -> tuple[int, int, int]:
        for x, y in pairs:
            kernel(x, y)
        gc.collect()
        return len(gc.get_objects()), sys.getrefcount(torch.float32), sys.getallocatedblocks()

    held()
    objects, references, blocks = held()
    for _ in range(5):
        found = held()
    # Fewer are none of these: a thread of another test may have ended meanwhile.
    assert found[0] <= objects
    assert found[1] <= references
    assert found[2] - blocks < 50
    assert kernel.misses == 0


def test_dropped_plans_release_what_they_hold(add_kernel: Any) -> None:
    kernel = adding(add_kernel, 100)
    found = add_description(add_kernel, 100)
    owner = Owner()
    constant = ValueDescription(native.VALUE_KINDS["constant"], object=owner)
    kernel._forget(None)
    hand_over(kernel, found._replace(result=constant))
    for n in (101, 102):
        assert kernel(*pair(n)) is owner
    gone = weakref.ref(owner)
    del owner, constant
    assert gone() is not None
    kernel._forget(None)
    gc.collect()
    assert gone() is None


# -- descriptions ----------------------------------------------------------------------------------


def changed(found: Any, **fields: Any) -> Any:
    return found._replace(sizes=found.sizes._replace(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"inputs": ((0, 0),)}, "inputs must be tuples of three integers"),
        ({"inputs": ((0, 0, -1), (0, 1, 0))}, "inputs must be tuples of three integers"),
        ({"inputs": ((3, 0, 0), (0, 1, 0))}, "inputs must be sources among the leaves"),
        ({"inputs": ((0, 2, 0), (0, 1, 0))}, "inputs must be sources among the leaves"),
        ({"inputs": ((0, 0, 0), (0, 1, 1))}, "must be sizes, strides and integers"),
        ({"inputs": ((2, 0, 0), (0, 1, 0))}, "must be sizes, strides and integers"),
        ({"free": (True,)}, "a flag in free for each"),
        ({"slots": ()}, "an item for each slot"),
        ({"slots": (None, None, 5)}, "None or .sizes, strides, offset."),
        ({"slots": (None, None, ((0, 0), (0, 0), 0))}, "as many sizes and strides"),
        ({"slots": (None, None, ((99,), (0,), 0))}, "formulas of the plan"),
        ({"slots": (None, None, None)}, "slot must be a slot whose geometry is in the sizes"),
        ({"launches": ()}, "a launch for each launch step"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(add_kernel: Any, fields: Any, message: str) -> None:
    found = changed(add_description(add_kernel, 100), **fields)
    kernel = SizedStub(total, lambda x, y: found)
    with pytest.raises((TypeError, ValueError), match=message):
        kernel(*pair(100))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"grid": (0, 0)}, "grid must be three formulas"),
        ({"grid": (0, 0, 0, 0)}, "grid must be three formulas"),
        ({"grid": (99, 0, 0)}, "grid must be formulas of the plan"),
        ({"selectors": ((99, False),)}, "selectors must be formulas of the plan"),
        ({"selectors": ((0,),)}, "a formula and a bool"),
        ({"selectors": ()}, "selected must be a tuple with an item for each selector"),
        ({"variants": ()}, "at least one item"),
    ],
)
def test_launches_that_make_no_sense_are_refused(
    add_kernel: Any, fields: Any, message: str
) -> None:
    found = add_description(add_kernel, 100)
    [launch] = found.sizes.launches
    found = changed(found, launches=(launch._replace(**fields),))
    kernel = SizedStub(total, lambda x, y: found)
    with pytest.raises((TypeError, ValueError), match=message):
        kernel(*pair(100))


HINTS = (((16,),), ((256,),))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"nearest": 5}, r"ChoiceDescription\.nearest must be a Nearest"),
        ({"shapes": (5,)}, "shapes must be tuples of formulas or None"),
        ({"shapes": ((99,),)}, "shapes must be formulas of the plan"),
        ({"hints": (2,)}, "hints must be numbers of its hints"),
        ({"hints": (-1,)}, "hints must be numbers of its hints"),
    ],
)
def test_choices_that_make_no_sense_are_refused(add_kernel: Any, fields: Any, message: str) -> None:
    choice = ChoiceDescription(native.Nearest(HINTS), ((0,),), (0,))
    found = changed(add_description(add_kernel, 100), choice=choice._replace(**fields))
    kernel = SizedStub(total, lambda x, y: found)
    with pytest.raises((TypeError, ValueError), match=message):
        kernel(*pair(100))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attribute": 5}, "attribute must be a str"),
        ({"of_leaf": (frozenset(),)}, "of_leaf must be a tuple with an item for each leaf"),
        ({"of_leaf": (frozenset(), 5)}, "of_leaf must be a frozenset or None for each leaf"),
    ],
)
def test_marks_that_make_no_sense_are_refused(add_kernel: Any, fields: Any, message: str) -> None:
    marks = MarksDescription("put_on_it", (frozenset(), None))
    found = changed(add_description(add_kernel, 100), marks=marks._replace(**fields))
    kernel = SizedStub(total, lambda x, y: found)
    with pytest.raises((TypeError, ValueError), match=message):
        kernel(*pair(100))


def test_a_call_whose_nearest_hint_has_another_config_runs_the_host(add_kernel: Any) -> None:
    choice = ChoiceDescription(native.Nearest(HINTS), ((0,),), (1,))
    kernel = SizedStub(
        total, lambda x, y: changed(add_description(add_kernel, x.numel()), choice=choice)
    )
    for n, misses in ((101, 1), (103, 1), (17, 2), (105, 2), (19, 3), (63, 4), (67, 4)):
        x, y = pair(n)
        assert torch.equal(kernel(x, y), x + y)
        assert kernel.misses == misses, n


def test_a_call_with_other_marks_on_its_tensors_runs_the_host(add_kernel: Any) -> None:
    marks = MarksDescription("put_on_it", (frozenset({0}), frozenset()))
    kernel = SizedStub(
        total, lambda x, y: changed(add_description(add_kernel, x.numel()), marks=marks)
    )

    def call(on_x: Any = None, on_y: Any = None) -> int:
        before = kernel.misses
        x, y = pair(101)
        for tensor, put in ((x, on_x), (y, on_y)):
            tensor.other = 1
            if put is not None:
                tensor.put_on_it = put
        assert torch.equal(kernel(x, y), x + y)
        return kernel.misses - before

    assert call({0}) == 1
    assert [call({0}), call({0}, set()), call(frozenset({0}))] == [0, 0, 0]
    assert [call(), call({1}), call({0, 1}), call({0}, {0}), call([0]), call({0}, 5)] == [1] * 6
    assert call({0}) == 0


def test_every_field_of_sizes_is_read_and_its_absence_named(add_kernel: Any) -> None:
    found = add_description(add_kernel, 100)
    [launch] = found.sizes.launches
    [one] = launch.variants

    def with_launch(part: Any) -> Any:
        return found.sizes._replace(launches=(part,))

    places: list[tuple[Any, Any]] = [
        (found.sizes, lambda part: part),
        (launch, with_launch),
        (one, lambda part: with_launch(launch._replace(variants=(part,)))),
    ]
    for whole, put in places:
        names = whole._fields
        for name in names:
            rest = {each: getattr(whole, each) for each in names if each != name}
            broken = found._replace(sizes=put(SimpleNamespace(**rest)))
            kernel = SizedStub(total, functools.partial(lambda it, x, y: it, broken))
            with pytest.raises(TypeError, match=f"has no field {name}, which"):
                kernel(*pair(100))


@pytest.mark.parametrize("numbers", [((99, 6, 0),), ((0, 99, 0),), ((0, 6, 9999),), ((0, 6),)])
def test_numbers_that_make_no_sense_are_refused(add_kernel: Any, numbers: Any) -> None:
    found = add_description(add_kernel, 100)
    [launch] = found.sizes.launches
    [one] = launch.variants
    one = one._replace(numbers=numbers)
    found = changed(found, launches=(launch._replace(variants=(one,)),))
    kernel = SizedStub(total, lambda x, y: found)
    with pytest.raises((TypeError, ValueError), match="numbers must be"):
        kernel(*pair(100))
