"""Helion's kernels behind tzero, for the tests: fresh ones, and how a call of one is served."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import helion
import torch

import tzero
from tests.integrations.helion.row import Row
from tests.plans.tiers import available
from tzero import settings

__all__ = ["again", "held_to", "installed", "is_replayed", "settled", "wrapped"]


def wrapped(kernel: Any, tier: int = 2, **options: Any) -> Any:
    """tzero's kernel over one of Helion's, at a tier; a skip where that is not built."""
    with settings.override(tier=available(tier)):
        return tzero.kernel(**options)(kernel)


def again(kernel: Any, **changes: Any) -> Any:
    """A kernel of the same function that nobody has called."""
    config = changes.pop("config", kernel.configs[0])
    same = {"static_shapes": kernel.settings.static_shapes, "key": kernel._key_fn}
    return helion.kernel(config=config, **{**same, **changes})(kernel.fn)


def is_replayed(kernel: Any, *args: Any) -> bool:
    """Whether a call with these arguments would be replayed."""
    found = kernel.explain(*args)
    return found.plan is not None and not found.refusal


def settled(kernel: Any, row: Row, times: int = 3) -> None:
    """Calls until a plan is in use: Helion compiles, the next is recorded, then it is replayed."""
    for _ in range(times):
        held_to(row, kernel(*row.fresh()))


def held_to(row: Row, result: Any) -> None:
    """Demand what torch computes."""
    torch.testing.assert_close(result, row.expected(), rtol=row.rtol, atol=row.atol)


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """tzero under all of Helion's kernels, for a while."""
    tzero.helion.install()
    try:
        yield
    finally:
        tzero.helion.uninstall()
