"""Adapts the functions that every launch by Triton goes through: replaces them and puts them back.

    kernel[grid]     KernelInterface.__getitem__ ─► Heuristics.run, Autotuner.run ─► JITFunction.run
    compiled[grid]   CompiledKernel.__getitem__

Enters: native functions to use instead, a function that is shown launches, one around the trials of
autotuners, and blocks in which these launch with every config. Leaves: Triton's classes, with the
functions that are right now. A function that the program has replaced is left alone. It must not
know what the functions do.

While launches are shown to a recorder, all but `JITFunction.run` are Triton's own.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType
from typing import Any

from triton.compiler.compiler import CompiledKernel
from triton.runtime.autotuner import Autotuner, Config, Heuristics
from triton.runtime.jit import JITFunction, KernelInterface

from tzero import locks

__all__ = [
    "ENTRIES",
    "OPTIONS",
    "READ_BY_COMPILED",
    "CompiledKernel",
    "Config",
    "all_kwargs",
    "around_subscripts",
    "around_trials",
    "compiled_is_known",
    "configs_are_known",
    "every_config",
    "is_entry",
    "know",
    "launch_with",
    "plain",
    "put_before_run",
    "replace",
    "replaced",
    "subscripted",
]

ENTRIES: Mapping[str, tuple[type, str]] = {
    "run": (JITFunction, "run"),
    "tuned": (Autotuner, "run"),
    "heuristics": (Heuristics, "run"),
    "subscript": (KernelInterface, "__getitem__"),
    "compiled": (CompiledKernel, "__getitem__"),
}
"""The functions, by what native code calls them: a class and a name."""

plain: Mapping[str, Any] = {key: vars(kind)[name] for key, (kind, name) in ENTRIES.items()}
"""Triton's own functions."""

READ_BY_COMPILED: Mapping[str, Any] = {
    name: vars(CompiledKernel)[name] for name in ("run", "launch_metadata")
}
"""What ``compiled[grid](...)`` uses of its class."""

OPTIONS = ("num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override")
"""The fields of a config that `Config.all_kwargs` adds to its arguments, in order, unless None."""

all_kwargs = Config.all_kwargs
"""The arguments and options of a config."""


def configs_are_known() -> bool:
    """Whether `all_kwargs` adds `OPTIONS` and nothing else, so that native code can do the same.

    >>> configs_are_known()
    True
    """
    reads = set(all_kwargs.__code__.co_names)
    config = Config({"BLOCK": 1})
    for number, name in enumerate(OPTIONS):
        setattr(config, name, number)
    whole = config.all_kwargs()
    for name in OPTIONS:
        setattr(config, name, None)
    expected = {"BLOCK": 1, **{name: number for number, name in enumerate(OPTIONS)}}
    return (
        reads == {"kwargs", *OPTIONS}
        and list(whole.items()) == list(expected.items())
        and config.all_kwargs() == {"BLOCK": 1}
    )


_READ = frozenset(
    [
        "_init_handles",
        "driver",
        "active",
        "get_current_device",
        "get_current_stream",
        "launch_metadata",
        "run",
        "function",
        "packed_metadata",
        "knobs",
        "runtime",
        "launch_enter_hook",
        "launch_exit_hook",
    ]
)


