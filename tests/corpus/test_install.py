"""Functions of public projects with `tzero.install`: unmodified, and with the same results."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import tzero
from tests.corpus.case import Draw
from tests.corpus.cases import CASES, missing
from tests.corpus.judge import quiet
from tests.corpus.same import difference
from tests.tiers import can_launch


@pytest.fixture(autouse=True)
def uninstalled() -> Iterator[None]:
    yield
    tzero.uninstall()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.soak] * (k % 4 > 0)) for k, name in enumerate(CASES)],
)
def test_launches_by_tzero_give_the_same_results(name: str) -> None:
    can_launch(2)
    case = CASES[name]
    if why := missing(case):
        pytest.skip(why)
    with quiet():
        function = case.function
        for seed in range(3):
            plain, mine = (case.make(Draw(seed), *case.shapes[0]) for _ in range(2))
            tzero.uninstall()
            torch.manual_seed(seed)
            try:
                expected = function(*plain.args, **plain.kwargs)
            except Exception as error:
                pytest.skip(f"it raises without tzero too: {error}")
            tzero.install()
            torch.manual_seed(seed)
            got = function(*mine.args, **mine.kwargs)
            assert not difference(expected, got, "the result")
            assert not difference(plain.args, mine.args, "the arguments")
