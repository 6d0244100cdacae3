"""Programs over public projects, as they are and under ``python -m tzero run``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.corpus import layers
from tests.corpus.cases import CASES, missing
from tests.tiers import can_launch


def run(*command: str) -> subprocess.CompletedProcess[str]:
    done = warm.run([sys.executable, *command], timeout=600)
    assert done.returncode == 0, done.stderr
    return done


QUICK = ("gla", "delta rule", "rms norm", "cross entropy", "swiglu")


@pytest.mark.parametrize(
    "names", [pytest.param(QUICK, id="some"), pytest.param((), id="all", marks=pytest.mark.soak)]
)
def test_layers_compute_the_same_and_are_launched_natively(names: tuple[str, ...]) -> None:
    can_launch(2)
    for name in ("fla/chunk_gla", "liger/liger_rms_norm"):
        if why := missing(CASES[name]):
            pytest.skip(why)
    program = [str(Path(layers.__file__)), *names]
    plain, mine = run(*program), run("-c", "from tzero.cli import main; main()", "run", *program)
    assert plain.stdout == mine.stdout
    trained = [line.partition(": ")[0] for line in mine.stdout.splitlines()]
    assert trained == list(names or layers.LAYERS)
    whole = re.search(r"(\d+) launches of (\d+) kernels?, (\d+)% native", mine.stderr)
    assert whole, mine.stderr
    launches, kernels, share = map(int, whole.groups())
    # Layers are trained for three steps, and the first launch with a binary is Triton's.
    reasons = re.findall(r"((?:[^\s(]+ )+)\((\d+)\)\s*$", mine.stderr, re.M)
    assert {why for why, _ in reasons} == {"the first launch with a binary "}, mine.stderr
    first = sum(int(count) for _, count in reasons)
    assert kernels == len(reasons) >= 18
    assert share == 100 * (launches - first) // launches >= 65
