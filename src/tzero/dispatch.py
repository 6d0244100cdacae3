"""`@tzero.kernel`: arguments to Key, Key to BoundKernel, and the call.

    add(x, y) ── raw key, a plain tuple ──► table ── hit ──► BoundKernel(x, y)
                                              └ miss ── Key ── bind ──► table

Enters: host functions and calls of them. Leaves: `Kernel`s, which know the order of the stages. The
table is read without a lock; the lock protects changing it.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import threading
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, overload

import torch

from tzero import events, measure, settings
from tzero.bind import BoundKernel, running
from tzero.config import Config
from tzero.errors import InvalidArgument, InvalidKernel
from tzero.extract import ConstExpr, Extractor, unwrapped
from tzero.key import Key, Options, difference
from tzero.specializing import Extra

__all__ = ["Explanation", "Kernel", "Stats", "kernel"]

R = TypeVar("R")
Raw = tuple[Hashable, ...]


class Stats(NamedTuple):
    """What became of a kernel's calls.

    >>> Stats(calls=3, misses=1, entries=1, evictions=0).hits
    2
    """

    calls: int
    misses: int
    entries: int
    evictions: int

    @property
    def hits(self) -> int:
        """Calls that found their bound kernel."""
        return self.calls - self.misses


class Explanation(NamedTuple):
    """Why a call would hit or miss.

    >>> print(Explanation("add", Key((int,)), True, None, ""))
    add: hit
      key: Key(int)
    """

    kernel: str
    key: Key
    hit: bool
    config: Config | None
    difference: str

    def __str__(self) -> str:
        lines = [f"{self.kernel}: {'hit' if self.hit else 'miss'}", f"  key: {self.key!r}"]
        if self.config is not None:
            lines.append(f"  config: {self.config!r}")
        if self.difference:
            lines.append(f"  unlike the nearest other entry: {self.difference}")
        return "\n".join(lines)


class _Family:
    """Entries whose base key is one, told apart by extras; stands in the table under that key."""

    __slots__ = ("extras",)

    def __init__(self, extras: tuple[Extra, ...]) -> None:
        self.extras = extras

    def full(self, base: Raw, args: Sequence[Any]) -> Raw:
        """The key with the extras of some arguments."""
        plain = unwrapped(args)
        return (*base, *((extra, extra.of(plain)) for extra in self.extras))


class Kernel(Generic[R]):
    """A host function behind a dispatcher; made by `kernel`.

    ::

        @tzero.kernel
        def add(x, y):
            out = torch.empty_like(x)
            add_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
            return out

        add(x, y)
        print(add.explain(x, y))
    """

    def __init__(
        self,
        function: Callable[..., R],
        *,
        config: Config | None,
        key: Callable[..., Hashable] | None,
        options: Options,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self.options = options
        self.signature, self._takes_config = _signature(self.name, function)
        self._parameters = tuple(self.signature.parameters)
        self._arity = len(self._parameters)
        constants = tuple(
            p.annotation in (ConstExpr, "ConstExpr", "tzero.ConstExpr")
            for p in self.signature.parameters.values()
        )
        self.extract = Extractor(self.name, self._parameters, constants, options, key)
        self._config = config
        self._lock = threading.RLock()  # protects everything below; lookups take none
        self._table: dict[Raw, BoundKernel[R] | _Family] = {}
        self._calls, self._looks = itertools.count(), 0  # a number is taken by every call and look
        self._misses, self._evictions = 0, 0
        self._last_missed: Key | None = None
        self._changed: dict[int, int] = {}

    # -- calling -------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        if torch.compiler.is_compiling():
            return self._traced(args, kwargs)
        record = measure.active()
        if record is not None:
            return self._measured(record, args, kwargs)
        if kwargs or len(args) != self._arity:
            args = self._normalized(args, kwargs)
        base = self.extract.last(args)
        bound = self._found(base, args)
        next(self._calls)
        if bound is None:
            bound = self._bound(base, args)
        elif events.watched():
            events.emit(events.Event("hit", self.name))
        return self._run(base, bound, args)

    def _run(self, base: Raw, bound: BoundKernel[R], args: tuple[Any, ...]) -> R:
        if bound.has_constants:
            args = unwrapped(args)
        outer = running.current
        running.current = (self._specialize, base, bound, args)
        try:
            return bound.call(*args)
        finally:
            running.current = outer

    def _measured(
        self, record: measure.Record, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> R:
        """The same call with every stage timed."""
        with record.stage("call", self.name):
            with record.stage("key", self.name):
                args = self._normalized(args, kwargs)
                base = self.extract(args)
            next(self._calls)
            with record.stage("bind", self.name):
                bound = self._found(base, args)
                hit = bound is not None
                bound = bound or self._bound(base, args)
            if hit and events.watched():
                events.emit(events.Event("hit", self.name))
            with record.stage("run", self.name):
                return self._run(base, bound, args)

    def _traced(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> R:
        """Under torch.compile the host function itself is traced."""
        plain = unwrapped(args)
        named = dict(zip(kwargs, unwrapped(tuple(kwargs.values())), strict=True))
        if self._takes_config:
            named["config"] = self._config
        return self.function(*plain, **named)

    def bind(self, args: Sequence[Any]) -> BoundKernel[R]:
        """The bound kernel that a call with these arguments uses."""
        normal = args if type(args) is tuple else tuple(args)
        if len(normal) != self._arity:
            normal = self._normalized(normal, {})
        base = self.extract.last(normal)
        return self._found(base, normal) or self._bound(base, normal)

    def key(self, args: Sequence[Any]) -> Key:
        """The key of a call with these arguments."""
        normal = self._normalized(tuple(args), {})
        base = self.extract(normal)
        entry = self._table.get(base)
        return Key(entry.full(base, normal) if isinstance(entry, _Family) else base)

    def reset(self) -> None:
        """Forget every bound kernel; the next calls bind anew."""
        with self._lock:
            self._table = {}
            self._last_missed, self._changed = None, {}

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Whether a call would hit, and how its key differs from the nearest other entry's."""
        normal = self._normalized(args, kwargs)
        key = self.key(normal)
        with self._lock:
            entries = [e for e in self._table.values() if isinstance(e, BoundKernel)]
        here = next((e for e in entries if e.key == key), None)
        others = [e.key for e in entries if e is not here]
        nearest = max(others, key=lambda other: _alike(other, key), default=None)
        words = difference(nearest, key, self._parameters) if nearest is not None else ""
        config = here.config if here is not None else self._config
        return Explanation(self.name, key, here is not None, config, words)

    def stats(self) -> Stats:
        """Counts of calls, misses, live entries and evictions."""
        with self._lock:
            calls = next(self._calls) - self._looks  # taking a number is the only way to see it
            self._looks += 1
            live = sum(isinstance(e, BoundKernel) for e in self._table.values())
            return Stats(calls, self._misses, live, self._evictions)

    def __repr__(self) -> str:
        return f"<Kernel {self.name}{self.signature}>"

    # -- stages --------------------------------------------------------------------------------

    def _normalized(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Arguments in order, defaults filled in."""
        if not kwargs and len(args) == len(self._parameters):
            return args
        try:
            found = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            taken = ", ".join(self._parameters) or "no arguments"
            raise InvalidArgument(
                kernel=self.name,
                problem=f"{error}: {len(args)} positional and {sorted(kwargs)} by name",
                advice=f"It takes {taken}.",
            ) from None
        found.apply_defaults()
        return tuple(found.arguments.values())

    def _found(self, base: Raw, args: tuple[Any, ...]) -> BoundKernel[R] | None:
        entry: Any = self._table.get(base)
        if entry.__class__ is _Family:
            entry = self._table.get(entry.full(base, args))
        if entry is None:
            return None
        entry.last_used = self._misses
        bound: BoundKernel[R] = entry  # nothing but bound kernels stands under full keys
        return bound

    def _bound(self, base: Raw, args: tuple[Any, ...]) -> BoundKernel[R]:
        """Bind, unless another thread has by now."""
        with self._lock:
            found = self._found(base, args)
            if found is not None:
                return found
            entry = self._table.get(base)
            key = Key(entry.full(base, args) if isinstance(entry, _Family) else base)
            self._misses += 1
            reason = self._noted(key)
            bound = BoundKernel(
                self.name, self.function, key, self._config, takes_config=self._takes_config
            )
            bound.last_used = self._misses
            self._table[key] = bound
            self._evict()
        events.emit(events.Event("miss", self.name, reason))
        return bound

    def _noted(self, key: Key) -> str:
        """Why this key misses, against the last that did; counts which argument it was."""
        last, self._last_missed = self._last_missed, key
        if last is None:
            return "the first call"
        for k, (one, other) in enumerate(zip(last, key, strict=False)):
            if one != other:
                self._changed[k] = self._changed.get(k, 0) + 1
                break
        return difference(last, key, self._parameters)

    def _evict(self) -> None:
        """Keep the table within its bound: what was used least recently goes."""
        bound = settings.current().max_specializations
        if len(self._table) <= bound:
            return
        live = [(k, e) for k, e in self._table.items() if isinstance(e, BoundKernel)]
        if len(live) <= bound:
            return
        oldest, _ = min(live, key=lambda item: item[1].last_used)
        del self._table[oldest]
        self._evictions += 1
        if self._evictions == 1:
            beyond = len(self._parameters)  # keys may differ in no argument, only behind them
            k = max(self._changed, key=lambda k: self._changed[k], default=beyond)
            name = self._parameters[k] if k < beyond else "the device, key= or specialize"
            warnings.warn(
                f"{self.name} has more than {bound} specializations, so old ones are dropped; "
                f"{name!r} is what keeps changing. Pass static_shapes=False, or raise "
                "TZERO_MAX_SPECIALIZATIONS.",
                stacklevel=5,
            )

    def _specialize(
        self,
        base: Raw,
        bound: BoundKernel[R],
        args: tuple[Any, ...],
        extra: Extra,
    ) -> None:
        """Let an extra join the keys of this base, from now on and for every thread."""
        entry = self._table.get(base)
        if isinstance(entry, _Family) and extra in entry.extras:
            return
        with self._lock:
            entry = self._table.get(base)
            known = entry.extras if isinstance(entry, _Family) else ()
            if extra in known:
                return
            family = _Family((*known, extra))
            table = {
                k: e
                for k, e in self._table.items()
                if k[: len(base)] != base  # its other entries lack the new fact
            }
            table[base] = family
            bound.key = Key(family.full(base, args))
            table[bound.key] = bound
            self._table = table


def _alike(one: Key, other: Key) -> int:
    return sum(a == b for a, b in zip(one, other, strict=False))


def _signature(name: str, function: Callable[..., Any]) -> tuple[inspect.Signature, bool]:
    """A host function's parameters without `config`, and whether it takes one."""
    signature = inspect.signature(function)
    plain = []
    for parameter in signature.parameters.values():
        if parameter.name == "config":
            continue
        if parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            star = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
            raise InvalidKernel(
                kernel=name,
                problem=f"its parameter {star}{parameter.name} is {parameter.kind.description}",
                advice="Give it plain parameters, which can be passed by place and by name.",
            )
        plain.append(parameter)
    return signature.replace(parameters=plain), "config" in signature.parameters


@overload
def kernel(function: Callable[..., R], /) -> Kernel[R]: ...
@overload
def kernel(
    *,
    config: Config | None = None,
    configs: Sequence[Config] | None = None,
    key: Callable[..., Hashable] | None = None,
    static_shapes: bool = True,
    index_dtype: torch.dtype | None = None,
    pool: bool | None = None,
    size_hints: Sequence[int] | None = None,
) -> Callable[[Callable[..., R]], Kernel[R]]: ...
def kernel(
    function: Callable[..., R] | None = None,
    /,
    *,
    config: Config | None = None,
    configs: Sequence[Config] | None = None,
    key: Callable[..., Hashable] | None = None,
    static_shapes: bool = True,
    index_dtype: torch.dtype | None = None,
    pool: bool | None = None,
    size_hints: Sequence[int] | None = None,
) -> Kernel[R] | Callable[[Callable[..., R]], Kernel[R]]:
    """Make a host function, which launches Triton kernels, into a dispatcher.

    ::

        @tzero.kernel(config=tzero.Config(BLOCK=1024))
        def add(x, y, config):
            out = torch.empty_like(x)
            grid = (triton.cdiv(x.numel(), config.BLOCK),)
            add_kernel[grid](x, y, out, x.numel(), **config)
            return out

    `config` reaches the host function through its parameter of that name. `key` adds its result to
    the key. With ``static_shapes=False`` sizes above one share code; `index_dtype` then settles
    the width of indices.
    """
    if function is None:
        return functools.partial(
            kernel,
            config=config,
            configs=configs,
            key=key,
            static_shapes=static_shapes,
            index_dtype=index_dtype,
            pool=pool,
            size_hints=size_hints,
        )
    name = getattr(function, "__name__", type(function).__name__)
    for option, value in (("pool", pool), ("size_hints", size_hints)):
        if value is not None:
            raise InvalidKernel(
                kernel=name,
                problem=f"{option}= has no meaning in this version",
                advice="Leave it out.",
            )
    if configs is not None:
        config = _only(name, config, configs)
    options = Options(static_shapes=static_shapes, index_dtype=index_dtype)
    return Kernel(function, config=config, key=key, options=options)


def _only(name: str, config: Config | None, configs: Sequence[Config]) -> Config:
    if config is not None or len(configs) != 1:
        raise InvalidKernel(
            kernel=name,
            problem=f"it has {len(configs)} configs{' and a config' if config else ''}, and this "
            "version cannot choose among them",
            advice="Pass config= with the one to use.",
        )
    return configs[0]
