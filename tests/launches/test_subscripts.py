"""What grid functions and heuristics are known to read of the arguments."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import tzero
from tests.tiers import can_launch
from tzero.launches.subscripts import subscripts

LIMIT = 3


def _first(given: Any, more: int = 0) -> Any:
    return given["a"] + more


def _second(limit: int, given: Any) -> Any:
    return given["b"] + limit


def _branch(given: Any) -> Any:
    if given["a"] is None:
        return LIMIT
    return [given["b"] for _ in range(2)] if given["c"] else given["a"]


def _closed(given: Any) -> Any:
    return lambda: given["a"]


def _generated(given: Any) -> Any:
    yield given["a"]


KNOWN: dict[str, tuple[Callable[..., Any], int, tuple[str, ...]]] = {
    "one": (lambda given: given["a"] is not None, 0, ("a",)),
    "none": (lambda given: 7, 0, ()),
    "default": (_first, 0, ("a",)),
    "second": (_second, 1, ("b",)),
    "named twice": (lambda given: given["a"] + given["a"], 0, ("a",)),
    "calls": (lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]), 1), 0, ("n", "BLOCK")),
}


@pytest.mark.parametrize("name", KNOWN)
def test_functions_that_only_subscript_are_known(name: str) -> None:
    function, position, names = KNOWN[name]
    assert subscripts(function.__code__, position) == names


UNKNOWN: dict[str, tuple[Callable[..., Any], int]] = {
    "passed on": (lambda given: sorted(given), 0),
    "a method": (lambda given: given.get("a"), 0),
    "contained": (lambda given: "a" in given, 0),
    "stored in": (lambda given: given.__setitem__("a", 1), 0),
    "returned": (lambda given: given, 0),
    "a computed key": (lambda given: given["a" + str(LIMIT)], 0),
    "a number": (lambda given: given[0], 0),
    "chosen key": (lambda given: given["a" if LIMIT else "b"], 0),
    "unpacked": (lambda given: dict(**given), 0),
    "frames": (lambda given: (given["a"], locals()), 0),
    "a closure": (_closed, 0),
    "a generator": (_generated, 0),
    "collected": (lambda *given: given[0]["a"], 0),
    "by keyword only": (lambda *, given=None: 7, 0),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_functions_that_may_do_more_are_not(name: str) -> None:
    function, position = UNKNOWN[name]
    assert subscripts(function.__code__, position) is None


def test_branches_are_followed_as_they_are_compiled() -> None:
    found = subscripts(_branch.__code__, 0)
    assert found is None or set(found) == {"a", "b", "c"}
    # CPython 3.11 joins the branches before the subscript. Later ones subscript in each, so that
    # the dict that was given is subscripted with this key and nothing else.
    chosen = subscripts((lambda given: (given if LIMIT else {})["a"]).__code__, 0)
    assert chosen == (None if sys.version_info < (3, 12) else ("a",))


def test_assignment_to_the_parameter_is_not_known() -> None:
    def function(given: Any) -> Any:
        given = {"a": 1}
        return given["a"]

    assert subscripts(function.__code__, 0) is None

    def deleted(given: Any) -> Any:
        found = given["a"]
        del given
        return found

    assert subscripts(deleted.__code__, 0) is None


def _put(out, a, b, SUM: tl.constexpr, MORE: tl.constexpr):
    tl.store(out + tl.program_id(0), a + b + SUM + MORE)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "reads one": lambda given: 10 * given["b"],
    "reads all": lambda given: 10 * dict(given)["b"],
    "a partial call": functools.partial(lambda by, given: by * given["b"], 10),
    "a partial call with a keyword": functools.partial(lambda given, by: by * given["b"], by=10),
    "an object": type("Called", (), {"__call__": lambda self, given: 10 * given["b"]})(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("grid", ["known", "reads", "takes all"])
def test_heuristics_and_grids_get_what_they_read(name: str, grid: str) -> None:
    can_launch(2)
    values = {"SUM": FUNCTIONS[name], "MORE": lambda given: given["SUM"] + given["a"]}
    kernel = triton.heuristics(values)(triton.jit(_put))
    out = torch.zeros(4, dtype=torch.int32, device=device())
    grids: dict[str, Any] = {
        "known": (2,),
        "reads": lambda meta: (meta["SUM"] // meta["SUM"] + 1,),
        "takes all": lambda meta: (len(meta) - 3,),
    }
    tzero.install()
    try:
        for a, b in ((3, 5), (3, 5), (7, 5), (3, 5)):
            out.zero_()
            kernel[grids[grid]](out, a, b=b)
            assert out.tolist() == [a + b + 20 * b + a] * 2 + [0, 0]
        with pytest.raises(KeyError, match="'missing'"):
            triton.heuristics({**values, "MORE": lambda given: given["missing"]})(kernel.fn)[(1,)](
                out, 1, 2
            )
        with pytest.raises(KeyError, match="'missing'"):
            kernel[lambda meta: (meta["missing"],)](out, 3, b=5)
    finally:
        tzero.uninstall()


def test_a_function_that_gets_other_code_is_read_again() -> None:
    can_launch(2)

    def function(given: Any) -> Any:
        return given["a"]

    def other(given: Any) -> Any:
        return sum(1 for each in given if each in ("a", "b", "out"))

    kernel = triton.heuristics({"SUM": function})(triton.jit(_put))
    out = torch.zeros(1, dtype=torch.int32, device=device())
    tzero.install()
    try:
        for _ in range(2):
            kernel[(1,)](out, 3, 5, MORE=0)
            assert out.item() == 11
        function.__code__ = other.__code__
        kernel[(1,)](out, 3, 5, MORE=0)
        assert out.item() == 11
        kernel[(1,)](out, 4, 5, MORE=0)
        assert out.item() == 12
    finally:
        tzero.uninstall()


def test_the_functions_of_a_large_program_are_read_once() -> None:
    can_launch(2)
    kernel, out = triton.jit(_put), torch.zeros(1, dtype=torch.int32, device=device())
    grids = [eval(f"lambda meta: (meta['a'] * 0 + {k % 2},)") for k in range(600)]
    looked: list[CodeType] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is subscripts.__code__:
            looked.append(frame.f_locals["code"])

    def launched() -> list[CodeType]:
        looked.clear()
        sys.setprofile(note)
        try:
            for grid in grids:
                kernel[grid](out, 3, 5, 1, 2)
        finally:
            sys.setprofile(None)
        return list(looked)

    tzero.install()
    try:
        kernel[(1,)](out, 3, 5, 1, 2)
        assert launched() == [grid.__code__ for grid in grids]
        assert launched() == []
    finally:
        tzero.uninstall()


def device() -> Any:
    return triton.runtime.driver.active.get_active_torch_device()
