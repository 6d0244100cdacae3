"""Every setting and its environment variable. Nothing else in tzero reads the environment.

A setting is one field of :class:`Settings`: its variable, its default, what it may be and what it
does. To add one, add a field; everything else is derived from it.

Enters: an environment. Leaves: one frozen :class:`Settings`, read at the first :func:`current` and
kept, so that all of a program sees the same settings even if the environment changes later. Only a
compile reads the environment as it is at that moment, with :func:`now`. This module must not know
who uses a setting or why.

    >>> with override(cpu_check=True):
    ...     current().cpu_check
    True
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, ParamSpec, TypeVar

from tzero import locks
from tzero.errors import InvalidSetting
from tzero.setting_kinds import (
    COMMAND,
    FLEET,
    REMOTE,
    SWITCH,
    Kind,
    Malformed,
    number,
    one_of,
    one_word,
    several,
    some_text,
)

__all__ = [
    "Changes",
    "Settings",
    "applied",
    "current",
    "launches_watched_by",
    "names",
    "now",
    "override",
    "read",
    "variables",
]

ENVIRONMENT, READ_VARIABLE = os.environ, os.getenv
"""How programs read the environment. Recordings recognize such reads by these."""

_C = (
    # gcc and clang, and the linkers that they call
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "OBJC_INCLUDE_PATH", "LIBRARY_PATH"),
    *(
        "LD_RUN_PATH",
        "LDEMULATION",
        "GNUTARGET",
        "COMPILER_PATH",
        "GCC_EXEC_PREFIX",
        "GCC_COMPARE_DEBUG",
    ),
    *("SOURCE_DATE_EPOCH", "DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES"),
    *("CCC_OVERRIDE_OPTIONS", "CCC_ADD_ARGS", "SDKROOT", "MACOSX_DEPLOYMENT_TARGET"),
    # wrappers
    *("NIX_CFLAGS_COMPILE", "NIX_CFLAGS_LINK", "NIX_LDFLAGS", "ZIG_LIB_DIR", "ZIG_LIBC"),
    *("CCACHE_COMPILER", "CCACHE_PATH", "CCACHE_PREFIX"),
)
COMPILER_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "c": _C,
    "nvrtc": (),
    "nvcc": (
        *_C,
        *("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "CUDAHOSTCXX"),
    ),
    "hipcc": (
        *_C,
        *("HIPCC_COMPILE_FLAGS_APPEND", "HIPCC_LINK_FLAGS_APPEND", "HIP_PATH", "HIP_CLANG_PATH"),
        *("HIP_LIB_PATH", "HIP_DEVICE_LIB_PATH", "DEVICE_LIB_PATH", "ROCM_PATH", "HSA_PATH"),
    ),
    "halide": (*_C, "HL_TARGET", "HL_LLVM_ARGS"),
    "cutedsl": ("CUTE_DSL_ARCH", "CUTE_DSL_LINEINFO"),
}
"""The variables that each compiler reads and that change what it makes. Their values are part of
the keys of caches."""

_LAUNCH_WATCHERS = ("CUDA_LAUNCH_BLOCKING", "CUDA_INJECTION64_PATH", "CUDBG_APICLIENT_PID")

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _setting(*names: str, default: _T, kind: Kind[_T], empty: str = "", secret: bool = False) -> _T:
    """A field of :class:`Settings`. Of the variables ``names`` the first one that is not empty
    counts; where all are, the value is ``default``, which ``empty`` describes. A ``secret`` is in
    no message and in no ``repr``."""
    if isinstance(default, bool):
        empty = "on" if default else "off"
    metadata = {"names": names, "kind": kind, "empty": empty or str(default), "secret": secret}
    return dataclasses.field(default=default, repr=not secret, metadata=metadata)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a process.

    >>> Settings(quiesce=5).quiesce, Settings().cpu
    (5, None)
    """

    cpu: bool | None = _setting(
        "TZERO_CPU",
        default=None,
        kind=one_of(("0", False, "never"), ("1", True, "always")),
        empty="where no GPU is active",
    )
    """Whether Triton's CPU backend is active; None: if no GPU is."""

    cpu_check: bool = _setting("TZERO_CPU_CHECK", default=False, kind=SWITCH)
    """Check every load and store of CPU kernels against the bounds of its tensor."""

    cc: tuple[str, ...] | None = _setting(
        "TZERO_CC", "CC", default=None, kind=COMMAND, empty="search for one"
    )
    """The command of the C compiler; None: search for one."""

    max_specializations: int = _setting("TZERO_MAX_SPECIALIZATIONS", default=1024, kind=number(1))
    """How many bound kernels one kernel keeps; the least recently used is dropped first."""

    tier: int | None = _setting(
        "TZERO_TIER",
        default=None,
        kind=one_of(("0", 0, "Triton's"), ("1", 1, "Python"), ("2", 2, "native")),
        empty="the fastest available",
    )
    """How calls are made: 0 as Triton does, 1 in Python, 2 natively; None: the fastest there is."""

    disable: bool = _setting("TZERO_DISABLE", default=False, kind=SWITCH)
    """Leave every call to Triton."""

    install: bool = _setting("TZERO_INSTALL", default=False, kind=SWITCH)
    """Call `tzero.install()` once Triton is imported, as for the workers of a server."""

    verify: bool = _setting("TZERO_VERIFY", default=False, kind=SWITCH)
    """Record every call again, and compare it with its plan."""

    quiet: bool = _setting("TZERO_QUIET", default=False, kind=SWITCH)
    """Log fallbacks as INFO, not as warnings."""

    logs: tuple[str, ...] = _setting(
        "TZERO_LOGS",
        default=(),
        kind=several(
            *("hit", "miss", "fallback", "refusal", "compile", "launch", "graph", "cache"),
            "tune",
        ),
        empty="none",
    )
    """The kinds of events that are printed on stderr. With hits or launches calls are slower."""

    output_pool: bool = _setting("TZERO_OUTPUT_POOL", default=False, kind=SWITCH)
    """Let kernels without a ``pool=`` of their own reuse output tensors that are no longer
    referenced."""

    graphs: int = _setting(
        "TZERO_GRAPHS",
        default=1,
        kind=one_of(("0", 0, "never"), ("1", 1, "unless a tool watches"), ("2", 2, "always")),
    )
    """Whether hot launches on CUDA become CUDA graphs. With 1 they do, unless a debugger or another
    tool is to see each launch by itself; with 2 they do then too; with 0 they never do."""

    graphs_after: int = _setting("TZERO_GRAPHS_AFTER", default=32, kind=number(1))
    """After how many replays of a plan, or launches of a kernel, they are hot."""

    graphs_kept: int = _setting("TZERO_GRAPHS_KEPT", default=256, kind=number(0, "", "none"))
    """How many CUDA graphs are kept; the least recently used is dropped first."""

    graphs_memory: int = _setting("TZERO_GRAPHS_MEMORY", default=64, kind=number(0, "MiB", "none"))
    """How many MiB of device memory CUDA graphs may take, as far as that is known."""

    compile_workers: int | None = _setting(
        "TZERO_COMPILE_WORKERS", default=None, kind=number(1), empty="one per core"
    )
    """How many worker processes compile; 1: none, the caller compiles; None: one per core."""

    machine_workers: int | None = _setting(
        "TZERO_MACHINE_WORKERS", default=None, kind=number(1), empty="one per core"
    )
    """How many compiles all processes of this user together run at a time on this machine; each
    process may run one. None: one per core, or TZERO_COMPILE_WORKERS if that is more."""

    start_method: str = _setting(
        "TZERO_START_METHOD",
        default="subprocess",
        kind=one_word("subprocess", "fork", "spawn"),
    )
    """How worker processes are started."""

    compile_timeout: int = _setting(
        "TZERO_COMPILE_TIMEOUT", default=600, kind=number(0, "seconds", "no limit")
    )
    """How many seconds one compile may take; 0: no limit."""

    compile_memory: int = _setting(
        "TZERO_COMPILE_MEMORY", default=0, kind=number(0, "MiB", "no limit")
    )
    """How many MiB of memory one worker may use; 0: no limit."""

    warm: bool = _setting("TZERO_WARM", default=True, kind=SWITCH)
    """Start all worker processes in the background once a second kernel has to be compiled."""

    progress: str = _setting("TZERO_PROGRESS", default="on", kind=one_word("off", "on", "verbose"))
    """Whether compiling and tuning show a bar on a terminal; verbose: a line for each kernel and
    config instead, also where there is no terminal."""

    log_source: bool = _setting("TZERO_LOG_SOURCE", default=False, kind=SWITCH)
    """Log the source of each kernel that is compiled, as INFO."""

    trace: str | None = _setting(
        "TZERO_TRACE", default=None, kind=some_text("a file", "trace.json"), empty="none"
    )
    """Measure the stages of all calls, write them to this file as a trace at exit, and print a
    table."""

    quiesce: int = _setting("TZERO_QUIESCE", default=60, kind=number(1, "seconds"))
    """After how many idle seconds a worker process ends."""

    cache: bool = _setting("TZERO_CACHE", default=True, kind=SWITCH)
    """Keep compiled kernels on disk."""

    cache_dir: str | None = _setting(
        "TZERO_CACHE_DIR",
        default=None,
        kind=some_text("a directory"),
        empty="the user's cache directory",
    )
    """The directory of compiled kernels; None: one in the user's cache directory."""

    cache_limit: int = _setting("TZERO_CACHE_LIMIT", default=4096, kind=number(1, "MiB"))
    """How many MiB the disk cache may hold; the least recently used entries are removed first."""

    remote_cache: str | None = _setting(
        "TZERO_REMOTE_CACHE", default=None, kind=REMOTE, empty="none", secret=True
    )
    """The URL of a shared cache, which is asked after the local one. It may contain a password."""

    cache_key: str | None = _setting(
        "TZERO_CACHE_KEY", default=None, kind=some_text("a secret"), empty="none", secret=True
    )
    """The secret that authenticates the entries of a shared cache, and bundles."""

    bundle: str | None = _setting(
        "TZERO_BUNDLE", default=None, kind=some_text("the path of a bundle"), empty="none"
    )
    """A bundle of compiled kernels and tuned configs, which is asked before the caches."""

    collect: str | None = _setting(
        "TZERO_COLLECT", default=None, kind=some_text("a directory"), empty="nothing is collected"
    )
    """Where to put what this process uses of compiled kernels and tuned configs, for a bundle."""

    fleet: str | None = _setting("TZERO_FLEET", default=None, kind=FLEET, empty="none", secret=True)
    """Where the processes of a job agree on who compiles and tunes what. It may contain a
    password."""

    lease: int = _setting("TZERO_LEASE", default=10, kind=number(1, "seconds"))
    """After how many seconds without a sign of life another process takes a compile or a search
    over."""

    tune: str = _setting(
        "TZERO_TUNE",
        default="quick",
        kind=one_word("none", "quick", "full"),
    )
    """How thoroughly a first call searches for the fastest of several configs."""

    tune_when: str = _setting(
        "TZERO_TUNE_WHEN",
        default="background",
        kind=one_word("background", "call", "asked"),
    )
    """Who searches for the fastest config for a shape that is not tuned, where one is tuned for
    another: the background, while calls use the nearest; the first call with it, which waits; or
    only `warmup` and `autotune`, when they are asked to."""

    tune_budget: int = _setting(
        "TZERO_TUNE_BUDGET", default=0, kind=number(0, "seconds", "no limit")
    )
    """How many seconds one search may take; 0: no limit."""

    tune_isolate: bool = _setting("TZERO_TUNE_ISOLATE", default=False, kind=SWITCH)
    """Time configs in a process of their own, so that one that crashes or hangs does no harm."""

    def __post_init__(self) -> None:
        for variable in _VARIABLES:
            value = getattr(self, variable.field)
            if not variable.accepts(value):
                shown = variable.shown(value)
                raise InvalidSetting(name=variable.field, value=shown, allowed=variable.values)


