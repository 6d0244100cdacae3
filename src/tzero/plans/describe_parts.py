"""Describes a part of a plan, whose steps are made as a CUDA graph, for native code.

Enters: a part, and what launches its graphs. Leaves: a `PartDescription`. It must not know how the
graphs are captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tzero.plans.plan import Part

__all__ = ["PartDescription", "described_part"]


class PartDescription(NamedTuple):
    """Make the steps up to `after` as a CUDA graph. `captures` launches the graphs; or, in tests,
    is a function that makes the steps. `inputs` and `writes` are slots; `after` and `again` count
    the steps of the description."""

    captures: Any
    cuda_device: int | None
    inputs: tuple[int, ...]
    outputs: tuple[Any, ...]
    after: int
    again: tuple[int, ...]
    writes: tuple[int, ...]


def described_part(
    part: Part,
    before: Sequence[int],
    captures: Any,
    cuda_device: int | None,
    outputs: tuple[Any, ...],
    counts: bool,
) -> PartDescription:
    """Describe a part. `before` says how many parts come before each step of the plan; `outputs`
    are descriptions of allocations; `counts`: torch counts changes in place.

    >>> part = Part(0, 3, (1,), (), (), (2,), (1,), ())
    >>> made = described_part(part, [0, 1, 1, 1], None, 0, (), True)
    >>> made.after, made.again
    (4, (3,))
    """
    return PartDescription(
        captures,
        cuda_device,
        part.inputs,
        outputs,
        part.after + before[part.after],
        tuple(k + before[k] + (k == part.first) for k in part.again),
        part.writes if counts else (),
    )
