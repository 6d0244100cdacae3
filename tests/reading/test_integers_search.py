"""Random programs: for other sizes, integers that are predicted must be those of a plain call."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.reading.following import follow
from tests.reading.programs import HELPERS, Program, arguments, compiled, neighbour
from tzero.adapters import python_frames

pytestmark = pytest.mark.skipif(
    not python_frames.is_supported(), reason="frames cannot be read with this Python"
)

RAISED = (ArithmeticError, LookupError, ValueError, TypeError, MemoryError, NameError)


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        made = [plain(each) for each in value]
        return made if type(value) is list else tuple(made)
    return value


def search(seed: int, others: int = 20) -> tuple[int, int]:
    """Follow one program, and compare its predictions; how many there were, of how many calls."""
    program = Program(seed)
    host, chance = compiled(program), random.Random(seed)
    args = arguments(chance)
    try:
        found = follow(host, *args, helpers=HELPERS)
    except RAISED:
        return 0, 0
    assert found.integers.lost == "", f"{found.integers.lost}, in\n{program.text}"
    predicted = 0
    for _ in range(others):
        other = neighbour(chance, args)
        wanted = found.predicted(other)
        if wanted is None:
            continue
        predicted += 1
        got = plain(host(*other))
        assert repr(wanted[0]) == repr(got), f"{seed}: {describe(args)} to {describe(other)}:\n" + (
            f"{wanted[0]}\n{got}\n{program.text}\n{found.conditions}\n{found.shown}"
        )
    return predicted, others


def describe(args: tuple[Any, ...]) -> list[Any]:
    return [
        (*each.shape, each.stride()) if isinstance(each, torch.Tensor) else each for each in args
    ]


@pytest.mark.parametrize("part", range(8))
def test_what_is_predicted_for_other_sizes_is_what_python_computes(part: int):
    found = [search(seed) for seed in range(part * 15, part * 15 + 15)]
    assert sum(predicted for predicted, _ in found) > 0