class _Variable:
    """How one field of :class:`Settings` is read and checked."""

    __slots__ = ("default", "empty", "field", "kind", "names", "secret")

    def __init__(self, field: dataclasses.Field[Any]) -> None:
        self.field = field.name
        self.default = field.default
        self.names: tuple[str, ...] = field.metadata["names"]
        self.kind: Kind[Any] = field.metadata["kind"]
        self.empty: str = field.metadata["empty"]
        self.secret: bool = field.metadata["secret"]

    def shown(self, value: object) -> object:
        """A value, for messages; of a secret only its type."""
        return f"a {type(value).__name__}" if self.secret else value

    def accepts(self, value: object) -> bool:
        return self.kind.accepts(value) or (value is None and self.default is None)

    @property
    def values(self) -> str:
        return _listed([*["None"] * (self.default is None), *self.kind.values])

    def read(self, environ: Mapping[str, str]) -> object:
        for name in self.names:
            text = environ.get(name, "").strip()
            if text:
                try:
                    return self.kind.parse(text)
                except Malformed:
                    allowed = _listed([f"'' ({self.empty})", *self.kind.texts])
                    shown = self.shown(text)
                    raise InvalidSetting(name=name, value=shown, allowed=allowed) from None
        return self.default


def _listed(alternatives: Sequence[str]) -> str:
    *others, last = alternatives
    return f"{', '.join(others)} or {last}" if others else last


