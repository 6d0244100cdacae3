"""Every environment variable tzero reads, in one table; nothing else in tzero reads one.

=============================  ======================  ==========================================
variable                       value                   meaning
=============================  ======================  ==========================================
``TZERO_CPU``                  ``''``, ``0`` or ``1``  Triton's CPU backend: where no GPU is
                                                       active, never, or always
``TZERO_CPU_CHECK``            ``''``, ``0`` or ``1``  check each load and store against its
                                                       tensor
``TZERO_CC``, else ``CC``      a command               the C compiler; ``''``: search for one
``TZERO_MAX_SPECIALIZATIONS``  a number                bound kernels that one kernel keeps
``TZERO_TIER``                 ``''``, 0, 1 or 2       pin how calls are made: as Triton does, in
                                                       Python, natively; ``''``: the best there is
``TZERO_DISABLE``              ``''``, ``0`` or ``1``  leave every call to Triton
``TZERO_VERIFY``               ``''``, ``0`` or ``1``  record every call again, and compare it with
                                                       its plan
``TZERO_OUTPUT_POOL``          ``''``, ``0`` or ``1``  let kernels use output tensors again that
                                                       nobody holds any more
``TZERO_COMPILE_WORKERS``      a number                worker processes that compile; ``1``: none,
                                                       the caller compiles; ``''``: one per core
``TZERO_START_METHOD``         ``subprocess``,         how worker processes are started; ``''`` is
                               ``fork``, ``spawn``     ``subprocess``
``TZERO_COMPILE_TIMEOUT``      seconds                 how long one compile may take; ``0``: as long
                                                       as it likes
``TZERO_COMPILE_MEMORY``       MiB                     memory that one worker may use; ``0``: all
``TZERO_QUIESCE``              seconds                 idle workers end after that
``TZERO_CACHE``                ``''``, ``0`` or ``1``  keep compiled kernels on disk; ``0``: do not
``TZERO_CACHE_DIR``            a directory             where; ``''``: the user's cache directory
``TZERO_CACHE_LIMIT``          MiB                     what the cache may hold; the least recently
                                                       used goes first
``TZERO_REMOTE_CACHE``         a URL                   a shared cache behind the local one
``TZERO_CACHE_KEY``            a secret                authenticates the entries of a shared cache
``TZERO_TUNE``                 ``none``, ``quick`` or  how hard to look for the fastest of several
                               ``full``                configs at a first call; ``''`` is ``quick``
``TZERO_TUNE_BUDGET``          seconds                 how long one search may take; ``0``: as long
                                                       as it likes
``TZERO_TUNE_ISOLATE``         ``''``, ``0`` or ``1``  time configs in a process of their own, so
                                                       that one may crash or hang
=============================  ======================  ==========================================

Enters: an environment. Leaves: one frozen :class:`Settings`, read at the first :func:`current` and
kept, so that a later change of the environment cannot make two halves of a program disagree. Only
a compile takes the environment as it is when it is asked for, by :func:`now`. It must not know who
uses a setting or why.

    >>> with override(cpu_check=True):
    ...     current().cpu_check
    True
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypedDict, Unpack

from tzero.errors import InvalidSetting

__all__ = ["Changes", "Settings", "applied", "current", "now", "override", "read", "variables"]


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What the environment asked for.

    >>> Settings().cpu is None
    True
    """

    cpu: bool | None = None
    """Whether Triton's CPU backend is active; ``None``: where no GPU is."""

    cpu_check: bool = False
    """Whether kernels on the CPU check every access against the tensor it came from."""

    cc: tuple[str, ...] | None = None
    """The C compiler's command, split into words; ``None``: search for one."""

    max_specializations: int = 1024
    """How many bound kernels a kernel keeps; the least recently used goes first."""

    tier: int | None = None
    """How calls are made: 0 as Triton does, 1 in Python, 2 natively; ``None``: the best."""

    disable: bool = False
    """Whether every call is left to Triton."""

    verify: bool = False
    """Whether every call is recorded again and compared with its plan."""

    output_pool: bool = False
    """Whether kernels that do not say so themselves use output tensors again."""

    compile_workers: int | None = None
    """How many worker processes compile; 1: the caller compiles; ``None``: one per core."""

    start_method: str = "subprocess"
    """How worker processes are started: ``subprocess``, ``fork`` or ``spawn``."""

    compile_timeout: int = 600
    """How many seconds one compile may take; 0: as many as it likes."""

    compile_memory: int = 0
    """How many MiB one worker may use; 0: all there are."""

    quiesce: int = 60
    """After how many seconds an idle worker ends."""

    cache: bool = True
    """Whether compiled kernels are kept on disk."""

    cache_dir: str | None = None
    """Where they are kept; ``None``: in the user's cache directory."""

    cache_limit: int = 4096
    """How many MiB the cache may hold; the least recently used goes first."""

    remote_cache: str | None = None
    """The URL of a shared cache behind the local one."""

    cache_key: str | None = dataclasses.field(default=None, repr=False)
    """The secret that authenticates the entries of a shared cache."""

    tune: str = "quick"
    """How hard a first call looks for the fastest of several configs: none, quick or full."""

    tune_budget: int = 0
    """How many seconds one search may take; 0: as many as it likes."""

    tune_isolate: bool = False
    """Whether configs are timed in a process of their own."""

    def __post_init__(self) -> None:
        for variable in _TABLE:
            value = getattr(self, variable.field)
            if not variable.accepts(value):
                raise InvalidSetting(name=variable.field, value=value, allowed=variable.values)


