"""What is read of a host function: guards, helpers and attributes."""

from __future__ import annotations

import dataclasses
import time
from types import FunctionType
from typing import Any

import pytest
import torch

from tzero.reading.dependencies import Unreplayable, read_dependencies
from tzero.reading.guards import Absent, Check, Equal, Same

BLOCK = 64
WEIGHT = torch.ones(3)


def inner(x):
    return x + BLOCK


def outer(x, n=2):
    return inner(x) * n


@dataclasses.dataclass
class Point:
    x: int

    def double(self):
        return inner(self.x)


def point(x):
    return Point(x).double()


def test_helpers_are_the_functions_that_it_may_call() -> None:
    found = read_dependencies(lambda x: outer(x))
    assert found.helpers == (outer, inner)
    assert {Point.double, inner} <= set(read_dependencies(point).helpers)
    assert read_dependencies(lambda x: torch.relu(x)).helpers == ()


def test_each_kind_of_name_has_its_guard() -> None:
    def host(x):
        return len(x) + BLOCK + WEIGHT

    found = {guard.text: guard for guard in read_dependencies(host).guards}
    assert type(found["the global 'BLOCK'"]) is Equal
    assert type(found["the global 'WEIGHT'"]) is Same
    assert type(found["no global 'len'"]) is Absent
    assert (
        type({g.text: g for g in read_dependencies(point).guards}["the classes that it uses"])
        is Check
    )


def test_tensors_are_found_by_the_number_of_their_guard() -> None:
    found = read_dependencies(lambda: BLOCK * WEIGHT)
    ((number, tensor),) = found.tensors.items()
    assert tensor is WEIGHT
    assert found.guards[number].value is WEIGHT


def test_attributes_that_tensors_do_not_have_are_named() -> None:
    assert (
        read_dependencies(
            lambda x: x.shape,
        ).attributes
        == frozenset()
    )
    assert read_dependencies(lambda x: x.factor).attributes == {"factor"}


def test_new_code_of_a_helper_fails_a_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    def helper(x: Any) -> Any:
        return x

    def other(x: Any) -> Any:
        return x + 1

    guards = read_dependencies(lambda x: helper(x)).guards
    assert all(guard.holds() for guard in guards)
    assert isinstance(helper, FunctionType)
    helper.__code__ = other.__code__
    (failing,) = [guard.text for guard in guards if not guard.holds()]
    assert failing.startswith("the code of ") and failing.endswith("helper")


def test_what_cannot_be_replayed_has_its_reason_and_line() -> None:
    def host(x):
        return x + time.time()

    with pytest.raises(Unreplayable) as refused:
        read_dependencies(host)
    reason = "it uses time.time, which has side effects or is nondeterministic"
    assert refused.value.reason == reason
    assert (refused.value.file, refused.value.line) == (
        __file__,
        host.__code__.co_firstlineno + 1,
    )
