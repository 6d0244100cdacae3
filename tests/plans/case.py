"""A case: a host function, a fact besides its arguments that it depends on, and a change of it.

Enters: decorated host functions. Leaves: tables of `Case`s.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.rows import Rows

Patch = pytest.MonkeyPatch


def numbers() -> tuple[Any, ...]:
    """The arguments of most cases."""
    return (torch.randn(5, dtype=torch.float32),)


@dataclass(frozen=True, slots=True)
class Case:
    """`change` changes the fact by a patch, or returns a context in which it is changed. `guard` is
    the native guard without which the change would go unnoticed, "none" if steps that run in every
    call see it. The host function must be replayed, unless `refused` has words of the reason why
    not."""

    name: str
    host: Callable[..., Any]
    change: Callable[[Patch], Any]
    guard: str
    build: Callable[[], tuple[Any, ...]]
    refused: str

    def changed(self, patch: Patch) -> AbstractContextManager[Any]:
        """Change the fact."""
        context = self.change(patch)
        return context if isinstance(context, AbstractContextManager) else nullcontext()


def cases() -> Rows[Case]:
    """The cases of one subject."""
    return Rows(_case)


def _case(
    name: str,
    host: Callable[..., Any],
    change: Callable[[Patch], Any],
    guard: str = "world",
    build: Callable[[], tuple[Any, ...]] = numbers,
    refused: str = "",
) -> Case:
    return Case(name, host, change, guard, build, refused)
