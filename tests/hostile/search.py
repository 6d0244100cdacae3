"""Runs random programs at every tier and by both readers, each in a world of its own, and compares
each call with that of the plain function.

    seed ──► Program ──► one world for the plain function, one for each kind of kernel
                         each change is made in all of them ──► results, arguments, side effects

Enters: seeds. Leaves: how many calls were compared, replayed and recorded; or `Wrong`, with the
source, what happened before, and both answers. It must not know how tzero replays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import linecache
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

import tzero
from tests.hostile.conftest import follow_all
from tests.hostile.programs import Program, Round, generate
from tests.plans.tiers import assert_same, outcome
from tests.tiers import of_tier

__all__ = ["KINDS", "Counts", "Wrong", "run_seed", "search"]

KINDS = ((1, "source"), (1, "path"), (2, "source"), (2, "path"))
"""The tiers and the ways to find what a call reads."""


class Wrong(AssertionError):
    """A call gave another answer than the plain function."""


@dataclasses.dataclass
class Counts:
    """What a search did so far. `replayed` counts replays in Python: native ones leave no trace."""

    programs: int = 0
    calls: int = 0
    replayed: int = 0
    recorded: int = 0
    changes: int = 0


class World:
    """A program's module, and its host functions at one tier; tier 0 is the plain functions."""

    def __init__(self, program: Program, tier: int, reader: str) -> None:
        self.kind = f"tier {tier}, {reader}" if tier else "plain"
        self.module = ModuleType(f"hostile_world_{tier}_{reader}")
        file = f"<{self.module.__name__}>"
        lines = program.source.splitlines(keepends=True)
        linecache.cache[file] = (len(program.source), None, lines, file)
        sys.modules[self.module.__name__] = self.module
        exec(compile(program.source, file, "exec"), vars(self.module))
        with pytest.MonkeyPatch.context() as patch:
            if reader == "path":
                follow_all(patch)
            hosts = {name: vars(self.module)[name] for name in program.hosts}
            self.hosts = {n: of_tier(tier, h) if tier else h for n, h in hosts.items()}

    def change(self, statement: str) -> str:
        """Change the world; returns what that raises, if anything."""
        try:
            exec(compile(statement, "<change>", "exec"), vars(self.module))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def call(self, host: str, row: Round) -> tuple[Any, ...]:
        """The arguments after a call, its outcome, and the side effects so far."""
        x = torch.arange(row.size, dtype=torch.float32)
        found = outcome(lambda: self.hosts[host](x, row.by))
        return x, found, list(self.module.LOG)

    def count(self, counts: Counts) -> None:
        for kernel in self.hosts.values():
            if isinstance(kernel, tzero.Kernel):
                assert kernel.planner is not None
                counts.replayed += kernel.planner.replays.value()
                counts.recorded += kernel.planner.recorded


@contextlib.contextmanager
def _surroundings() -> Iterator[None]:
    """Puts back what a program may change besides its module."""
    before, disabled = dict(sys.modules), logging.root.manager.disable
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_grad_enabled(True)
        logging.disable(disabled)
        logging.getLogger("tzero.tests.hostile").setLevel(logging.NOTSET)
        os.environ.pop("TZERO_HOSTILE", None)
        for name in set(sys.modules) - set(before):
            if name.startswith("hostile_world"):
                del sys.modules[name]


def run_seed(seed: int, counts: Counts, kinds: Any = KINDS) -> None:
    """Run the program of a seed; raises `Wrong` at the first difference."""
    program = generate(seed)
    done: list[str] = []
    with _surroundings():
        worlds = [World(program, *kind) for kind in ((0, "plain"), *kinds)]
        for row in program.rounds:
            if row.change:
                done.append(row.change)
                counts.changes += 1
                raised = [world.change(row.change) for world in worlds]
                assert len(set(raised)) == 1, (seed, row.change, raised)
            for host in (*program.hosts, program.hosts[0]):
                done.append(f"{host}(x[{row.size}], {row.by})")
                _compare(worlds, host, row, seed, program, done)
                counts.calls += len(worlds) - 1
        counts.programs += 1
        for world in worlds:
            world.count(counts)


def _compare(
    worlds: list[World], host: str, row: Round, seed: int, program: Program, done: list[str]
) -> None:
    plain, *others = worlds
    expected = plain.call(host, row)
    for world in others:
        found = world.call(host, row)
        try:
            assert_same(found, expected)
        except AssertionError as error:
            raise Wrong(
                f"seed {seed}: {host} at {world.kind} gives another answer than the plain function"
                f"\n\n{program.source}\n\nwhat happened: {done}\n\nplain: {expected}"
                f"\n{world.kind}: {found}\n\n{error}"
            ) from None


def search(seeds: Iterator[int], seconds: float, clock: Callable[[], float] = time.process_time):
    """Run programs until this much processor time is spent; returns `Counts`."""
    counts, until = Counts(), clock() + seconds
    for seed in seeds:
        if clock() >= until:
            break
        run_seed(seed, counts)
    return counts