def compiled_is_known() -> bool:
    """Whether ``compiled[grid](...)`` reads what native code compares, and nothing else.

    >>> compiled_is_known()
    True
    """
    return set(_names(plain["compiled"].__code__)) <= _READ


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def launch_with(tuner: Any, config: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Launch what an autotuner is around with a config, whatever its arguments are by now."""
    return tuner.fn.run(*args, **kwargs, **config.all_kwargs())


_lock = locks.lock(fork_waits=True)  # protects what follows, and Triton's classes
_native: dict[str, Any] = {}  # what stands in for each, by the same keys
_shown: Callable[..., Any] | None = None
_known: list[Any] = []  # all that ever stood in for one, but for that of compiled kernels
_of_compiled: list[Any] = [plain["compiled"]]  # Triton's own and what ever stood in for it


def replace(functions: Mapping[str, Any]) -> None:
    """Use other functions from now on; those that are not named are Triton's own again.

    >>> replace(replaced())
    """
    with _lock:
        _native.clear()
        _native.update(functions)
        know(each for key, each in functions.items() if key != "compiled")
        if not _is_in(functions.get("compiled", plain["compiled"]), _of_compiled):
            _of_compiled.append(functions["compiled"])
        _put()


def know(functions: Iterable[Any]) -> None:
    """Let `is_entry` know functions that do what Triton's do.

    >>> know([])
    """
    _known.extend(each for each in functions if not _is_in(each, _known))


def replaced() -> Mapping[str, Any]:
    """The functions in use instead of Triton's.

    >>> sorted(replaced()) == sorted(set(replaced()))
    True
    """
    return dict(_native)


def put_before_run(shown: Callable[..., Any] | None) -> None:
    """Pass launches of Triton's own kernels to `shown`; None undoes that."""
    global _shown
    with _lock:
        _shown = shown
        _put()


@contextmanager
def subscripted(
    note: Callable[[Any, Any, tuple[Any, ...], Mapping[str, Any]], None],
) -> Iterator[None]:
    """Call a function before each launch that is written ``kernel[grid](...)``, until the block
    ends: with the kernel or what is around it, the grid, and the arguments. Whichever function
    serves subscripts now does so meanwhile.

    ::

        with subscripted(lambda kernel, grid, args, kwargs: print(kernel.__name__)):
            add_kernel[(1,)](x, y, out, 64)
    """

    def around(kernel: Any, grid: Any, launch: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            note(kernel, grid, args, kwargs)
            return launch(*args, **kwargs)

        return noted

    with around_subscripts(around):
        yield


Around = Callable[[Any, Any, Callable[..., Any]], Callable[..., Any]]
"""Takes a kernel, a grid and the function that ``kernel[grid]`` returns; returns another one."""


@contextmanager
def around_subscripts(around: Around, kind: type = KernelInterface) -> Iterator[None]:
    """Let ``kernel[grid]`` return what `around` makes of it, until the block ends, for kernels
    whose class has its ``[]`` from `kind`.

    ::

        with around_subscripts(lambda kernel, grid, launch: functools.partial(timed, launch)):
            add_kernel[(1,)](x, y, out, 64)
    """
    name = ENTRIES["subscript"][1]
    with _lock:
        own, inner = vars(kind).get(name), getattr(kind, name)

    def subscript(self: Any, grid: Any) -> Any:
        return around(self, grid, inner.__get__(self, type(self))(grid))

    with _lock:
        setattr(kind, name, subscript)
    try:
        yield
    finally:
        with _lock:
            if vars(kind)[name] is subscript:
                if own is None:
                    delattr(kind, name)
                else:
                    setattr(kind, name, own)
                _put()


_plain_bench = Autotuner._bench
_bench = _plain_bench  # what we have put in its place

Trial = Callable[[], Any]
"""Launches with one config of an autotuner, many times, and returns what that took."""


def around_trials(around: Callable[[Any, Trial], Any] | None) -> None:
    """Let a function make each trial of Triton's autotuners from now on: it gets the autotuner and
    the trial. None puts Triton's own back.

    >>> around_trials(None)
    """
    global _bench

    def bench(self: Any, *args: Any, **kwargs: Any) -> Any:
        assert around is not None
        return around(self, functools.partial(_plain_bench, self, *args, **kwargs))

    with _lock:
        if Autotuner._bench is _bench:  # else the program has replaced it
            _bench = Autotuner._bench = _plain_bench if around is None else bench


def _show(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
    """`JITFunction.run` while launches are shown to someone."""
    shown, run = _shown, plain["run"]
    if warmup or shown is None:  # None: that has just ended
        return run(self, *args, grid=grid, warmup=warmup, **kwargs)

    def launch(grid: Any) -> Any:
        return run(self, *args, grid=grid, warmup=False, **kwargs)

    return shown(self, grid, args, kwargs, launch)


def is_entry(function: Any) -> bool:
    """Whether a function is one of Triton's through which kernels are launched, or stands in for
    one. Recorders do not see the launches of a compiled kernel, so that its function is none.

    >>> is_entry(print), is_entry(plain["run"]), is_entry(plain["compiled"])
    (False, True, False)
    """
    runs = (each for key, each in plain.items() if key != "compiled")
    return _is_in(function, (*runs, *_known, _show, _tune))


def _is_in(value: Any, those: Iterable[Any]) -> bool:
    return any(value is each for each in those)


def _put() -> None:
    """Give Triton's classes the functions that are right now; the caller holds the lock."""
    for key, (kind, name) in ENTRIES.items():
        found = plain[key] if _shown is not None else _native.get(key, plain[key])
        if key == "run" and _shown is not None:
            found = _show
        if key == "tuned" and _tuners:
            found = _tune
        now = vars(kind)[name]
        is_known = _is_in(now, _of_compiled) if key == "compiled" else is_entry(now)
        if now is not found and is_known:
            setattr(kind, name, found)


class _Autotuning(threading.local):
    """Whether autotuners on this thread launch with each of their configs instead of tuning, and
    how many blocks of `every_config` are open."""

    every_config = False
    blocks = 0


_autotuning = _Autotuning()
_tuners = 0


def _tune(self: Any, *args: Any, **kwargs: Any) -> Any:
    if not _autotuning.every_config:
        return plain["tuned"](self, *args, **kwargs)
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    try:
        for config in self.prune_configs(kwargs):
            self.fn.run(*args, **kwargs, **config.all_kwargs())
    finally:
        self.nargs = None
    return None


@contextmanager
def every_config() -> Iterator[None]:
    """Make autotuners on this thread launch once with each config, without timing, until the block
    ends."""
    _count_tuners(1)
    outer, _autotuning.every_config = _autotuning.every_config, True
    try:
        yield
    finally:
        _autotuning.every_config = outer
        _count_tuners(-1)


def _count_tuners(step: int) -> None:
    global _tuners
    with _lock:
        _autotuning.blocks += step
        _tuners += step
        _put()


def _forget_tuners() -> None:
    """In a forked child: the blocks of other threads never end."""
    global _tuners
    with _lock:
        _tuners = _autotuning.blocks
        _put()


locks.after_fork(_forget_tuners)
