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
    """`change` changes the fact by a patch, or gives a context in which it is changed; `guard` is
    what would have to be out for nobody to notice, "none" where steps that run in every call see to
    it by themselves. Such a host function is replayed, unless
    `refused` are words of why not."""

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
