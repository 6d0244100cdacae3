"""Finds the C compiler, the flags it accepts, and a fingerprint for cache keys.

Enters: ``settings.cc`` and the machine. Leaves: a :class:`Toolchain`, which compiles C text to the
bytes of a shared object. It must not know Triton, kernels or where objects are kept.
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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tzero import ownership, processes, scratch, settings
from tzero.errors import CompilerFailed, CompilerMissing
from tzero.settings import Settings

__all__ = ["Toolchain", "find"]

# Searched in this order when no compiler is configured.
_SEARCHED = ("gcc", "cc", "clang")

# Flags to use where the compiler accepts them; of alternatives, the first accepted one. Only
# -march=native affects what a kernel computes, and the fingerprint covers it.
_FLAGS: tuple[tuple[str, ...], ...] = (
    ("-std=gnu11",),
    ("-march=native", "-mcpu=native"),
    ("-fPIC",),
    ("-fno-math-errno",),  # errno is never read, and setting it prevents vectorisation
    ("-fno-trapping-math",),  # floating-point exception flags are never read either
    ("-fopenmp-simd",),  # the simd pragmas only: no OpenMP runtime
    ("-fno-semantic-interposition",),
    ("-fno-sanitize=all",),  # zig sanitizes by default
    ("-fno-use-linker-plugin",),  # saves a few ms of linking; there is no LTO
    ("-pipe",),
    ("-w",),
)

# GNU compilers lay the parts of an object out on pages of their own. Without that, a small kernel's
# object has half the size, and is hashed and loaded faster. Linkers that do not know it, warn.
# Other compilers may refuse it, as zig does; and it is about ELF.
_LINKING = ("-Wl,-z,noseparate-code",)

# Stands for the kernel's name in errors of the first run of a compiler.
_PROBE = "probing the compiler"
_PROBE_LIMIT = 60  # seconds for each question to a compiler

_FEATURE = re.compile(r"^#define (__[A-Z][A-Za-z0-9_]*__) 1$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A C compiler and the flags it accepts.

    ``version`` is for display. ``features`` are the macros that the compiler defines as 1 with
    these flags, including the machine's instruction sets (``__AVX2__``). ``linking`` are flags for
    the linker.
    """

    command: tuple[str, ...]
    version: str
    flags: tuple[str, ...]
    linking: tuple[str, ...]
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
        """Compile C text to a shared object; errors name the kernel ``name``.

        ``extra_flags`` come last, so they override the toolchain's own and may name libraries.
        """
        with scratch.folder() as folder:
            stem = re.sub(r"\W", "_", name, flags=re.ASCII)[:64] or "kernel"
            text, binary = Path(folder, f"{stem}.c"), Path(folder, f"{stem}.so")
            text.write_text(source, encoding="utf-8")
            includes = [f"-I{os.fspath(each)}" for each in include_dirs]
            command = [*self.command, *self.flags, f"-O{optimization}", "-shared", *includes]
            command += [*self.linking, "-o", str(binary), str(text), *extra_flags]
            output = _run(command, name)
            if output.returncode != 0 or not binary.exists():
                messages = output.stderr + output.stdout
                raise CompilerFailed(kernel=name, command=command, output=messages)
            return binary.read_bytes()


def find(configured: Settings | None = None) -> Toolchain:
    """Find the compiler of the given settings (default: the current ones) on the current PATH. It
    is probed once per process, and again if its file or a variable that it reads changes.

    Raises CompilerMissing if there is none, CompilerFailed if it does not work.
    """
    command = _locate((configured or settings.now()).cc)
    try:
        files = tuple((each, ownership.identity(each)) for each in _programs(command))
    except OSError:  # removed since it was located
        raise CompilerMissing(searched=[command[0]]) from None
    return _probe(command, files, tuple(settings.compiler_variables().items()))


def _programs(command: tuple[str, ...]) -> list[str]:
    """The files of a command that run: the compiler, and where it is a wrapper, what that calls, as
    with ``ccache gcc``."""
    others = [_which(each) for each in command[1:] if not each.startswith("-")]
    return [command[0], *(each for each in others if each is not None)]


