"""Guards: when each kind holds, and when two are equal."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tzero.reading.guards import Absent, Check, Equal, Same


def cell(value: Any) -> Any:
    return (lambda: value).__closure__[0]  # type: ignore[index]


def test_same_compares_objects_and_equal_compares_values() -> None:
    where = {"a": "text"}
    same, equal = (kind("a", where, "a", where["a"]) for kind in (Same, Equal))
    assert same.holds() and equal.holds()
    where["a"] = "".join(["te", "xt"])
    assert not same.holds()
    assert equal.holds()
    where["a"] = "other"
    assert not equal.holds()
    del where["a"]
    assert not same.holds() and not equal.holds()


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), ("a", b"a"), (0, "")])
def test_equal_compares_types_too(one: Any, other: Any) -> None:
    assert not Equal("a", {"a": other}, "a", one).holds()


def test_a_check_gets_the_present_value() -> None:
    where: dict[str, Any] = {"a": [1]}
    guard = Check("a", where, "a", where["a"], lambda now: now == [1])
    assert guard.holds()
    where["a"].append(2)
    assert not guard.holds()
    where["a"] = [1]
    assert guard.holds()


def test_an_exception_in_a_check_is_not_swallowed() -> None:
    def check(now: Any) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Check("a", {"a": 1}, "a", 1, check).holds()


def test_a_guard_on_a_closure_reads_its_cell() -> None:
    held = cell(3)
    guard = Equal("a", held, "", 3)
    assert guard.holds()
    held.cell_contents = 4
    assert not guard.holds()
    del held.cell_contents
    assert not guard.holds()


def test_guards_on_the_same_fact_are_equal() -> None:
    where = {"a": 1}
    guard = Equal("a", where, "a", 1)
    assert guard == Equal("a", where, "a", 1)
    assert guard != Equal("a", dict(where), "a", 1)
    assert guard != Equal("a", where, "a", 2)
    assert guard != Same("a", where, "a", 1)
    assert guard != Equal("b", where, "b", 1)


def test_checks_on_values_of_their_own_are_equal_if_their_texts_are() -> None:
    one, same, other = (Check(text, {"a": 1}, "a", 1, lambda now: True) for text in ("a", "a", "b"))
    assert one == same and hash(one) == hash(same)
    assert one != other


def test_absent_holds_until_the_name_is_there() -> None:
    where: dict[str, Any] = {}
    guard = Absent("no global 'len'", where, "len")
    assert guard.holds()
    where["len"] = None
    assert not guard.holds()


@pytest.mark.parametrize(
    "guard", [Same("a", {}, "a", 1), Equal("a", {}, "a", 1), Absent("a", {}, "a")]
)
def test_guards_cannot_be_changed(guard: Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        guard.value = 2
    assert not hasattr(guard, "__dict__")
