"""Configs in files: written by `tzero.ship`, used after `tzero.pretuned`.

Enters: kernels that have chosen configs, and the names of files. Leaves: files of pretuned configs,
and the list of files in use, the latest first. It must not know how a config was found.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch

from tzero.errors import InvalidKernel
from tzero.tune import bundled, records
from tzero.tune.facts import hardware_of
from tzero.tune.records import Entry, Pretuned
from tzero.tune.turn import TURN

__all__ = ["files_in_use", "pretuned", "ship", "use", "using"]

_files: list[Pretuned] = []  # what `pretuned` has read, the latest first; protected by TURN


@runtime_checkable
class Chooser(Protocol):
    """What chooses the configs of a kernel, as far as `ship` needs it."""

    def entries(self) -> list[Entry]:
        """The configs that were chosen so far."""


def files_in_use() -> tuple[Pretuned, ...]:
    """The files that `pretuned` has read, the latest first, then the bundles in use."""
    return (*_files, *bundled.of_bundles())


@contextmanager
def using(tables: Iterable[Pretuned]) -> Iterator[None]:
    """Use these for a block, before those in use: a search that another process asked for comes
    with the tables of that process.

    ::

        with using(task.tables):
            ...
    """
    with TURN:
        before = list(_files)
        _files[:] = [*tables, *before]
    try:
        yield
    finally:
        with TURN:
            _files[:] = before


def pretuned(path: str | os.PathLike[str]) -> Pretuned:
    """Use the configs of a file that `ship` has written, in the whole process from now on. A kernel
    whose source, arguments and hardware class are in the file takes its config from there, and
    times nothing.

    ::

        tzero.pretuned("pretuned.json")

    A file that has nothing for this hardware gives a warning. Where several files have an entry for
    a call, the latest file counts.
    """
    return use(Pretuned.read(path).entries, os.fspath(path))


def use(entries: Iterable[Entry], name: str) -> Pretuned:
    """Use these configs, which come from the file `name`, from now on.

    ::

        use(coverage.configs, "coverage.json")
    """
    known = Pretuned(entries, name)
    device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    foreign = known.foreign(hardware_of(device)[0])
    if foreign:
        warnings.warn(f"{foreign}.", stacklevel=3)
    with TURN:
        _files[:] = [known, *(each for each in _files if each.name != known.name)]
    return known


def ship(path: str | os.PathLike[str], kernels: Iterable[Any]) -> Pretuned:
    """Write the configs that kernels have chosen in this process to a file, for `pretuned`. Entries
    that the file already has for other kernels, arguments or hardware stay in it.

    ::

        matmul.autotune(a, b, effort="full")
        tzero.ship("pretuned.json", [matmul])
    """
    entries: list[Entry] = []
    for kernel in kernels:
        entries += _chosen_by(kernel)
    latest = {entry.place: entry for entry in entries}  # two kernels may share a function
    made = Pretuned(latest.values(), os.fspath(path))
    if os.path.exists(path):
        made = records.merge(Pretuned.read(path), made).pretuned
    made.write(path)
    return made


def _chosen_by(kernel: Any) -> list[Entry]:
    tuning = getattr(kernel, "tuning", None)
    if not isinstance(tuning, Chooser):
        raise InvalidKernel(
            kernel=getattr(kernel, "__name__", repr(kernel)),
            problem="ship was given it, and it is not a kernel of tzero",
            advice="Put @tzero.kernel(configs=[...]) on it.",
        )
    found = tuning.entries()
    if not found:
        raise InvalidKernel(
            kernel=kernel.name,
            problem="ship was given it, and no config was chosen for it yet",
            advice=f"Call {kernel.name}.autotune(x, ...) for each shape that matters.",
        )
    return found
