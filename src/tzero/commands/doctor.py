"""`tzero doctor`: whether tzero works on this machine, and what would make it faster.

Enters: nothing but the machine and the environment. Leaves: findings, each with what was found and,
unless all is well, with its cure. It must not change anything: no cache is cleared, no setting set.

Each finding is about one thing. What fails is a finding too: no exception leaves `examine`.
"""

from __future__ import annotations

import difflib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from tzero import settings, versions
from tzero.cache import stores
from tzero.cache.store import location
from tzero.errors import (
    CacheRefused,
    CompilerMissing,
    InvalidSetting,
    NativeMissing,
    TzeroError,
    UnsupportedVersion,
)

__all__ = ["Finding", "State", "examine"]

State = Literal["ok", "slow", "broken", "note"]
"""``slow``: it works, and could be faster. ``note``: nothing is wrong; good to know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of one thing, and what to do about it.

    >>> Finding("C compiler", "ok", "gcc 12.2").cure
    ''
    """

    subject: str
    state: State
    found: str
    cure: str = ""


def examine() -> Iterator[Finding]:
    """Examine this machine, one thing after the other.

    ::

        [each for each in examine() if each.state == "broken"]
    """
    is_broken = False
    for subject, look in _LOOKS:
        try:
            for found in look():
                # What fails after something else may fail because of it.
                cure = _FIRST if is_broken and found.cure is _REPORT else found.cure
                yield replace(found, cure=cure)
                is_broken = is_broken or found.state == "broken"
        except InvalidSetting:
            return  # a finding by now; everything that follows reads the settings
        except Exception as error:  # reported as a finding: the others are examined all the same
            cure = _FIRST if is_broken else _REPORT
            yield Finding(subject, "broken", f"{type(error).__name__}: {error}", cure)
            is_broken = True


_FIRST = "Mend what is said above first."
_REPORT = "Please report it, with the whole output of this command."


def _settings() -> Iterator[Finding]:
    given = {name: text for name, text in settings.variables().items() if text}
    ours = sorted(name for name in given if name.startswith("TZERO_"))
    known = {*settings.names(), *_OF_BUILDS}
    for name in ours:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            meant = f"Did you mean {near[0]}? " if near else ""
            cure = f"{meant}docs/settings.md lists all variables."
            yield Finding("settings", "slow", f"{name} is no setting of tzero", cure)
    try:
        settings.now()
    except InvalidSetting as error:
        yield Finding("settings", "broken", str(error), f"Correct or unset {error.name}.")
        return
    for name, effect in _SLOWER.items():
        if name in given and given[name] != "0":
            cure = f"Unset {name} unless you are looking for an error."
            yield Finding("settings", "slow", f"{name}={given[name]}: {effect}", cure)
    usual = [name for name in ours if name in known and name not in _SLOWER]
    yield Finding("settings", "ok", f"set: {', '.join(usual)}" if usual else "all as by default")


_OF_BUILDS = ("TZERO_WERROR",)
"""Variables that setup.py reads."""

_SLOWER = {
    "TZERO_DISABLE": "Triton makes every call",
    "TZERO_TIER": "calls are not made in the fastest way",
    "TZERO_VERIFY": "every call is recorded again",
    "TZERO_CPU_CHECK": "every access of CPU kernels is checked",
    "TRITON_BACKENDS_IN_TREE": "Triton does not look for tzero's CPU backend",
    "TRITON_INTERPRET": "Triton interprets kernels",
    "CUDA_LAUNCH_BLOCKING": "every launch waits for its kernel",
}
"""Variables that make calls slower, and how."""


def _versions() -> Iterator[Finding]:
    yield Finding("tzero", "ok", versions.TZERO)
    for row in versions.SUPPORTED:
        found = versions.installed(row.package)
        if found is None:
            optional = row.package == "helion"
            cure = "" if optional else versions.how_to_get(row)
            yield Finding(row.title, "note" if optional else "broken", "not installed", cure)
        elif row.package == "python" and versions.is_free_threaded():
            cure = f"Use the ordinary build of Python {row.oldest} to {row.newest}."
            yield Finding(row.title, "broken", f"{found}, built without the GIL", cure)
        elif versions.is_too_old(row, found):
            yield Finding(row.title, "broken", f"{found}, too old", versions.how_to_get(row))
        elif versions.is_newer_than_tested(row, found):
            yield Finding(row.title, "note", f"{found}, newer than {row.newest}, which was tested")
        else:
            yield Finding(row.title, "ok", found)


def _extension() -> Iterator[Finding]:
    try:
        import tzero._native as native
    except ModuleNotFoundError:
        yield Finding("extension", "slow", "not built: calls run as written", str(NativeMissing()))
        return
    except UnsupportedVersion as error:
        cure = "Reinstall tzero-runtime: this one was left behind by another version."
        yield Finding("extension", "broken", str(error), cure)
        return
    from tzero.calls.native import available

    why = available()
    if why:
        cure = "Use a version of torch that docs/limits.md lists."
        yield Finding("extension", "slow", f"plans are not replayed natively: {why}", cure)
    else:
        yield Finding("extension", "ok", os.path.basename(native.__file__))


