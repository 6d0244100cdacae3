"""Which config is timed next: strategies, which propose configs and are told their times.

::

    strategy(space, effort) ──► Exhaustive, Random or Tpe
                                   │ ask(most)              │ tell(config, seconds)
                                   ▼                        │ None: it failed
                                 configs to compile and time

Enters: a space, a seed, and results as they come. Leaves: configs, each once. The first config of
the space comes first: a kernel uses it without a search, and the others are compared with it. It
must not know how configs are compiled or timed.

The same seed, asks and tells give the same configs. Results may come in any order. Results of an
earlier search may be told before anything is asked for.

    >>> from tzero.tune.space import Space
    >>> search = Exhaustive(Space(BLOCK=[64, 128, 256]))
    >>> for config in search.ask(2):
    ...     search.tell(config, 0.001 * config.BLOCK)
    >>> search.done, search.ask(2), search.done
    (False, [Config(BLOCK=256)], True)
"""

from __future__ import annotations

import contextlib
import importlib
import math
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Protocol, get_args

from tzero.config import Config
from tzero.errors import InvalidArgument, ToolchainMissing
from tzero.tune.space import Space

__all__ = [
    "FULL",
    "QUICK",
    "Effort",
    "Exhaustive",
    "First",
    "Random",
    "Strategy",
    "Tpe",
    "strategy",
]

Effort = Literal["none", "quick", "full"]

QUICK = 32
"""The most configs that effort ``quick`` times."""

FULL = 256
"""The most configs that effort ``full`` times."""

_WARMING = 16  # random configs before TPE is used: with fewer it only repeats them
_LOOKED_AT = 512  # configs around a suggestion among which a new one is searched
_OPTUNA = 5  # the first version with the defaults that `Tpe` relies on


class Strategy(Protocol):
    """Decides which config is timed next.

    ::

        while not search.done:
            for config in search.ask(8):
                search.tell(config, time(config))
    """

    @property
    def most(self) -> int | None:
        """The most configs that it proposes; None where that is unknown."""

    @property
    def done(self) -> bool:
        """Whether there is nothing left to propose."""

    def ask(self, most: int) -> list[Config]:
        """The next configs, at most `most`; empty when it is done. No config comes twice."""

    def tell(self, config: Config, seconds: float | None) -> None:
        """The time of a config, or None where it failed: once for each, whether proposed or not."""


def strategy(space: Space, effort: Effort = "quick", *, seed: int = 0) -> Strategy:
    """The strategy of an effort.

    ======= ==================================================================================
    effort  what is timed
    ======= ==================================================================================
    none    the first config only
    quick   every config where there are at most 32 (`QUICK`), else the first and 31 at random
    full    every config where there are at most 256 (`FULL`), else 256 by `Tpe`
    ======= ==================================================================================

    >>> space = Space(BLOCK=[2**k for k in range(4, 12)], num_warps=[1, 2, 4, 8, 16])
    >>> [strategy(space, effort).most for effort in ("none", "quick", "full")]
    [1, 32, 40]
    """
    count = space.count()
    if effort == "none":
        return First(space)
    if effort == "quick":
        small = count is not None and count <= QUICK
        return Exhaustive(space) if small else Random(space, seed=seed, trials=QUICK)
    if effort == "full":
        small = count is not None and count <= FULL
        return Exhaustive(space) if small else Tpe(space, seed=seed, trials=FULL)
    raise _invalid("effort", f"is {effort!r}", f"Use one of {', '.join(get_args(Effort))}.")


