"""Rows of host functions that are not replayed: the function, words of the reason, and its line.

The line is the one marked ``# here``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from tests.rows import Rows

Build = Callable[[], tuple[Any, ...]]


class Refused(NamedTuple):
    name: str
    host: Callable[..., Any]
    words: str
    build: Build


def vector() -> tuple[Any, ...]:
    return (torch.arange(1.0, 6.0),)


def table() -> Rows[Refused]:
    """The rows of one subject."""
    return Rows(_row)


def _row(name: str, host: Any, words: str, build: Build = vector) -> Refused:
    return Refused(name, host, words, build)