def _backends() -> Iterator[Finding]:
    """Triton takes the last backend of a name that it finds, whatever the order is."""
    import importlib.metadata as metadata  # it is slow to import

    for point in metadata.entry_points(group="triton.backends", name="cpu"):
        if point.value != "tzero.cpu":
            owner = "a package" if point.dist is None else point.dist.name
            cure = f"Uninstall {owner}, or tzero-runtime, where kernels are to run on the CPU."
            text = f"{owner} has a Triton backend called 'cpu' too; Triton takes either"
            yield Finding("CPU backend", "slow", text, cure)


def _device() -> Iterator[Finding]:
    import torch

    from tzero.adapters.triton_launch import driver

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            major, minor = torch.cuda.get_device_capability(index)
            name = torch.cuda.get_device_name(index)
            yield Finding("GPU", "ok", f"{name}, compute capability {major}.{minor}")
    else:
        yield Finding("GPU", "note", "none: Triton kernels run on the CPU")
    target = driver.active.get_current_target()
    yield Finding("target", "ok", f"{target.backend}, {target.arch}")


def _compiler() -> Iterator[Finding]:
    from tzero.cpu import toolchain

    try:
        found = toolchain.find()
    except CompilerMissing as error:
        import torch

        state: State = "note" if torch.cuda.is_available() else "broken"
        yield Finding("C compiler", state, "none", str(error))
        return
    yield Finding("C compiler", "ok", " ".join(found.command))


def _cache() -> Iterator[Finding]:
    now = settings.now()
    layers = stores(now)
    if layers.disk is None:
        cure = "Unset TZERO_CACHE."
        yield Finding("disk cache", "slow", "off: each process compiles everything", cure)
    else:
        yield _disk(os.path.abspath(location(now)), layers.disk.check)
    if layers.remote is not None:
        problem = layers.remote.probe()
        shown = layers.remote.shown
        if problem is not None:
            cure = "Check the address in TZERO_REMOTE_CACHE, and that the server runs."
            yield Finding("shared cache", "slow", f"{shown} does not reply: {problem}", cure)
        elif not layers.remote.authenticated:
            cure = "Set TZERO_CACHE_KEY to a secret that all machines share."
            yield Finding("shared cache", "note", f"{shown}: not authenticated", cure)
        else:
            yield Finding("shared cache", "ok", shown)


_ROOM = 256 << 20  # bytes


def _disk(root: str, check: Callable[[], None]) -> Finding:
    try:
        check()
        free = _written(root)
    except CacheRefused as error:
        return Finding("disk cache", "slow", str(error), f"chmod 700 {root}, or TZERO_CACHE_DIR.")
    except OSError as error:
        cure = "Set TZERO_CACHE_DIR to a directory that you can write to."
        return Finding("disk cache", "slow", f"{root} cannot be written: {error.strerror}", cure)
    room = free.f_bavail * free.f_frsize
    if room < _ROOM:
        cure = "Free some space, or set TZERO_CACHE_DIR to another disk."
        return Finding("disk cache", "slow", f"{root}: only {room >> 20} MiB free", cure)
    return Finding("disk cache", "ok", root)


def _written(root: str) -> os.statvfs_result:
    """Write a file where a directory is, or will be made when the first kernel is compiled."""
    while not os.path.lexists(root):
        root = os.path.dirname(root)
    with tempfile.TemporaryFile(dir=root) as file:
        file.write(bytes(4096))
        file.flush()
    return os.statvfs(root)


def _triton_cache() -> Iterator[Finding]:
    """Triton makes a directory for each kernel that it compiles, and fails where it cannot."""
    from tzero.adapters.triton_compile import cache_directory

    root = cache_directory()
    try:
        _written(root)
    except OSError as error:
        cure = "Set TRITON_CACHE_DIR to a directory that you can write to."
        found = f"{root} cannot be written: {error.strerror}"
        yield Finding("Triton's cache", "broken", found, cure)
    else:
        yield Finding("Triton's cache", "ok", root)


def _call() -> Iterator[Finding]:
    """A kernel compiled, launched and replayed for real."""
    from tzero.commands import sample

    start = time.perf_counter()
    try:
        made = sample.call()
    except InvalidSetting:
        raise
    except TzeroError as error:
        yield Finding("a call", "broken", str(error), _REPORT)
        return
    taken = time.perf_counter() - start
    if not made.is_right:
        yield Finding("a call", "broken", "a kernel gave a wrong result", _REPORT)
    elif made.how != "natively":
        yield Finding("a call", "slow", f"replayed {made.how or 'not at all'}: {made.why}")
    else:
        cost = f"{made.microseconds:.1f} µs instead of {made.plain_microseconds:.1f}"
        yield Finding("a call", "ok", f"replayed natively, {cost}; the first took {taken:.1f} s")


_LOOKS: tuple[tuple[str, Callable[[], Iterator[Finding]]], ...] = (
    ("versions", _versions),
    ("settings", _settings),
    ("extension", _extension),
    ("CPU backend", _backends),
    ("GPU", _device),
    ("C compiler", _compiler),
    ("disk cache", _cache),
    ("Triton's cache", _triton_cache),
    ("a call", _call),
)
