"""Imports on the path: of modules that are loaded, and of modules that cannot be found.

    import numpy          ──► the entry of sys.modules
    import not_installed  ──► no such entry; the finders, the search path and its directories are
                              as they were

Enters: the name of a module that is about to be imported. Leaves: guards in a `World`, or
`Unreplayable`. It must not know bytecode.

Python finds a new module in a directory when the directory's time of modification changes, so that
time is compared. What an import hook finds is taken to depend on the name alone.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

from tzero.reading.attributes import MISSING
from tzero.reading.findings import Unreplayable
from tzero.reading.guards import Absent, Files
from tzero.reading.world import World

__all__ = ["read_import"]


def read_import(world: World, full: str) -> None:
    """A module is about to be imported, after its parents."""
    parts = full.split(".")
    for k in range(1, len(parts) + 1):
        name = ".".join(parts[:k])
        if world.module(name, sys.modules) is MISSING:
            _read_absence(world, name, full)
            return


def _read_absence(world: World, name: str, full: str) -> None:
    """A module that is not loaded: guard that it cannot be found, if that is so."""
    if "." in name or _is_found(name):
        words = f"it imports {full!r}, which is not imported yet"
        raise Unreplayable(words, "", 0, lasts=not _is_found(name.partition(".")[0]))
    world.add(Absent(f"no module {name!r}", sys.modules, name))
    own: dict[str, Any] = vars(sys)
    for each in ("meta_path", "path_hooks", "path"):
        world.own(f"sys.{each}", own, each)
        world.contents(own[each])
    # An empty entry stands for the current directory.
    folders = [entry or os.curdir for entry in sys.path if isinstance(entry, str)]
    world.add(Files.of("the directories in sys.path", folders))


def _is_found(name: str) -> bool:
    """Whether a module can be found; true also if searching for it raises."""
    try:
        return importlib.util.find_spec(name) is not None
    except Exception:  # of an import hook: the import itself will raise it
        return True