class _Search:
    """The common part of strategies: what was proposed and told, and when it ends.

    Each strategy has a fixed order of configs, which does not depend on results. A strategy that
    learns falls back to it. So `done` can be asked without changing what comes next.
    """

    def __init__(self, space: Space, trials: int | None) -> None:
        if not isinstance(space, Space):
            raise _invalid("space", f"is {space!r}", "Make one: Space.of([Config(BLOCK=64)]).")
        if trials is not None and (type(trials) is not int or trials < 1):
            raise _invalid("trials", f"is {trials!r}", "Let it try at least one config.")
        self._space = space
        self._trials = trials
        self._asked: set[Config] = set()
        self._told: set[Config] = set()
        self._order = self._ordered()
        self._ahead: Config | None = None  # taken from the order, and not yet proposed
        self._first = space.first  # raises here for an empty space, not at the first ask

    @property
    def most(self) -> int | None:
        """The most configs that it proposes; None where that is unknown.

        >>> Random(Space(a=range(9)), trials=4).most, Exhaustive(Space(a=range(9))).most
        (4, 9)
        """
        count = self._space.count()
        known = [each for each in (self._trials, count) if each is not None]
        return min(known, default=None)

    @property
    def done(self) -> bool:
        """Whether there is nothing left to propose."""
        if not self._is_known(self._first):
            return False
        if self._trials is not None and len(self._asked | self._told) >= self._trials:
            return True
        return self._upcoming() is None

    def ask(self, most: int) -> list[Config]:
        """The next configs, at most `most`; empty when it is done."""
        if type(most) is not int or most < 1:
            raise _invalid("most", f"is {most!r}", "Ask for at least one config.")
        configs: list[Config] = []
        while len(configs) < most and not self.done:
            config = self._choose() if self._is_known(self._first) else self._first
            if config is None:
                break
            self._asked.add(config)
            self._begin(config)
            configs.append(config)
        return configs

    def tell(self, config: Config, seconds: float | None) -> None:
        """The time of a config, or None where it failed: once for each config of the space.

        >>> search = Exhaustive(Space(BLOCK=[64, 128]))
        >>> search.tell(Config(BLOCK=64), 0.003)  # known from an earlier search
        >>> search.ask(8)
        [Config(BLOCK=128)]
        """
        if config in self._told:
            raise _invalid("config", f"{config!r} was told before", "Tell each result once.")
        if config not in self._asked and config not in self._space:
            raise _invalid("config", f"{config!r} is not in the space", "Tell what was asked for.")
        if seconds is not None:
            if type(seconds) not in (int, float) or not 0 <= seconds < math.inf:
                raise _invalid(
                    "seconds",
                    f"is {seconds!r} for {config!r}",
                    "Tell a time from 0 on, or None where it failed.",
                )
            seconds = float(seconds)
        self._told.add(config)
        self._end(config, seconds)

    def _is_known(self, config: Config) -> bool:
        return config in self._asked or config in self._told

    def _upcoming(self) -> Config | None:
        """The next config of the order that is not known yet; it is not consumed."""
        if self._ahead is None or self._is_known(self._ahead):
            self._ahead = next((each for each in self._order if not self._is_known(each)), None)
        return self._ahead

    def _ordered(self) -> Iterator[Config]:
        """The fixed order."""
        raise NotImplementedError

    def _choose(self) -> Config | None:
        """The config to propose, after the first of the space."""
        return self._upcoming()

    def _begin(self, config: Config) -> None:
        """Called when a config is proposed."""

    def _end(self, config: Config, seconds: float | None) -> None:
        """Called when a config's result is told."""


class First(_Search):
    """Only the first config.

    >>> First(Space(BLOCK=[64, 128])).ask(8)
    [Config(BLOCK=64)]
    """

    def __init__(self, space: Space) -> None:
        super().__init__(space, 1)

    def _ordered(self) -> Iterator[Config]:
        return iter(())


class Exhaustive(_Search):
    """Every config, in the order of the space.

    >>> Exhaustive(Space(BLOCK=[64, 128])).ask(8)
    [Config(BLOCK=64), Config(BLOCK=128)]
    """

    def __init__(self, space: Space) -> None:
        super().__init__(space, None)

    def _ordered(self) -> Iterator[Config]:
        return iter(self._space)


class Random(_Search):
    """The first config, then others at random.

    >>> len(Random(Space(a=range(1000), b=range(1000)), seed=1, trials=20).ask(100))
    20
    """

    def __init__(self, space: Space, *, seed: int = 0, trials: int = QUICK) -> None:
        self._rng = _rng(seed)
        super().__init__(space, trials)

    def _ordered(self) -> Iterator[Config]:
        return self._space.shuffled(self._rng)