def _locate(named: tuple[str, ...] | None) -> tuple[str, ...]:
    if named is not None:
        path = _which(named[0])
        if path is None:
            raise CompilerMissing(searched=[named[0]])
        return (os.path.abspath(path), *named[1:])
    for name in _SEARCHED:
        if path := _which(name):
            return (path,)
    if importlib.util.find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "cc")
    raise CompilerMissing(searched=[*_SEARCHED, "the ziglang package"])


def _which(name: str) -> str | None:
    """As `shutil.which`, with one question to the system for each directory instead of three: each
    request asks for its compiler."""
    path = settings.search_path()
    if not path or os.path.dirname(name):
        return shutil.which(name)
    for folder in path.split(os.pathsep):
        found = os.path.join(folder, name)
        if os.access(found, os.F_OK | os.X_OK) and not os.path.isdir(found):
            return found
    return None


@functools.cache
def _probe(
    command: tuple[str, ...],
    files: tuple[tuple[str, tuple[int, ...]], ...],
    variables: tuple[tuple[str, str], ...],
) -> Toolchain:
    """One run tells everything: the predefined macros give the version and the machine's
    instruction sets, and unknown flags are rejected. The result is cached by what `stat` says about
    the files of the command, and by the variables that compilers read."""
    flags = tuple(alternatives[0] for alternatives in _FLAGS)
    answer = _macros(command, flags)
    if answer.returncode != 0:
        flags = tuple(flag for each in _FLAGS for flag in _first_known(command, each))
        answer = _macros(command, flags)
    if answer.returncode != 0:
        raise CompilerFailed(
            kernel=_PROBE,
            command=answer.args,
            output=answer.stderr + answer.stdout,
        )
    # Macros cannot tell a wrapper script that adds flags from the compiler it calls; the file can.
    contents = [_content(os.path.realpath(path)) for path, _ in files]
    read = [f"{name}={value}" for name, value in variables]
    features = frozenset(_FEATURE.findall(answer.stdout))
    linking = _LINKING if "__ELF__" in features and not _is_clang(answer.stdout) else ()
    used = [*command, *flags, *linking]
    identity = "\0".join([sys.platform, *used, answer.stdout, *contents, *read])
    return Toolchain(
        command=command,
        version=_version(answer.stdout),
        flags=flags,
        linking=linking,
        features=features,
        fingerprint=hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest(),
    )


def _content(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:  # executable but not readable
        return f"{path} cannot be read: {error.strerror}"


def _first_known(command: tuple[str, ...], alternatives: tuple[str, ...]) -> tuple[str, ...]:
    for flag in alternatives:
        if _macros(command, (flag,)).returncode == 0:
            return (flag,)
    return ()


def _macros(command: tuple[str, ...], flags: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    # -Werror: some compilers only warn about unknown flags.
    command_line = [*command, *flags, "-Werror", "-E", "-dM", "-x", "c", os.devnull]
    return _run(command_line, _PROBE)


def _version(macros: str) -> str:
    version = re.search(r'^#define __VERSION__ "(.*)"$', macros, re.MULTILINE)
    name = version[1].strip() if version else "of unknown version"
    family = "clang" if _is_clang(macros) else "gcc"
    return name if family in name.lower() else f"{family} {name}"


def _is_clang(macros: str) -> bool:
    return "#define __clang__ " in macros


def _run(command: Sequence[str], name: str) -> subprocess.CompletedProcess[str]:
    limit = settings.now().compile_timeout if name != _PROBE else _PROBE_LIMIT
    try:
        done = processes.run(command, seconds=limit or None)
    except OSError as error:  # not executable, or removed since it was located
        raise CompilerFailed(kernel=name, command=command, output=str(error)) from error
    except subprocess.TimeoutExpired as error:
        output = f"It did not end within {limit} s and was stopped (TZERO_COMPILE_TIMEOUT)."
        raise CompilerFailed(kernel=name, command=command, output=output) from error
    texts = (each.decode("utf-8", "replace") for each in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(done.args, done.returncode, *texts)
