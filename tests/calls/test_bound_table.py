"""The table of bound kernels stays within its limit, evicts the least recently used, and warns once
at the caller's line, with fitting advice.
"""

from __future__ import annotations

import inspect
import re
import threading
import warnings
from typing import Any

import pytest
import torch

import tzero
from tzero import Kernel, settings
from tzero.calls.bound_table import Family

X = torch.zeros(4)


def named(how: Any) -> Any:
    return how


def tensor(x: Any, how: Any = "sum") -> Any:
    return x


def specialized(x: Any, n: Any) -> Any:
    return tzero.specialize(n)


def test_the_entry_that_was_used_last_stays() -> None:
    kernel = tzero.kernel(named)
    with settings.override(max_specializations=2):
        for how in "abba":
            kernel(how)
        with pytest.warns(UserWarning, match="more than 2"):
            kernel("c")
    assert [kernel.explain(how).hit for how in "abc"] == [True, False, True]


def test_a_bind_is_a_use() -> None:
    kernel = tzero.kernel(named)
    with settings.override(max_specializations=2):
        kernel("a")
        kernel("b")
        kernel.bind("a")
        with pytest.warns(UserWarning, match="more than 2"):
            kernel("c")
    assert [kernel.explain(how).hit for how in "abc"] == [True, False, True]


def test_a_bound_that_is_lowered_holds_from_the_next_miss_on() -> None:
    kernel = tzero.kernel(named)
    for k in range(50):
        kernel(str(k))
    with settings.override(max_specializations=3), pytest.warns(UserWarning, match="more than 3"):
        kernel("a")
    assert kernel.stats()[1:4] == (51, 3, 48)


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_families_go_with_their_last_member(calls: int) -> None:
    kernel = tzero.kernel(specialized)
    with warnings.catch_warnings(), settings.override(max_specializations=4):
        warnings.simplefilter("ignore")
        for size in range(100):
            for _ in range(calls):
                assert kernel(torch.zeros(size), 1) == 1
    table = kernel.table.table
    assert len(table) <= 8 and kernel.stats().entries <= 4
    members = [key for family in table.values() if type(family) is Family for key in family.members]
    assert len(members) == kernel.stats().entries
    assert all(table[key].key == key for key in members)  # type: ignore[union-attr]


def test_families_of_destroyed_objects_are_evicted_too() -> None:
    kernel = tzero.kernel(lambda method, n: tzero.specialize(n))
    with warnings.catch_warnings(), settings.override(max_specializations=4):
        warnings.simplefilter("ignore")
        for k in range(100):
            method = Owner(k).method
            for n in (1, 2):
                assert kernel(method, n) == n
            del method  # and its owner, to which the key has a weak reference
    assert len(kernel.table.table) <= 8


class Owner:
    def __init__(self, k: int) -> None:
        self.k = k

    def method(self) -> None: ...


# -- the warning ----------------------------------------------------------------------------------


def warned(kernel: Kernel[Any], *calls: Any) -> warnings.WarningMessage:
    with warnings.catch_warnings(record=True) as caught, settings.override(max_specializations=1):
        warnings.simplefilter("always")
        for args in calls:
            kernel(*args)
    (one,) = caught
    return one


ADVICE: dict[str, tuple[Any, Any, tuple[Any, ...], str]] = {
    "sizes": ({}, tensor, ((X,), (X[:2],)), "'x' keeps changing. Pass static_shapes=False"),
    "sizes in a list": ({}, tensor, (([X],), ([X[:2]],)), "'x' .* Pass static_shapes=False"),
    "strings": ({}, tensor, ((X, "a"), (X, "b")), "'how' keeps changing. Raise TZERO_MAX"),
    "shapes are dynamic already": (
        {"static_shapes": False},
        tensor,
        ((X,), (X[:1],)),
        "'x' keeps changing. Raise TZERO_MAX",
    ),
    "specialize": ({}, specialized, ((X, 1), (X, 2), (X, 3)), "specialize adds .* Raise TZERO_MAX"),
    "key": (
        {"key": lambda x, n: n},
        lambda x, n: n,
        ((X, 1), (X, 2)),
        "what key= or specialize adds",
    ),
}


@pytest.mark.parametrize(("options", "host", "calls", "words"), ADVICE.values(), ids=ADVICE)
def test_the_warning_gives_advice_that_fits(
    options: Any, host: Any, calls: Any, words: str
) -> None:
    assert re.search(words, str(warned(tzero.kernel(**options)(host), *calls).message))


def called(kernel: Kernel[Any], way: str, how: str) -> None:
    if way == "bind":
        kernel.bind(how)
    elif way == "measured":
        with tzero.measure.recording():
            kernel(how)
    elif way == "in a kernel":
        tzero.kernel(lambda: kernel(how))()
    else:
        kernel(how)


@pytest.mark.parametrize("way", ["call", "bind", "measured", "in a kernel"])
def test_the_warning_points_at_the_call(way: str) -> None:
    kernel = tzero.kernel(named)
    with warnings.catch_warnings(record=True) as caught, settings.override(max_specializations=1):
        warnings.simplefilter("always")
        for how in "ab":
            called(kernel, way, how)
    (one,) = caught
    lines, first = inspect.getsourcelines(called)
    assert one.filename == __file__
    assert "kernel(how)" in (text := lines[one.lineno - first]) or "kernel.bind" in text


def test_a_warning_that_is_an_error_leaves_the_kernel_usable() -> None:
    kernel = tzero.kernel(named)
    with warnings.catch_warnings(), settings.override(max_specializations=1):
        warnings.simplefilter("error")
        kernel("a")
        with pytest.raises(UserWarning, match="more than 1"):
            kernel("b")
        assert kernel("b") == "b"
    assert kernel.stats()[:4] == (3, 2, 1, 1)


def test_whoever_shows_the_warning_may_call_the_kernel_from_another_thread() -> None:
    kernel = tzero.kernel(named)
    got: list[Any] = []

    def show(*facts: Any, **more: Any) -> None:
        thread = threading.Thread(target=lambda: got.append(kernel("z")), daemon=True)
        thread.start()
        thread.join(10)

    with warnings.catch_warnings(), settings.override(max_specializations=1):
        warnings.simplefilter("always")
        warnings.showwarning = show
        kernel("a")
        kernel("b")
    assert got == ["z"]
