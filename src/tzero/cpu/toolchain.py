"""The C compiler: which one, with which flags, and what makes its output reusable.

Enters: ``settings.cc`` and the machine. Leaves: a :class:`Toolchain`, which turns C text into the
bytes of a shared object and has a fingerprint for cache keys. It must not know Triton, kernels or
where objects are kept.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tzero import settings
from tzero.errors import CompilerFailed, CompilerMissing
from tzero.settings import Settings

__all__ = ["Toolchain", "find"]

# What to look for, in this order, when no compiler was named.
_SEARCHED = ("gcc", "cc", "clang")

# Every flag here is asked for, and left out where the compiler does not know it; of alternatives
# the first known one is taken. Nothing here changes what a kernel computes, but for -march=native,
# which the fingerprint covers.
_WANTED: tuple[tuple[str, ...], ...] = (
    ("-std=gnu11",),
    ("-march=native", "-mcpu=native"),
    ("-fPIC",),
    ("-fno-math-errno",),  # errno is not read, and setting it keeps loops from vectorising
    ("-fno-trapping-math",),  # nor are the floating-point exception flags
    ("-fopenmp-simd",),  # the simd pragmas only: no OpenMP runtime
    ("-fno-semantic-interposition",),
    ("-fno-sanitize=all",),  # zig sanitizes unless told not to
    ("-fno-use-linker-plugin",),  # a few ms of linking, and there is no LTO
    ("-pipe",),
    ("-w",),
)

_FEATURE = re.compile(r"^#define (__[A-Z][A-Za-z0-9_]*__) 1$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A C compiler that was found and asked what it knows.

    ``version`` is for people. ``features`` are the macros that the compiler defines as 1 with these
    flags, the instruction sets of this machine among them (``__AVX2__``).
    """

    command: tuple[str, ...]
    version: str
    flags: tuple[str, ...]
    features: frozenset[str]
    fingerprint: str

    def build(
        self,
        source: str,
        name: str,
        include_dirs: Sequence[str | os.PathLike[str]] = (),
        extra_flags: Sequence[str] = (),
        optimization: int = 3,
    ) -> bytes:
        """Compile C text to a shared object; ``name`` is whose code it is, for the error.

        ``extra_flags`` come last, so they win over the toolchain's own and may name libraries.
        """
        with tempfile.TemporaryDirectory(prefix="tzero-") as folder:
            stem = re.sub(r"\W", "_", name, flags=re.ASCII)[:64] or "kernel"
            text, binary = Path(folder, f"{stem}.c"), Path(folder, f"{stem}.so")
            text.write_text(source, encoding="utf-8")
            includes = [f"-I{os.fspath(each)}" for each in include_dirs]
            command = [*self.command, *self.flags, f"-O{optimization}", "-shared", *includes]
            command += ["-o", str(binary), str(text), *extra_flags]
            output = _run(command, name)
            if output.returncode != 0 or not binary.exists():
                words = output.stderr + output.stdout
                raise CompilerFailed(kernel=name, command=command, output=words)
            return binary.read_bytes()


def find(said: Settings | None = None) -> Toolchain:
    """Find the compiler of some settings, else of those in force, as PATH is now, and ask it once
    per process what it knows; again where its file has changed.

    Raises CompilerMissing where there is none, CompilerFailed where it does not work.
    """
    command = _locate((said or settings.now()).cc)
    try:
        found = os.stat(command[0])
    except OSError:  # it was there a moment ago
        raise CompilerMissing(searched=[command[0]]) from None
    return _asked(command, os.path.realpath(command[0]), found.st_size, found.st_mtime_ns)


def _locate(named: tuple[str, ...] | None) -> tuple[str, ...]:
    if named is not None:
        path = shutil.which(named[0])
        if path is None:
            raise CompilerMissing(searched=[named[0]])
        return (os.path.abspath(path), *named[1:])
    for name in _SEARCHED:
        if path := shutil.which(name):
            return (path,)
    if importlib.util.find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "cc")
    raise CompilerMissing(searched=[*_SEARCHED, "the ziglang package"])


@functools.cache
def _asked(command: tuple[str, ...], real: str, size: int, changed: int) -> Toolchain:
    """One run of the compiler answers everything: its predefined macros tell the version and the
    machine's instruction sets, and it refuses flags that it does not know. The file's place, size
    and time say for how long the answer stands."""
    flags = tuple(alternatives[0] for alternatives in _WANTED)
    answer = _macros(command, flags)
    if answer.returncode != 0:
        flags = tuple(flag for each in _WANTED for flag in _first_known(command, each))
        answer = _macros(command, flags)
    if answer.returncode != 0:
        raise CompilerFailed(
            kernel="tzero's first question to the compiler",
            command=answer.args,
            output=answer.stderr + answer.stdout,
        )
    # Macros do not tell a script that adds flags from the compiler it calls; the file does.
    identity = "\0".join([sys.platform, *command, *flags, answer.stdout, _content(real)])
    return Toolchain(
        command=command,
        version=_version(answer.stdout),
        flags=flags,
        features=frozenset(_FEATURE.findall(answer.stdout)),
        fingerprint=hashlib.sha256(identity.encode()).hexdigest(),
    )


def _content(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:  # it may be run, and not read
        return f"{path} cannot be read: {error.strerror}"


def _first_known(command: tuple[str, ...], alternatives: tuple[str, ...]) -> tuple[str, ...]:
    for flag in alternatives:
        if _macros(command, (flag,)).returncode == 0:
            return (flag,)
    return ()


def _macros(command: tuple[str, ...], flags: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    # -Werror: some compilers only warn about a flag that they do not know.
    question = [*command, *flags, "-Werror", "-E", "-dM", "-x", "c", os.devnull]
    return _run(question, "tzero's first question to the compiler")


def _version(macros: str) -> str:
    version = re.search(r'^#define __VERSION__ "(.*)"$', macros, re.MULTILINE)
    words = version[1].strip() if version else "of unknown version"
    family = "clang" if "#define __clang__ " in macros else "gcc"
    return words if family in words.lower() else f"{family} {words}"


def _run(command: Sequence[str], name: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except OSError as error:  # it was there when we looked: not executable, or gone
        raise CompilerFailed(kernel=name, command=command, output=str(error)) from error
