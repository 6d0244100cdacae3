"""Triton's ``CompiledKernel`` from an artifact.

Enters: an `Artifact` that `compile_request` made, and the source that it was compiled for. Leaves:
Triton's own kernel, whose files are written to a directory of this process if someone asks for
them. It must not know where the artifact comes from.
"""

from __future__ import annotations

import builtins
import json
import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tzero import locks, scratch
from tzero.adapters import triton_compile, triton_launch
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
        metadata, order, digest = dict(facts["metadata"]), facts["order"], str(facts["hash"])
        about = next(name for name in order if name.endswith(".json"))
        Artifact({about: b""})  # raises unless it is a plain file name, as those of `files` are
        if set(order) - {about} != set(artifact.files):
            raise Malformed("an artifact whose files are not those it lists")
        # Checked before Triton's constructor: a half-made kernel raises in its destructor.
        target, _ = GPUTarget(**metadata["target"]), metadata["name"]
        last = triton_launch.make_backend(target).binary_ext
        objects = [each for name, each in artifact.files.items() if name.endswith(f".{last}")]
        if len(objects) != 1:
            raise Malformed(f"an artifact with {len(objects)} files of its {last}, and not one")
        said = [(str(a), str(b), str(c), int(d)) for a, b, c, d in facts["warnings"]]
    except Malformed:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        raise Malformed(f"no artifact of Triton's: {error!r}") from error
    except StopIteration:
        raise Malformed("an artifact without metadata") from None
    source.fn.cache_key  # noqa: B018 - launches check the globals that it records
    if target.backend == "cpu":
        _seal(metadata, objects[0])
    contents = {
        name: json.dumps(metadata).encode() if name == about else artifact.files[name]
        for name in order
    }
    try:
        kernel = triton_compile.make_compiled(source, contents, digest, _Files(contents))
    except (LookupError, TypeError, AttributeError, ValueError, StopIteration) as error:
        raise Malformed(f"no artifact of Triton's: {error!r}") from error
    for kind, text, file, line in said:
        category = getattr(builtins, kind, UserWarning)
        warnings.warn_explicit(text, category, file, line)
    return kernel


def _seal(metadata: dict[str, Any], binary: bytes) -> None:
    """Let the CPU's driver load the object: a seal says that this user trusts it."""
    from tzero.cpu import sealing
    from tzero.cpu.triton_compat import cache_directory

    sealing.seal(metadata, binary, cache_directory())


class _Files(Mapping[str, str]):
    """The paths of a kernel's files by name. They are written when the first path is read, because
    hardly anyone reads them; they are removed with this object."""

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self._contents = contents

    def __getitem__(self, name: str) -> str:
        if name not in self._contents:
            raise KeyError(name)
        folder: str | None = vars(self).get("folder")
        if folder is None:
            # Of two threads that write at once, both use the first one's.
            folder = vars(self).setdefault("folder", self._written())
        return os.path.join(folder, name)

    def _written(self) -> str:
        folder = tempfile.mkdtemp(dir=directory())
        weakref.finalize(self, _removed, os.getpid(), folder).atexit = False
        for name, content in self._contents.items():
            Path(folder, name).write_bytes(content)
        return folder

    def __iter__(self) -> Iterator[str]:
        return iter(self._contents)

    def __len__(self) -> int:
        return len(self._contents)


_directories: dict[int, str] = {}  # by process id: a forked child gets its own
_directories_lock = locks.lock()


def directory() -> str:
    """This process's directory for the files that Triton reads; removed when the process ends."""
    with _directories_lock:
        me = os.getpid()
        if me not in _directories or not os.path.isdir(_directories[me]):
            _directories[me] = tempfile.mkdtemp(prefix="kernels-", dir=scratch.directory())
        return _directories[me]


def _removed(owner: int, directory: str) -> None:
    if os.getpid() == owner:  # a child that was forked later runs this too
        shutil.rmtree(directory, ignore_errors=True)