_VARIABLES = tuple(map(_Variable, dataclasses.fields(Settings)))

Changes = dict[str, Any]
"""Fields of :class:`Settings` with new values, as :func:`override` takes them."""

# The dict behind `os.environ`, where it has one. Most variables are not set, and for each of those
# `os.environ` itself would raise and catch an exception.
_stored: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
_encoded: Callable[[str], Any] = getattr(os.environ, "encodekey", str)
_NAMES = tuple(_encoded(name) for variable in _VARIABLES for name in variable.names)
_COMPILER_NAMES = {
    compiler: tuple(map(_encoded, names)) for compiler, names in COMPILER_VARIABLES.items()
}


def read(environ: Mapping[str, str]) -> Settings:
    """Read settings from an environment, without keeping them.

    >>> read({"TZERO_CC": "ccache gcc", "CC": "clang"}).cc
    ('ccache', 'gcc')
    """
    values: Changes = {variable.field: variable.read(environ) for variable in _VARIABLES}
    return Settings(**values)


def launches_watched_by() -> str:
    """Which variable says that a tool watches each launch of CUDA; empty for none.

    >>> launches_watched_by()
    ''
    """
    return next((n for n in _LAUNCH_WATCHERS if os.environ.get(n, "0") not in ("", "0")), "")


