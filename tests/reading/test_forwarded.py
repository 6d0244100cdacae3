"""Which parameters a host function only forwards to launches, read from its source."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from tzero.reading.forwarded import read_passing

k: Any = None
table: Any = None


def once(x, n):
    k[(1,)](x, n)


def by_name(x, n):
    k[(1,)](x, size=n)


def twice(x, n):
    k[(1,)](x, n)
    k[(2,)](n, x)


def over_lines(x, n):
    k[(1,)](
        x,
        n,
    )


def of_an_attribute(x, n):
    table.k.inner[(1,)](x, n)


def in_a_loop(x, n):
    for _ in range(3):
        k[(1,)](x, n)


def beside_a_star_that_is_named(x, n, options):
    k[(1,)](x, n, **options)


FORWARDED: list[tuple[Callable[..., Any], set[str]]] = [
    (once, {"x", "n"}),
    (by_name, {"x", "n"}),
    (twice, {"x", "n"}),
    (over_lines, {"x", "n"}),
    (of_an_attribute, {"x", "n"}),
    (in_a_loop, {"x", "n"}),
    (beside_a_star_that_is_named, {"x", "n"}),
]


def returned(n):
    k[(1,)](n)
    return n


def added(n):
    k[(1,)](n + 1)


def in_the_grid(n):
    k[(n,)](n)


def asked(n):
    if n:
        k[(1,)](n)


def assigned(n):
    n = 3
    k[(1,)](n)


def assigned_after(n):
    k[(1,)](n)
    n = 3
    return n


def deleted(n):
    k[(1,)](n)
    del n


def augmented(n):
    n += 1
    k[(1,)](n)


def walrus(n):
    k[(1,)](n := 3)  # noqa: F841


def loop_variable(n):
    for n in range(3):
        k[(1,)](n)


def closed_over(n):
    k[lambda meta: (n,)](n)


def in_a_comprehension(n):
    return [k[(1,)](n) for _ in range(3)]


def of_a_comprehension(n):
    return [k[(1,)](n) for n in range(3)]


def behind_a_star(n):
    k[(1,)](*[1], n)


def spread(n):
    k[(1,)](*n)


def spread_by_name(n):
    k[(1,)](**n)


def to_a_function(n):
    table(n)


def to_a_local(n):
    each = k
    each[(1,)](n)


def to_a_parameter(n, f):
    f[(1,)](n)


def to_what_a_call_gives(n):
    table(1)[(1,)](n)


def in_a_list(n):
    k[(1,)]([n])


def never(n):
    return 3


NOT_FORWARDED = [
    *(returned, added, in_the_grid, asked, assigned, assigned_after, deleted, augmented, walrus),
    *(loop_variable, closed_over, of_a_comprehension, behind_a_star, spread, spread_by_name),
    *(to_a_function, to_a_local, to_a_parameter, to_what_a_call_gives, in_a_list, never),
]


# Up to Python 3.11 a comprehension is a function of its own, which closes over the parameter.
if sys.version_info < (3, 12):
    NOT_FORWARDED.append(in_a_comprehension)
else:
    FORWARDED.append((in_a_comprehension, {"n"}))


def names(function: Callable[..., Any]) -> tuple[str, ...]:
    return function.__code__.co_varnames[: function.__code__.co_argcount]


@pytest.mark.parametrize(("function", "forwarded"), FORWARDED)
def test_a_parameter_that_only_launches_get_is_forwarded(
    function: Any, forwarded: set[str]
) -> None:
    assert set(read_passing(function, names(function)).uses) == forwarded


@pytest.mark.parametrize("function", NOT_FORWARDED)
def test_a_parameter_with_any_other_use_is_not_forwarded(function: Any) -> None:
    assert "n" not in read_passing(function, names(function)).uses


def test_every_launch_is_listed_with_the_position_of_its_arguments() -> None:
    passing = read_passing(twice, ("x", "n"))
    first = twice.__code__.co_firstlineno
    assert {span[0]: places for span, places in passing.calls.items()} == {
        first + 1: {0: "x", 1: "n"},
        first + 2: {0: "n", 1: "x"},
    }
    assert passing.uses["n"] == frozenset(passing.calls)


def test_a_function_without_source_forwards_nothing() -> None:
    namespace: dict[str, Any] = {}
    exec("def host(n):\n    k[(1,)](n)\n", namespace)
    assert read_passing(namespace["host"], ("n",)).uses == {}
    assert read_passing(len, ("n",)).uses == {}


def by_a_launcher(x, n, m, *, launch=None):
    launch(k, (m,), x, n, num_warps=4)


def by_a_launcher_of_a_local(x, n, *, launch=None):
    launch(x, (1,), n)


def by_another_function(x, n, *, launch=None, other=None):
    other(k, (1,), x, n)


def test_arguments_of_a_launcher_after_kernel_and_grid_are_forwarded() -> None:
    found = read_passing(by_a_launcher, ("x", "n", "m"), "launch")
    assert set(found.uses) == {"x", "n"}  # not m, which is in the grid
    assert list(found.calls.values()) == [{0: "x", 1: "n"}]


@pytest.mark.parametrize("function", [by_a_launcher_of_a_local, by_another_function])
def test_calls_that_may_not_launch_a_known_kernel_forward_nothing(
    function: Callable[..., Any],
) -> None:
    assert read_passing(function, ("x", "n"), "launch").uses == {}


def test_a_plain_call_is_no_launch_unless_it_is_of_the_launcher() -> None:
    assert read_passing(by_a_launcher, ("x", "n", "m")).uses == {}
