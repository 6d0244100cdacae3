"""The recorded verdicts: how the calls of each case were made when someone last looked.

Enters: verdicts and speeds. Leaves: `status.json`, a line for each case, so that a change is one
line of a diff. It must not know how a case is judged or shown.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["FILE", "Entry", "Record", "read", "versions", "write"]

FILE = Path(__file__).parent / "status.json"
DISTRIBUTIONS = ("torch", "triton", "helion", "liger-kernel", "fla-core")


@dataclass(frozen=True, slots=True)
class Entry:
    """One case: its status and reason, and how many times faster it is than plain, if measured."""

    status: str
    reason: str
    speed: float | None


@dataclass(frozen=True, slots=True)
class Record:
    """The entries by id, and what they were made with."""

    versions: Mapping[str, str]
    machine: str
    entries: Mapping[str, Entry]


def versions() -> dict[str, str]:
    """The versions that decide how a call is made."""
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def read(file: Path = FILE) -> Record:
    """The record in a file."""
    found = json.loads(file.read_text())
    entries = {name: Entry(**entry) for name, entry in found["entries"].items()}
    return Record(found["versions"], found["machine"], entries)


def write(record: Record, file: Path = FILE) -> None:
    """Write a record, its entries in the order of their ids."""
    head = json.dumps({"versions": record.versions, "machine": record.machine}, indent=1)
    lines = [
        f"  {json.dumps(name)}: {json.dumps(asdict(record.entries[name]))}"
        for name in sorted(record.entries)
    ]
    body = ",\n".join(lines)
    file.write_text(f'{head.removesuffix("}").rstrip()},\n "entries": {{\n{body}\n }}\n}}\n')