def names() -> tuple[str, ...]:
    """The variables of all settings.

    >>> "TZERO_CPU" in names()
    True
    """
    return tuple(name for variable in _VARIABLES for name in variable.names)


class _Applied(NamedTuple):
    """A block of `applied`: its thread, and what it undoes."""

    thread: int
    before: Mapping[str, str | None]
    base: Settings | None


class _Held:
    """The settings in force: those of the environment, and the open overrides in order."""

    def __init__(self) -> None:
        # Protects the three below while they change together; `in_force` is read without it.
        self.lock = locks.lock(fork_waits=True)
        self.base: Settings | None = None
        self.overrides: list[Changes] = []
        self.in_force: Settings | None = None
        # The last result of `now`, and the variables it was read from; read without the lock.
        self.latest: tuple[tuple[Any, ...], Settings] | None = None
        # The open blocks of `applied`, in order.
        self.applied: list[_Applied] = []

    def settle(self) -> Settings:
        """Recompute ``in_force``; the caller holds the lock."""
        self.latest = None
        if self.base is None:
            self.base = read(os.environ)
        self.in_force = self.over(self.base)
        return self.in_force

    def over(self, settings: Settings) -> Settings:
        """Settings with the overrides on top; the caller holds the lock."""
        for changes in self.overrides:
            settings = dataclasses.replace(settings, **changes)
        return settings


_held = _Held()


def current() -> Settings:
    """The settings in force; the environment is read at the first call only.

    >>> current() is current()
    True
    """
    settings = _held.in_force
    if settings is not None:
        return settings
    with _held.lock:
        return _held.settle()


