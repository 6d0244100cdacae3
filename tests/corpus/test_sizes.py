"""Functions of public projects with lengths that they never saw."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import tzero
from tests.corpus.case import Case, Draw
from tests.corpus.cases import CASES, missing
from tests.corpus.judge import quiet
from tests.corpus.same import difference
from tzero.adapters import python_frames

pytestmark = pytest.mark.skipif(
    not python_frames.is_supported(), reason="frames cannot be read with this Python"
)

# The case, and the place of the length among the numbers of its shapes.
VARIED = {
    "fla/swiglu_fwdbwd": 0,  # an autotuner inside of heuristics
    "fla/layer_norm": 0,  # an autograd function
    "fla/l2norm_fwd": 0,  # an autotuner of its own
    "fla/chunk_simple_gla_fwd": 1,  # both, around several kernels
    "liger/rms_norm_forward": 0,
}
LONGER = (0, 1, 3, 5, 13, 17, 19, 23, 29)


def with_length(case: Case, place: int, more: int) -> Case:
    first = list(case.shapes[0])
    first[place] += more
    return dataclasses.replace(case, shapes=(tuple(first),))


@pytest.mark.parametrize("name", VARIED)
def test_lengths_never_seen_are_replayed_natively(name: str) -> None:
    case = CASES[name]
    if why := missing(case):
        pytest.skip(why)
    with quiet():
        function = case.function
        kernel, replays = tzero.kernel(function), 0
        for seed, more in enumerate(LONGER):
            longer = with_length(case, VARIED[name], more)
            plain, mine = (longer.make(Draw(seed), *longer.shapes[0]) for _ in range(2))
            torch.manual_seed(seed)
            expected = function(*plain.args, **plain.kwargs)
            before = kernel.stats().native_replays
            torch.manual_seed(seed)
            got = kernel(*mine.args, **mine.kwargs)
            assert not difference(expected, got, "the result")
            assert not difference(plain.args, mine.args, "the arguments")
            replays += seed >= 5 and kernel.stats().native_replays > before
        assert replays == len(LONGER) - 5
