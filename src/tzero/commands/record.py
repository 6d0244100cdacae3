"""What one run of a program was like: a `Run`, and the file that holds it.

Enters: what `watching` has seen. Leaves: a `Run`, as JSON or from JSON, which `tracing` and
`report` turn into a trace and a page. It must not know how anything is seen or shown.

Times are seconds of one clock, which starts at the program's first line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from tzero.errors import InvalidArgument

__all__ = ["AUTOTUNER", "Candidate", "Compile", "Kernel", "Plan", "Run", "Search", "Span", "Told"]

AUTOTUNER = "Triton's autotuner has timed them"
"""Why a search that tzero has not made chose its config."""

SCHEMA = 1
"""Of files; incremented when the format or its meaning changes."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel or host function: how often it was called, and how.

    >>> Kernel("add_kernel", "app", "Triton kernel", 100, native=98).share
    0.98
    """

    name: str
    module: str
    kind: str
    calls: int
    native: int = 0
    microseconds: float | None = None
    """What a call takes: the median, or the mean where native code has counted."""
    place: str = ""
    """File and line of its definition."""
    others: Mapping[str, int] = field(default_factory=dict)
    """Why the other calls were not native, or how they were made, and how many."""
    trials: int = 0
    """Launches by an autotuner that was timing its configs; they are not among the calls."""

    @property
    def share(self) -> float | None:
        """Which part of the calls was native."""
        return self.native / self.calls if self.calls else None


@dataclass(frozen=True, slots=True)
class Told:
    """An event.

    >>> Told(0.5, "fallback", "add", "not replayed: it reads the value of a tensor").kind
    'fallback'
    """

    at: float
    kind: str
    kernel: str
    reason: str


@dataclass(frozen=True, slots=True)
class Compile:
    """A binary that the program needed: compiled, or loaded from a cache.

    >>> Compile("add_kernel", 0.1, 0.6, "this process").seconds
    0.5
    """

    kernel: str
    start: float
    end: float
    where: str
    thread: int = 0
    process: int = 0

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Candidate:
    """A config that was timed: seconds of a call, or the problem that it has.

    >>> Candidate("Config(BLOCK=64)", 2e-6).problem
    ''
    """

    config: str
    seconds: float | None
    """The time that decided: of those that were timed again, the later one."""
    problem: str = ""
    low: float | None = None
    """The ends of the interval of its time; None where they are not known."""
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Search:
    """One choice of a config: by timing several, or from what was known.

    >>> Search("matmul", 1.0, "Config(BLOCK=64)", "tuned: the fastest of 3").candidates
    ()
    """

    kernel: str
    at: float
    chosen: str
    why: str
    arguments: str = ""
    seconds: float = 0.0
    """How long it took; 0 where nothing was timed."""
    candidates: tuple[Candidate, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What one plan does, and what it assumes, each of which is a guard.

    >>> Plan("add", ("x: float32[64]",), ("launch add_kernel[(1, 1, 1)](x)",)).steps
    ('launch add_kernel[(1, 1, 1)](x)',)
    """

    kernel: str
    guards: tuple[str, ...]
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """One call, launch, or stage of a call.

    >>> Span("launch", "add_kernel", 0.5, 0.75, 1).seconds
    0.25
    """

    stage: str
    kernel: str
    start: float
    end: float
    thread: int
    process: int = 0
    """0: that of the program."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of a program was like.

    >>> run = Run(("app.py",), 0, 1.5, "2026-11-18 21:00", {"tzero": "1.0"}, "the CPU")
    >>> Run.from_facts(run.facts()) == run
    True
    """

    program: tuple[str, ...]
    """The command line."""
    status: int
    seconds: float
    began: str
    versions: Mapping[str, str]
    machine: str
    kernels: tuple[Kernel, ...] = ()
    events: tuple[Told, ...] = ()
    compiles: tuple[Compile, ...] = ()
    searches: tuple[Search, ...] = ()
    plans: tuple[Plan, ...] = ()
    spans: tuple[Span, ...] = ()
    """The first calls and launches, as many as there was room for."""
    dropped: int = 0
    """How many spans found no room."""

    def facts(self) -> dict[str, Any]:
        """All of it, for JSON."""
        spans = [[getattr(each, one.name) for one in fields(Span)] for each in self.spans]
        rest = {one.name: getattr(self, one.name) for one in fields(Run) if one.name != "spans"}
        for name in _ROWS:
            rest[name] = [asdict(each) for each in rest[name]]
        return {"tzero_run": SCHEMA, **rest, "program": list(self.program), "spans": spans}

    @staticmethod
    def from_facts(facts: Any) -> Run:
        """A run from its facts; ValueError, LookupError or TypeError for others."""
        if facts["tzero_run"] != SCHEMA:
            raise ValueError(f"its schema is {facts['tzero_run']!r}, not {SCHEMA}")
        given = {one.name: facts[one.name] for one in fields(Run)}
        for name, kind in _ROWS.items():
            given[name] = tuple(kind(**_tuples(row)) for row in facts[name])
        given["spans"] = tuple(Span(*row) for row in facts["spans"])
        given["program"] = tuple(facts["program"])
        return Run(**given)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file, of which `tzero report` and `tzero trace` make a page and a trace."""
        Path(path).write_text(json.dumps(self.facts()) + "\n", encoding="utf-8")

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Run:
        """The run in a file; `InvalidArgument` where its contents are wrong."""
        try:
            return Run.from_facts(json.loads(Path(path).read_text(encoding="utf-8")))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise InvalidArgument(
                kernel=os.fspath(path),
                problem=f"it is no record of a run: {type(error).__name__}: {error}",
                advice="Write one: tzero report app.py --save run.json.",
            ) from error


_ROWS: Mapping[str, Any] = {
    "kernels": Kernel,
    "events": Told,
    "compiles": Compile,
    "searches": Search,
    "plans": Plan,
}


def _tuples(row: dict[str, Any]) -> dict[str, Any]:
    """The fields of a row, whose lists are tuples."""
    made = {name: tuple(v) if isinstance(v, list) else v for name, v in row.items()}
    if "candidates" in made:
        made["candidates"] = tuple(Candidate(**each) for each in made["candidates"])
    return made