def now() -> Settings:
    """The settings as the environment has them at this moment, with the open overrides.

    >>> os.environ["TZERO_QUIESCE"] = "7"
    >>> now().quiesce
    7
    >>> del os.environ["TZERO_QUIESCE"]
    """
    variables = tuple(map(_stored.get, _NAMES))
    latest = _held.latest
    if latest is not None and latest[0] == variables:
        return latest[1]
    settings = read(os.environ)
    with _held.lock:
        settings = _held.over(settings)
        _held.latest = (variables, settings)
    return settings


def _takes_fields(
    like: Callable[_P, Settings],
) -> Callable[[Callable[..., _T]], Callable[_P, _T]]:
    """Gives a function, for the type checker, the parameters of :class:`Settings`."""
    return lambda function: function


@_takes_fields(Settings)
@contextmanager
def override(**changes: Any) -> Iterator[Settings]:
    """Change settings for the length of a ``with`` block, in the whole process.

    Blocks may nest, and may overlap in several threads: leaving one undoes only its own changes.
    A kernel that was compiled before keeps the settings it was compiled with.

    >>> with override(cpu=False) as settings:
    ...     settings.cpu
    False
    """
    # Raises for a wrong value, here or in the environment, before anything changes.
    dataclasses.replace(current(), **changes)
    with _held.lock:
        _held.overrides.append(changes)
        settings = _held.settle()
    try:
        yield settings
    finally:
        with _held.lock:
            # By identity: another block may have opened an equal override.
            _held.overrides = [each for each in _held.overrides if each is not changes]
            _held.settle()


@contextmanager
def applied(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables in this process's environment for the length of a block, unset those that are
    None, and read the settings from it. A worker process takes over the environment of the process
    that asked it this way. All threads see the change, so a process with other work enters one
    block at a time. Nothing is done if the variables have these values already.

    >>> with applied({"TZERO_QUIESCE": "7"}):
    ...     current().quiesce
    7
    """
    before = {name: os.environ.get(name) for name in variables}
    if before == dict(variables):
        yield
        return
    after = {**os.environ, **variables}
    # Raises for a wrong value before anything changes.
    read({name: value for name, value in after.items() if value is not None})
    with _held.lock:
        block = _Applied(threading.get_ident(), before, _held.base)
        _held.applied.append(block)
        _put(variables)
        _held.base = None
        _held.settle()
    try:
        yield
    finally:
        with _held.lock:
            _held.applied.remove(block)
            _undo(block)


def hand_down(install: bool) -> None:
    """Let processes that this one starts have TZERO_INSTALL, or not."""
    _put({"TZERO_INSTALL": "1" if install else None})


def _undo(block: _Applied) -> None:
    """Undo a block of `applied`; the caller holds the lock."""
    _put(block.before)
    _held.base = block.base
    _held.in_force = None if block.base is None else _held.over(block.base)


def _forget_applied() -> None:
    """In a forked child: the blocks of other threads never end."""
    me = threading.get_ident()
    for block in [each for each in reversed(_held.applied) if each.thread != me]:
        _held.applied.remove(block)
        _undo(block)


locks.after_fork(_forget_applied)


def _put(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def raw_variables() -> dict[Any, Any]:
    """A copy of the whole environment as the system has it, undecoded: for comparing with another.

    >>> raw_variables() == raw_variables()
    True
    """
    return dict(_stored)


def compiler_variables(compiler: str = "c") -> dict[str, str]:
    """Those variables of a compiler in `COMPILER_VARIABLES` that are set at this moment.

    >>> with applied({"CPATH": "/opt/include"}):
    ...     compiler_variables()["CPATH"]
    '/opt/include'
    """
    names = COMPILER_VARIABLES[compiler]
    return {
        name: os.environ[name]
        for name, stored in zip(names, _COMPILER_NAMES[compiler], strict=True)
        if stored in _stored
    }


def search_path() -> str | None:
    """The directories in which programs are searched, as `PATH` has them at this moment.

    >>> search_path() == variables().get("PATH")
    True
    """
    return os.environ.get("PATH")


def variables() -> dict[str, str]:
    """A copy of the whole environment at this moment, for third-party compilers that read it.

    >>> "PATH" in variables()
    True
    """
    return dict(os.environ)
