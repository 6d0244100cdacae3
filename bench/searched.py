"""The picture of a search in the docs: 24 configs of a matmul, on the CPU.

Enters: nothing. Leaves: a record of the search in ``bench/results``, and docs/search.svg. It must
not know how configs are timed or chosen.

    python -m bench.searched --write     search here, keep the record, and draw
    python -m bench.searched             draw from the record
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import tzero
from bench.tunable import matmul, matmul_configs
from tzero.tune.outcome import Outcome
from tzero.tune.plot import svg
from tzero.tune.tuner import Step

__all__ = ["PICTURE", "RECORD", "main", "picture", "read"]

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "bench" / "results" / "search-cpu.json"
PICTURE = ROOT / "docs" / "search.svg"
SIZE = 256


def measure() -> None:
    """Search with empty caches, and keep the record."""
    kernel = tzero.kernel(configs=matmul_configs("cpu"))(matmul)
    cores = len(os.sched_getaffinity(0))
    a, b = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    with tempfile.TemporaryDirectory() as folder:
        caches = {"TZERO_CACHE_DIR": f"{folder}/tzero", "TRITON_CACHE_DIR": f"{folder}/triton"}
        with tzero.settings.applied(caches):
            found = kernel.autotune(a, b)
    record = {
        "title": f"24 configs of a matmul, {SIZE} x {SIZE} x {SIZE}, {cores} cores",
        "chosen": _facts(found.best),
        "seconds": found.seconds,
        "steps": [
            {"at": each.at, "config": _facts(each.config), "outcome": _finite(each.outcome)}
            for each in found.steps
        ],
        "decided": [
            {"config": _facts(config), "outcome": _finite(outcome)}
            for config, outcome in found.outcomes.items()
        ],
    }
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


def _facts(config: tzero.Config | None) -> dict[str, Any]:
    return dict(config or {})


def _finite(outcome: Outcome) -> dict[str, Any]:
    """An outcome without what JSON cannot have."""
    return {name: each for name, each in asdict(outcome).items() if each != float("inf")}


def read() -> tuple[str, list[Step], tzero.Config, dict[tzero.Config, Outcome]]:
    """The search in the record: its title, the steps, what was chosen, and by which outcomes."""
    facts = json.loads(RECORD.read_text())

    def outcome(row: dict[str, Any]) -> tuple[tzero.Config, Outcome]:
        return tzero.Config(row["config"]), Outcome(**row["outcome"])

    steps = [Step(each["at"], *outcome(each)) for each in facts["steps"]]
    decided = dict(map(outcome, facts["decided"]))
    return facts["title"], steps, tzero.Config(facts["chosen"]), decided


def picture() -> str:
    """The picture of the record."""
    return svg(*read())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="search here, keep the record")
    if parser.parse_args().write:
        measure()
    PICTURE.write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    main()