_START_METHODS = ("subprocess", "fork", "spawn")
_EFFORTS = ("none", "quick", "full")


class _Malformed(Exception):
    """The text of a variable does not parse; :func:`read` names the variable."""


def _switch(text: str) -> bool | None:
    if text not in ("", "0", "1"):
        raise _Malformed
    return text == "1" if text else None


def _number(otherwise: Any, least: int) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        if not text:
            return otherwise
        if not (text.isascii() and text.isdecimal()) or int(text) < least:
            raise _Malformed
        return int(text)

    return parse


def _is_number(least: int) -> Callable[[object], bool]:
    return lambda value: type(value) is int and value >= least


def _one_of(choices: tuple[str, ...], otherwise: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in ("", *choices):
            raise _Malformed
        return text or otherwise

    return parse


def _kept(text: str) -> bool:
    return _switch(text) is not False


def _text(text: str) -> str | None:
    return text or None


def _is_text(value: object) -> bool:
    return value is None or (isinstance(value, str) and bool(value))


def _tier(text: str) -> int | None:
    if text not in ("", "0", "1", "2"):
        raise _Malformed
    return int(text) if text else None


def _flag(text: str) -> bool:
    return _switch(text) is True


def _command(text: str) -> tuple[str, ...] | None:
    try:
        return tuple(shlex.split(text)) or None
    except ValueError as error:
        raise _Malformed from error


def _is_command(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, tuple) and bool(value) and all(isinstance(w, str) for w in value)


@dataclasses.dataclass(frozen=True, slots=True)
class _Variable:
    """One row of the table: where a field comes from and what it may be."""

    field: str
    names: tuple[str, ...]  # the first one that is set and not empty decides
    parse: Callable[[str], object]
    allowed: str  # as text, in the environment
    accepts: Callable[[object], bool]
    values: str  # as a Python value, in an override


_TABLE = (
    _Variable(
        field="cpu",
        names=("TZERO_CPU",),
        parse=_switch,
        allowed="'' (where no GPU is active), '0' (never) or '1' (always)",
        accepts=lambda value: value is None or isinstance(value, bool),
        values="None, False or True",
    ),
    _Variable(
        field="cpu_check",
        names=("TZERO_CPU_CHECK",),
        parse=_flag,
        allowed="'' or '0' (off), or '1' (on)",
        accepts=lambda value: isinstance(value, bool),
        values="False or True",
    ),
    _Variable(
        field="cc",
        names=("TZERO_CC", "CC"),
        parse=_command,
        allowed="a command in shell quoting, such as 'clang-19' or 'ccache gcc'",
        accepts=_is_command,
        values="None or a tuple of words, such as ('ccache', 'gcc')",
    ),
    _Variable(
        field="max_specializations",
        names=("TZERO_MAX_SPECIALIZATIONS",),
        parse=_number(1024, 1),
        allowed="'' (1024) or a whole number from 1",
        accepts=_is_number(1),
        values="a whole number from 1",
    ),
    _Variable(
        field="tier",
        names=("TZERO_TIER",),
        parse=_tier,
        allowed="'' (the best there is), '0' (Triton's), '1' (Python) or '2' (native)",
        accepts=lambda value: value is None or (type(value) is int and 0 <= value <= 2),
        values="None, 0, 1 or 2",
    ),
    _Variable(
        field="disable",
        names=("TZERO_DISABLE",),
        parse=_flag,
        allowed="'' or '0' (off), or '1' (on)",
        accepts=lambda value: isinstance(value, bool),
        values="False or True",
    ),
    _Variable(
        field="verify",
        names=("TZERO_VERIFY",),
        parse=_flag,
        allowed="'' or '0' (off), or '1' (on)",
        accepts=lambda value: isinstance(value, bool),
        values="False or True",
    ),
    _Variable(
        field="output_pool",
        names=("TZERO_OUTPUT_POOL",),
        parse=_flag,
        allowed="'' or '0' (off), or '1' (on)",
        accepts=lambda value: isinstance(value, bool),
        values="False or True",
    ),
    _Variable(
        field="compile_workers",
        names=("TZERO_COMPILE_WORKERS",),
        parse=_number(None, 1),
        allowed="'' (one per core), '1' (the caller compiles) or a larger number",
        accepts=lambda value: value is None or _is_number(1)(value),
        values="None or a whole number from 1",
    ),
    _Variable(
        field="start_method",
        names=("TZERO_START_METHOD",),
        parse=_one_of(_START_METHODS, "subprocess"),
        allowed="'' or 'subprocess', 'fork' or 'spawn'",
        accepts=lambda value: value in _START_METHODS,
        values="'subprocess', 'fork' or 'spawn'",
    ),
    _Variable(
        field="compile_timeout",
        names=("TZERO_COMPILE_TIMEOUT",),
        parse=_number(600, 0),
        allowed="'' (600), '0' (no limit) or a number of seconds",
        accepts=_is_number(0),
        values="a whole number of seconds, 0 for no limit",
    ),
    _Variable(
        field="compile_memory",
        names=("TZERO_COMPILE_MEMORY",),
        parse=_number(0, 0),
        allowed="'' or '0' (no limit) or a number of MiB",
        accepts=_is_number(0),
        values="a whole number of MiB, 0 for no limit",
    ),
    _Variable(
        field="quiesce",
        names=("TZERO_QUIESCE",),
        parse=_number(60, 1),
        allowed="'' (60) or a number of seconds from 1",
        accepts=_is_number(1),
        values="a whole number of seconds from 1",
    ),
    _Variable(
        field="cache",
        names=("TZERO_CACHE",),
        parse=_kept,
        allowed="'' or '1' (on), or '0' (off)",
        accepts=lambda value: isinstance(value, bool),
        values="False or True",
    ),
    _Variable(
        field="cache_dir",
        names=("TZERO_CACHE_DIR",),
        parse=_text,
        allowed="'' (the user's cache directory) or a directory",
        accepts=_is_text,
        values="None or a directory",
    ),
    _Variable(
        field="cache_limit",
        names=("TZERO_CACHE_LIMIT",),
        parse=_number(4096, 1),
        allowed="'' (4096) or a number of MiB from 1",
        accepts=_is_number(1),
        values="a whole number of MiB from 1",
    ),
    _Variable(
        field="remote_cache",
        names=("TZERO_REMOTE_CACHE",),
        parse=_text,
        allowed="'' (none) or a URL, such as 'redis://host:6379/0'",
        accepts=_is_text,
        values="None or a URL",
    ),
    _Variable(
        field="cache_key",
        names=("TZERO_CACHE_KEY",),
        parse=_text,
        allowed="'' (none) or a secret",
        accepts=_is_text,
        values="None or a secret",
    ),
    _Variable(
        field="tune",
        names=("TZERO_TUNE",),
        parse=_one_of(_EFFORTS, "quick"),
        allowed="'' or 'quick', 'none' or 'full'",
        accepts=lambda value: value in _EFFORTS,
        values="'none', 'quick' or 'full'",
    ),
    _Variable(
        field="tune_budget",
        names=("TZERO_TUNE_BUDGET",),
        parse=_number(0, 0),
        allowed="'' or '0' (no limit) or a number of seconds",
        accepts=_is_number(0),
        values="a whole number of seconds, 0 for no limit",
    ),
    _Variable(
        field="tune_isolate",
        names=("TZERO_TUNE_ISOLATE",),
        parse=_flag,
        allowed="'' or '0' (off), or '1' (on)",
        accepts=lambda value: isinstance(value, bool),
        values="False or True",
    ),
)


# What `os.environ` keeps its variables in, where it has one: most are not set, and `os.environ`
# makes an exception of each of these before it says so.
_stored: Mapping[Any, Any] = getattr(os.environ, "_data", os.environ)
_encoded: Callable[[str], Any] = getattr(os.environ, "encodekey", str)
_NAMES = tuple(_encoded(name) for row in _TABLE for name in row.names)


def read(environ: Mapping[str, str]) -> Settings:
    """Read settings from an environment, without keeping them.

    >>> read({"TZERO_CC": "ccache gcc", "CC": "clang"}).cc
    ('ccache', 'gcc')
    """
    values: dict[str, Any] = {row.field: _value(row, environ) for row in _TABLE}
    return Settings(**values)


def _value(variable: _Variable, environ: Mapping[str, str]) -> object:
    name = next((name for name in variable.names if environ.get(name, "").strip()), None)
    text = "" if name is None else environ[name].strip()
    try:
        return variable.parse(text)
    except _Malformed as error:
        raise InvalidSetting(
            name=name or variable.names[0], value=text, allowed=variable.allowed
        ) from error


class _Held:
    """The settings in force: what the environment said, and the overrides now open, in order."""

    def __init__(self) -> None:
        # Protects the three below while they change together; `in_force` is read without it.
        self.lock = threading.Lock()
        self.base: Settings | None = None
        self.overrides: list[Changes] = []
        self.in_force: Settings | None = None
        # What `now` answered last, and what the variables were; read without the lock.
        self.latest: tuple[tuple[Any, ...], Settings] | None = None

    def settle(self) -> Settings:
        """Work out ``in_force`` anew; the lock is held by the caller."""
        self.latest = None
        if self.base is None:
            self.base = read(os.environ)
        self.in_force = self.over(self.base)
        return self.in_force

    def over(self, settings: Settings) -> Settings:
        """Settings with the overrides on top; the lock is held by the caller."""
        for changes in self.overrides:
            settings = dataclasses.replace(settings, **changes)
        return settings


_held = _Held()
os.register_at_fork(after_in_child=_held.lock._at_fork_reinit)  # type: ignore[attr-defined]


def current() -> Settings:
    """Return the settings in force; the environment is read the first time only.

    >>> current() is current()
    True
    """
    settings = _held.in_force
    if settings is not None:
        return settings
    with _held.lock:
        return _held.settle()


def now() -> Settings:
    """Return what the environment asks for at this moment, with the overrides that are open.

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


class Changes(TypedDict, total=False):
    """What :func:`override` takes: the fields of :class:`Settings`, each optional.

    >>> changes: Changes = {"cpu_check": True}
    """

    cpu: bool | None
    cpu_check: bool
    cc: tuple[str, ...] | None
    max_specializations: int
    tier: int | None
    disable: bool
    verify: bool
    output_pool: bool
    compile_workers: int | None
    start_method: str
    compile_timeout: int
    compile_memory: int
    quiesce: int
    cache: bool
    cache_dir: str | None
    cache_limit: int
    remote_cache: str | None
    cache_key: str | None
    tune: str
    tune_budget: int
    tune_isolate: bool


@contextmanager
def override(**changes: Unpack[Changes]) -> Iterator[Settings]:
    """Change settings for the length of a ``with`` block, in the whole process.

    Blocks may nest, and may overlap in several threads: leaving one takes back its own changes
    and no one else's. A kernel that was compiled before keeps what it was compiled with.

    >>> with override(cpu=False) as settings:
    ...     settings.cpu
    False
    """
    # Refuses a wrong value, given here or in the environment, before anything changes.
    dataclasses.replace(current(), **changes)
    with _held.lock:
        _held.overrides.append(changes)
        settings = _held.settle()
    try:
        yield settings
    finally:
        with _held.lock:
            # By identity: an equal override opened elsewhere is not this one.
            _held.overrides = [each for each in _held.overrides if each is not changes]
            _held.settle()


@contextmanager
def applied(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Put variables into this process's environment for the length of a block, or take those out
    that are None, and read settings from it. It is how a worker process comes to see what the
    process that asked it sees; another thread would see it too, so that a process with other work
    enters one block at a time. Where the variables have these values already, nothing is done.

    >>> with applied({"TZERO_QUIESCE": "7"}):
    ...     current().quiesce
    7
    """
    before = {name: os.environ.get(name) for name in variables}
    if before == dict(variables):
        yield
        return
    after = {**os.environ, **variables}
    # Refuses a wrong value before anything changes.
    read({name: value for name, value in after.items() if value is not None})
    with _held.lock:
        base = _held.base
        _put(variables)
        _held.base = None
        _held.settle()
    try:
        yield
    finally:
        with _held.lock:
            _put(before)
            _held.base = base
            _held.in_force = None if base is None else _held.over(base)


def _put(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def variables() -> dict[str, str]:
    """The environment as it is at this moment, whole: for compilers that others wrote, which read
    it themselves.

    >>> "PATH" in variables()
    True
    """
    return dict(os.environ)
