"""Triton's ``CompiledKernel`` from an artifact.

Enters: an `Artifact` that `compile_request` made, and the source that it was compiled for. Leaves:
Triton's own kernel, whose files are in a directory of this process. It must not know where the
artifact comes from.
"""

from __future__ import annotations

import atexit
import builtins
import json
import os
import shutil
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tzero import locks, scratch
from tzero.adapters import triton_launch
from tzero.adapters.triton_launch import ASTSource, CompiledKernel, GPUTarget
from tzero.backends.triton.write_request import signature_of
from tzero.cache.digest import canonical
from tzero.compile.request import Artifact, Malformed

__all__ = ["directory", "load"]


def load(artifact: Artifact, source: ASTSource) -> CompiledKernel:
    """Make Triton's kernel from an artifact; raises `Malformed` if it was compiled for another one.

    ::

        kernel = load(artifact, source)
        kernel.asm["ptx"]
    """
    facts = artifact.facts
    try:
        for what, ours in (("kernel", source.name), ("signature", canonical(signature_of(source)))):
            if facts[what] != ours:
                raise Malformed(f"an artifact for the {what} {facts[what]}, and not for {ours}")
        metadata, order, digest = facts["metadata"], facts["order"], str(facts["hash"])
        about = next(name for name in order if name.endswith(".json"))
        if set(order) - {about} != set(artifact.files):
            raise Malformed("an artifact whose files are not those it lists")
        # Checked before Triton's constructor: a half-made kernel raises in its destructor.
        target, _ = GPUTarget(**metadata["target"]), metadata["name"]
        last = triton_launch.make_backend(target).binary_ext
        if not any(name.endswith(f".{last}") for name in artifact.files):
            raise Malformed(f"an artifact without its {last}")
        said = [(str(a), str(b), str(c), int(d)) for a, b, c, d in facts["warnings"]]
    except Malformed:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise Malformed(f"no artifact of Triton's: {error!r}") from error
    except StopIteration:
        raise Malformed("an artifact without metadata") from None
    source.fn.cache_key  # noqa: B018 - launches check the globals that it records
    folder = Path(tempfile.mkdtemp(dir=directory()))
    group = {}
    for name in order:
        path = folder / name
        path.write_bytes(json.dumps(metadata).encode() if name == about else artifact.files[name])
        group[name] = str(path)
    try:
        kernel = CompiledKernel(source, group, digest)
    except (LookupError, TypeError, AttributeError, ValueError, StopIteration) as error:
        raise Malformed(f"no artifact of Triton's: {error!r}") from error
    weakref.finalize(kernel, _removed, os.getpid(), str(folder)).atexit = False
    for kind, text, file, line in said:
        category = getattr(builtins, kind, UserWarning)
        warnings.warn_explicit(text, category, file, line)
    return kernel


_directories: dict[int, str] = {}  # by process id: a forked child gets its own
_directories_lock = locks.lock()


def directory() -> str:
    """This process's directory for the files that Triton reads; removed when the process ends."""
    with _directories_lock:
        me = os.getpid()
        if me not in _directories or not os.path.isdir(_directories[me]):
            _directories[me] = tempfile.mkdtemp(prefix="kernels-", dir=scratch.directory())
            _at_exit(_removed, me, _directories[me])
        return _directories[me]


def _removed(owner: int, directory: str) -> None:
    if os.getpid() == owner:  # a child that was forked later runs this too
        shutil.rmtree(directory, ignore_errors=True)


def _at_exit(function: Callable[..., None], *args: Any) -> None:
    """Call a function when this process ends. Children of `multiprocessing` do not run `atexit`,
    but run its finalizers."""
    finalize = sys.modules.get("multiprocessing.util")
    if finalize is not None:
        finalize.Finalize(None, function, args=args, exitpriority=0)
    else:
        atexit.register(function, *args)
