"""Builds bundles: `tzero.build_bundle` and ``tzero bundle build``.

::

    a program, with TZERO_COLLECT ──► a folder of what its processes used ──┐
    a coverage file ── compiled for a target, with no device ───────────────┴─► app.tzb

Enters: commands, coverage files. Leaves: bundles. It must not know how a bundle is used.
"""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tzero import compile as compiling
from tzero import settings
from tzero.adapters.triton_launch import GPUTarget
from tzero.backends import triton as backend
from tzero.backends.triton import carried
from tzero.cache.bundle import Bundle, Item, write
from tzero.calls.coverage import Coverage
from tzero.calls.coverage import coverage as own_coverage
from tzero.errors import InvalidArgument
from tzero.tune import bundled

__all__ = ["Built", "build_bundle", "build_from_coverage", "build_from_program", "target_of"]


@dataclass(frozen=True, slots=True)
class Built:
    """What went into a bundle, and what could not.

    >>> Built("app.tzb", 3, 1, {"add": "it prints while it compiles (static_print)"}).kernels
    3
    """

    path: str
    kernels: int
    configs: int
    refused: dict[str, str]
    """Kernels that the program uses and that no bundle can have, with the reason."""


def build_bundle(
    path: str | os.PathLike[str],
    coverage: Coverage | str | os.PathLike[str] | None = None,
    *,
    target: str | None = None,
) -> Built:
    """Write a bundle of the compiled kernels and tuned configs that this process covers, or those
    of a `tzero.coverage()` that was kept or saved to a file.

    ::

        made = tzero.build_bundle("app.tzb")
        made = tzero.build_bundle("app.tzb", "coverage.json", target="cuda:90")
        print(made.kernels, made.configs)

    With a target, such as ``cuda:90``, ``hip:gfx942`` or ``cpu``, kernels are compiled for it,
    which need not be there; without one, for the device that the coverage is from.
    """
    if coverage is None:
        coverage = own_coverage()
    elif not isinstance(coverage, Coverage):
        coverage = Coverage.read(coverage)
    return build_from_coverage(
        os.fspath(path), coverage, None if target is None else target_of(target)
    )


def build_from_program(path: str, command: Sequence[str]) -> Built:
    """Run a program, and write what its processes use to a bundle. Raises
    ``subprocess.CalledProcessError`` if the program fails.

    ::

        build_from_program("app.tzb", ["python", "app.py"])
    """
    with tempfile.TemporaryDirectory(prefix="tzero-bundle-") as folder:
        # Unless told otherwise, each shape waits for its config: the bundle is to have it.
        variables = {"TZERO_TUNE_WHEN": "call", **settings.variables(), "TZERO_COLLECT": folder}
        subprocess.run(command, env=variables, check=True)
        return _write(path, _collected(folder))


def build_from_coverage(path: str, coverage: Coverage, target: GPUTarget | None = None) -> Built:
    """Compile what a coverage file names, for its targets or another one, and write a bundle. No
    device is needed.

    ::

        build_from_coverage("app.tzb", Coverage.read("coverage.json"), target_of("cuda:90"))
    """
    futures: dict[str, Future[Any]] = {}
    found: list[Item] = []
    wanted = []
    for each in coverage.kernels:
        made = each if target is None else backend.retargeted(each, target)
        if isinstance(made, backend.NotTransportable):
            found.append(Item(carried.REFUSED, "", each.name, {"reason": made.reason}, b""))
            continue
        wanted.append(made)
        futures[f"{made.name} {len(futures) + 1}"] = backend.submit(made)
    artifacts = compiling.service().wait(futures).values()
    for made, artifact in zip(wanted, artifacts, strict=True):
        found += carried.items(made, artifact)
    return _write(path, [*found, *map(bundled.item, coverage.configs)])


def target_of(text: str) -> GPUTarget:
    """The target with a name, such as ``cuda:90``, ``hip:gfx942`` or ``cpu``, this machine's.

    >>> target_of("cuda:90")
    GPUTarget(backend='cuda', arch=90, warp_size=32)
    """
    kind, _, arch = text.partition(":")
    if kind == "cuda" and arch.isdecimal():
        return GPUTarget("cuda", int(arch), 32)
    if kind == "hip" and arch.startswith("gfx"):
        return GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32)
    if kind == "cpu" and arch in ("", platform.machine()):
        return GPUTarget("cpu", platform.machine(), 1)
    raise InvalidArgument(
        kernel="bundle build",
        problem=f"{text!r} is no target that can be compiled for here",
        advice=f"Give cuda:90, hip:gfx942 or cpu:{platform.machine()}, for example.",
    )


def _collected(folder: str) -> Iterable[Item]:
    for each in sorted(Path(folder).glob("*.tzb")):
        with Bundle(each) as one:
            for listed in one:
                yield Item(*listed[:4], one.read(listed))


def _write(path: str, found: Iterable[Item]) -> Built:
    items = list(found)
    refused = {each.name: each.facts["reason"] for each in items if each.kind == carried.REFUSED}
    kept = {(i.kind, i.digest): i for i in items if i.kind != carried.REFUSED}
    write(path, kept.values(), settings.now().cache_key)
    kinds = [kind for kind, _ in kept]
    return Built(path, kinds.count(carried.KERNEL), kinds.count(bundled.CONFIG), refused)
