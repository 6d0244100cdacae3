"""Helpers: new tzero kernels for Helion kernels, and whether a call is replayed."""

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
    """A tzero kernel for a Helion kernel, at a tier; skips the test if that is not built."""
    with settings.override(tier=available(tier)):
        return tzero.kernel(**options)(kernel)


def again(kernel: Any, **changes: Any) -> Any:
    """A new kernel of the same function."""
    config = changes.pop("config", kernel.configs[0])
    same = {"static_shapes": kernel.settings.static_shapes, "key": kernel._key_fn}
    return helion.kernel(config=config, **{**same, **changes})(kernel.fn)


def is_replayed(kernel: Any, *args: Any) -> bool:
    """Whether a call with these arguments would be replayed."""
    found = kernel.explain(*args)
    return found.plan is not None and not found.refusal


def settled(kernel: Any, row: Row, times: int = 3) -> None:
    """Call until a plan is in use: Helion compiles, the next call is recorded, then replayed."""
    for _ in range(times):
        held_to(row, kernel(*row.fresh()))


def held_to(row: Row, result: Any) -> None:
    """Demand what torch computes."""
    torch.testing.assert_close(result, row.expected(), rtol=row.rtol, atol=row.atol)


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Install tzero for all Helion kernels in this context."""
    tzero.helion.install()
    try:
        yield
    finally:
        tzero.helion.uninstall()
