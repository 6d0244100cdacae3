# mypy: allow-untyped-defs
"""A scenario: a call that goes wrong if a guard of native plans is switched off.

Enters: decorated functions, which are given what makes kernels. Leaves: tables of `Scenario`s, and
what scenarios use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from tests.plans.hosts import scaled
from tests.rows import Rows

X = torch.arange(4.0)


class NotWarm(Exception):
    """The plan was not native when a scenario wanted it to be; no proof of any guard."""


class Scenario(NamedTuple):
    """What fails without these guards."""

    name: str
    guards: tuple[str, ...]
    run: Callable[[Any], None]


def table() -> Rows[Scenario]:
    """The scenarios of one subject."""
    return Rows(_scenario)


def _scenario(name: str, run: Callable[[Any], None], *guards: str) -> Scenario:
    return Scenario(name, guards, run)


def warm(kernel: Any, *args: Any) -> Any:
    """Call a kernel until native code has its plan."""
    for _ in range(2):
        result = kernel(*args)
    if not kernel._look(2, *args):
        raise NotWarm(kernel.explain(*args).refusal)
    return result


def same(found: Any, expected: Any) -> None:
    """Demand an answer."""
    assert repr(found) == repr(expected)


def tells_apart(make: Any, host: Any, one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    """A plan for some arguments is none for others."""
    kernel = make(host)
    warm(kernel, *one)
    same(kernel(*other), host(*other))


class raising:
    """Demands that something is raised."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        assert kind is not None, "nothing was raised"
        return True


@triton.jit
def put_number(out, n):
    tl.store(out, n)


def twice(x):
    return scaled(x, 2.0)
