"""Trials of two configs by a clock that does not depend on the machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from tzero import Config
from tzero.tune.judge import DEFAULT, Judge
from tzero.tune.records import Outcome
from tzero.tune.trial import Trial, device_of

CPU = torch.device("cpu")
RIGHT, OTHER = Config(BLOCK=64), Config(BLOCK=128)

Host = Callable[..., Any]


@dataclass
class SetClock:
    """A clock by which each call takes `seconds`; it records what is restored before samples."""

    seconds: float = 1.0
    shortest: float = 0.0
    time: float = 0.0
    waits: tuple[float, ...] = ()
    restored: list[Any] = field(default_factory=list)
    watched: Callable[[], Any] = lambda: None

    def now(self) -> float:
        return self.time

    def samples(self, call: Host, calls: int, count: int, before: Any) -> list[float]:
        for _ in range(count):
            if before is not None:
                before()
                self.restored.append(self.watched())
            for _ in range(calls):
                call()
                self.time += self.seconds
        return [self.seconds * calls] * count


def trying(
    host: Host,
    *args: Any,
    reference: Config = RIGHT,
    clock: SetClock | None = None,
    judge: Judge = DEFAULT,
) -> Trial:
    def configured(config: Config) -> Host:
        return lambda *given: host(*given, config=config)

    return Trial(configured, args, device_of(args), reference, clock or SetClock(), judge)


def tried(made: Trial, config: Config, best: float | None = None) -> Outcome:
    return made.outcome(config, budget=1000.0, best=best)
