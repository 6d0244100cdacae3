"""The record of a run: results, machine and versions, as JSON that later runs can read.

Enters: results of rows. Leaves: a file, or a record read from one. It must not know how anything
is measured or shown.

Reading a file of another schema version is an error, so that nobody gets half a record.
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

import tzero
from bench.measure import Spread

__all__ = [
    *("SCHEMA", "Record", "Result", "Target", "above_floor", "machine", "ratio_to", "read"),
    *("versions", "write"),
]

SCHEMA = 2


@dataclass(frozen=True, slots=True)
class Target:
    """The most that a row's ratio to the baseline, or its value, may be."""

    of: str  # "ratio" or "value"
    at_most: float


@dataclass(frozen=True, slots=True)
class Result:
    """One row: seconds per call (or bytes) of each contender, ratios to the baseline (with the
    floor subtracted, if there is one), and notes on failures. A row that failed has no values."""

    id: str
    title: str
    subject: str
    baseline: str | None
    floor: str | None
    unit: str  # "bytes", or for seconds the unit that the Markdown table shows: "ms" or "us"
    target: Target | None
    values: Mapping[str, Spread]
    ratios: Mapping[str, Spread]
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return not self.values

    @property
    def reached(self) -> float | None:
        """The ratio or value that the target is compared with, without the floor."""
        if self.target is None or self.failed:
            return None
        if self.target.of == "ratio":
            return self.ratios[self.subject].median
        return above_floor(self, self.subject)

    @property
    def verdict(self) -> str:
        """``pass``, ``miss`` or ``failed``; empty if there is no target."""
        if self.failed:
            return "failed"
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


def ratio_to(result: Result, contender: str) -> float:
    """The subject's time divided by a contender's, with the floor subtracted from both.

    To the baseline it is the median of the rounds' ratios; to others, the ratio of the medians.
    """
    if contender == result.baseline and result.subject in result.ratios:
        return result.ratios[result.subject].median
    return above_floor(result, result.subject) / above_floor(result, contender)


def above_floor(result: Result, contender: str) -> float:
    """A contender's median, with the floor's median subtracted if the row has a floor."""
    least = 0.0 if result.floor is None else result.values[result.floor].median
    return result.values[contender].median - least


def now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def machine(device: str = "cpu") -> dict[str, Any]:
    """The hardware and system that the measurements depend on."""
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


def versions() -> dict[str, str]:
    """The versions of the software that the measurements depend on."""
    found = {
        "python": platform.python_version(),
        "compiler": _compiler(),
        "tzero": tzero.__version__,
    }
    for name in ("torch", "triton", "helion", "numpy"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _compiler() -> str:
    # Imports Triton, which must not happen before the benchmark has chosen the device.
    from tzero.cpu import toolchain
    from tzero.errors import CompilerMissing

    try:
        return toolchain.find().version
    except CompilerMissing:  # each row that needs one fails and says so
        return "not found"


def write(record: Record, path: Path) -> None:
    content = {"schema": SCHEMA, **dataclasses.asdict(record)}
    for row, result in zip(content["rows"], record.rows, strict=True):
        row["verdict"] = result.verdict  # for readers that do not compare with targets
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