class Tpe(_Search):
    """Configs near good ones, by optuna's tree-structured Parzen estimator; it needs
    ``pip install 'tzero-runtime[tune]'``.

    Parameters whose values are all numbers are ordered: 64 lies between 32 and 128. All others are
    categorical. The first 16 configs are random. Where optuna suggests a config that is not in the
    space, or was proposed before, the nearest new one is taken: in a list by the number of steps
    between them, in ranges by a breadth-first search. Failed configs are told as pruned, which
    optuna ranks last, so that it avoids their neighbours. Configs that are still being timed count
    as bad, so that a batch spreads out.

    ::

        search = Tpe(Space(BLOCK=[2**k for k in range(4, 14)], stages=range(8), ...), seed=1)
        while not search.done:
            for config in search.ask(8):
                search.tell(config, time(config))
    """

    def __init__(self, space: Space, *, seed: int = 0, trials: int = FULL) -> None:
        self._rng = _rng(seed)
        super().__init__(space, trials)
        self._optuna = _load_optuna()
        self._axes = _axes(space)
        whole = self._optuna.distributions.IntDistribution
        unordered = self._optuna.distributions.CategoricalDistribution
        self._distributions = {
            axis.name: whole(0, len(axis.places) - 1)
            if axis.ordered
            else unordered(tuple(range(len(axis.places))))
            for axis in self._axes
        }
        self._study = self._new_study(seed)
        self._random = 0
        self._trial_of: dict[Config, Any] = {}

    def _new_study(self, seed: int) -> Any:
        sampler = self._optuna.samplers.TPESampler(seed=seed % 2**32, n_startup_trials=1)
        with _quiet(self._optuna):
            return self._optuna.create_study(sampler=sampler, direction="minimize")

    def _ordered(self) -> Iterator[Config]:
        return self._space.shuffled(self._rng)

    def _choose(self) -> Config | None:
        if self._random >= _WARMING and self._axes:
            suggested = self._suggest()
            near = self._near_in_list(suggested) if self._space.listed else self._near(suggested)
            if near is not None:
                return near
        self._random += 1
        return self._upcoming()

    def _suggest(self) -> tuple[int, ...]:
        """What optuna would try, as positions on the axes. This trial is told as failed; `_begin`
        enqueues another one for the config that is really proposed."""
        trial = self._study.ask(self._distributions)
        self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        return tuple(trial.params[axis.name] for axis in self._axes)

    def _near_in_list(self, point: tuple[int, ...]) -> Config | None:
        new = [each for each in self._space.listed or () if not self._is_known(each)]
        return min(new, key=lambda each: self._steps(point, self._point(each)), default=None)

    def _near(self, point: tuple[int, ...]) -> Config | None:
        """The nearest new config around a point: breadth first, among at most `_LOOKED_AT`."""
        names = {axis.name: axis for axis in self._axes}
        seen, waiting = {point}, deque([point])
        while waiting:
            here = waiting.popleft()
            at = dict(zip(names, here, strict=True))
            config = Config(
                {
                    name: names[name].values[at[name]] if name in names else values[0]
                    for name, values in self._space.parameters.items()
                }
            )
            if not self._is_known(config) and config in self._space:
                return config
            room = _LOOKED_AT - len(seen)
            others = [each for each in _around(here, self._axes, room) if each not in seen]
            seen.update(others)
            waiting.extend(others)
        return None

    def _point(self, config: Config) -> tuple[int, ...]:
        return tuple(axis.place(config) for axis in self._axes)

    def _steps(self, one: tuple[int, ...], other: tuple[int, ...]) -> int:
        pairs = zip(self._axes, one, other, strict=True)
        return sum(abs(a - b) if axis.ordered else a != b for axis, a, b in pairs)

    def _begin(self, config: Config) -> None:
        names = [axis.name for axis in self._axes]
        self._study.enqueue_trial(dict(zip(names, self._point(config), strict=True)))
        self._trial_of[config] = self._study.ask(self._distributions)

    def _end(self, config: Config, seconds: float | None) -> None:
        if config not in self._trial_of:
            self._begin(config)
        trial = self._trial_of.pop(config)
        if seconds is None:
            self._study.tell(trial, state=self._optuna.trial.TrialState.PRUNED)
        else:
            self._study.tell(trial, seconds)


@dataclass(frozen=True, slots=True)
class _Axis:
    """One parameter, as positions in a row of values. A config of a list may lack the parameter."""

    name: str
    values: tuple[Any, ...]
    ordered: bool
    places: dict[Config, int]

    def place(self, config: Config) -> int:
        present = self.name in config
        return self.places[Config({self.name: config[self.name]}) if present else _ABSENT]


_ABSENT = Config()


def _axes(space: Space) -> tuple[_Axis, ...]:
    """The parameters with more than one value."""
    axes = []
    for name, values in space.parameters.items():
        ordered = all(type(each) in (int, float) and each == each for each in values)
        row = sorted(values) if ordered else list(values)
        places = {Config({name: value}): k for k, value in enumerate(row)}
        if any(name not in config for config in space.listed or ()):
            ordered, places[_ABSENT] = False, len(row)
        if len(places) > 1:
            axes.append(_Axis(name, tuple(row), ordered, places))
    return tuple(axes)


def _around(point: tuple[int, ...], axes: Sequence[_Axis], most: int) -> Iterator[tuple[int, ...]]:
    """Points one step away."""
    return islice(
        (
            (*point[:k], place, *point[k + 1 :])
            for k, axis in enumerate(axes)
            for place in ((point[k] - 1, point[k] + 1) if axis.ordered else range(len(axis.values)))
            if 0 <= place < len(axis.values) and place != point[k]
        ),
        max(most, 0),
    )


def _load_optuna() -> Any:
    """optuna, or an error that says what to install. Where optuna is installed but broken, its own
    error is raised."""
    try:
        optuna = importlib.import_module("optuna")
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise ToolchainMissing(
            backend="TPE", searched=["optuna"], advice=f"{_INSTALL} Effort 'quick' needs none."
        ) from error
    version = str(optuna.__version__)
    if int(version.split(".")[0]) < _OPTUNA:
        raise ToolchainMissing(
            backend="TPE", searched=[f"optuna>={_OPTUNA}, found {version}"], advice=_INSTALL
        )
    return optuna


_INSTALL = "Run `pip install 'tzero-runtime[tune]'`, or `pip install 'optuna>=5'`."


@contextlib.contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Without optuna's log line about every new study; the program's log level is restored."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(before, optuna.logging.WARNING))
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _rng(seed: int) -> random.Random:
    if type(seed) is not int:
        raise _invalid("seed", f"is {seed!r}", "Give it a whole number.")
    return random.Random(seed)


def _invalid(argument: str, problem: str, advice: str) -> InvalidArgument:
    return InvalidArgument(kernel="search", argument=argument, problem=problem, advice=advice)
