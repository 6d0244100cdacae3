"""The record of a run: what was measured, where, with what; as JSON that later runs can read.

Enters: results of rows. Leaves: a file, or a record read from one. It must not know how anything
is measured or shown.

A reader of another schema version is told so; it is not given half a record.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure import Spread

__all__ = ["SCHEMA", "Record", "Result", "Target", "machine", "read", "versions", "write"]

SCHEMA = 2


@dataclass(frozen=True, slots=True)
class Target:
    """What a row is to reach: its ratio to the baseline, or its value, at most so much."""

    of: str  # "ratio" or "value"
    at_most: float


@dataclass(frozen=True, slots=True)
class Result:
    """One row: seconds per call (or bytes) by contender, ratios to the baseline (above the floor,
    where there is one), and notes on what failed."""

    id: str
    title: str
    subject: str
    baseline: str | None
    floor: str | None
    unit: str  # what a table shows values in: "ms" or "us" for seconds, or "bytes"
    target: Target | None
    values: Mapping[str, Spread]
    ratios: Mapping[str, Spread]
    notes: tuple[str, ...] = ()

    @property
    def reached(self) -> float | None:
        """What the target is compared with."""
        if self.target is None:
            return None
        of = self.ratios if self.target.of == "ratio" else self.values
        return of[self.subject].median

    @property
    def verdict(self) -> str:
        """``pass``, ``miss``, or nothing where there is no target."""
        if self.target is None or self.reached is None:
            return ""
        return "pass" if self.reached <= self.target.at_most else "miss"


@dataclass(frozen=True, slots=True)
class Record:
    """One run of the benchmark."""

    when: str
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    threads: int
    quick: bool
    rows: tuple[Result, ...]


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def machine(device: str = "cpu") -> dict[str, Any]:
    """What the measurements depend on and nobody can change."""
    return {
        **({"gpu": _gpu_name()} if device == "cuda" else {}),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def _gpu_name() -> str:
    import torch

    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


_DISTRIBUTIONS = {"tzero": "tzero-runtime"}
"""Distributions that are not called like what they install."""


def versions(compiler: str) -> dict[str, str]:
    """What the measurements depend on and can be installed otherwise."""
    found = {"python": platform.python_version(), "compiler": compiler}
    for name in ("tzero", "torch", "triton", "helion", "numpy"):
        try:
            found[name] = importlib.metadata.version(_DISTRIBUTIONS.get(name, name))
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def write(record: Record, path: Path) -> None:
    content = {"schema": SCHEMA, **dataclasses.asdict(record)}
    for row, result in zip(content["rows"], record.rows, strict=True):
        row["verdict"] = result.verdict  # for readers that know no targets
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read(path: Path) -> Record:
    content = json.loads(path.read_text(encoding="utf-8"))
    schema = content.pop("schema", None)
    if schema != SCHEMA:
        raise ValueError(f"{path} has schema {schema}; this reads {SCHEMA}. Measure again.")
    return Record(**{**content, "rows": tuple(_result(row) for row in content["rows"])})


def _result(row: dict[str, Any]) -> Result:
    del row["verdict"]
    target = row["target"]
    return Result(
        **{
            **row,
            "target": None if target is None else Target(**target),
            "values": {name: Spread(**each) for name, each in row["values"].items()},
            "ratios": {name: Spread(**each) for name, each in row["ratios"].items()},
            "notes": tuple(row["notes"]),
        }
    )
