"""Random programs: a module with host functions, and changes of its world.

Enters: a seed. Leaves: the source of a module and of its changes, the same for the same seed. It
must not know kernels, tiers or how calls are compared.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.hostile.features import CONDITIONS, CORE, FEATURES, LOOPS, MANAGERS, WRAPPERS

__all__ = ["Program", "generate"]

HOSTS = 2
ROUNDS = 10


class Round(NamedTuple):
    """A change of the world, if any, and then a call of each host function."""

    change: str
    size: int
    by: float


class Program(NamedTuple):
    """A module with the host functions `host_0`, `host_1`..., and what happens to it."""

    source: str
    hosts: tuple[str, ...]
    rounds: tuple[Round, ...]


def generate(seed: int) -> Program:
    """The program of a seed."""
    return _Writer(random.Random(seed)).program()


class _Writer:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        names = chance.sample(sorted(FEATURES), 2)
        self.features = [FEATURES["globals"], *(FEATURES[name] for name in names)]
        self.depth = 0

    def program(self) -> Program:
        setup = [feature.setup for feature in self.features]
        hosts = tuple(f"host_{k}" for k in range(HOSTS))
        source = "\n".join([CORE, *setup, *(self.host(name) for name in hosts)])
        return Program(source, hosts, tuple(self.round() for _ in range(ROUNDS)))

    def round(self) -> Round:
        change = ""
        if self.chance.random() < 0.7:
            feature = self.chance.choice(self.features)
            change = self.chance.choice(feature.changes)
            while "{f}" in change:
                change = change.replace("{f}", self.number(), 1)
            change = change.replace("{{", "{").replace("}}", "}")
        return Round(change, self.chance.choice((4, 4, 4, 6)), self.chance.choice((1.0, 1.0, 2.0)))

    def number(self) -> str:
        return str(self.chance.randrange(-8, 17) / 2)

    # -- host functions ------------------------------------------------------------------------

    def host(self, name: str) -> str:
        lines = [f"def {name}(x, by):", "    a = by", "    y = x"]
        for _ in range(self.chance.randrange(1, 4)):
            lines += [f"    {line}" for line in self.statement()]
        lines += [f"    {line}" for line in self.ending()]
        return "\n".join(lines) + "\n"

    def read(self) -> str:
        """An expression for a number."""
        if self.chance.random() < 0.35 and self.depth < 2:
            self.depth += 1
            pair = self.read(), self.read()
            self.depth -= 1
            return self.chance.choice(WRAPPERS).format(*pair)
        return self.chance.choice(self.chance.choice(self.features).reads)

    def condition(self) -> str:
        if self.chance.random() < 0.5:
            return self.chance.choice(CONDITIONS)
        return f"{self.read()} > {self.number()}"

    def statement(self) -> list[str]:
        kind = self.chance.randrange(9)
        if kind == 0:
            return [f"if {self.condition()}:", f"    a = {self.read()}"]
        if kind == 1:
            return [f"for v in {self.chance.choice(LOOPS)}:", f"    a = a + v + {self.read()}"]
        if kind == 2:
            caught = "(KeyError, AttributeError, IndexError, ValueError)"
            return ["try:", f"    a = {self.read()}", f"except {caught}:", f"    a = {self.read()}"]
        if kind == 3:
            return [f"with {self.chance.choice(MANAGERS)}:", f"    a = {self.read()}"]
        if kind == 4:
            return ["def inner(b, c=NUMBER):", f"    return b + c + {self.read()}", "a = inner(a)"]
        if kind == 5:
            return [f"if {self.condition()}:", f"    return scaled(x, {self.read()})"]
        if kind == 6:
            return [f"y = scaled(y, {self.read()})", "y = y + 1.0"]
        if kind == 7:
            return [f"a = {self.read()}", "a = float(f'{a:.3f}')"]
        return [f"a = {self.read()}"]

    def ending(self) -> list[str]:
        last = f"scaled(y, a + {self.read()})"
        kind = self.chance.randrange(4)
        if kind == 0:
            return [f"return {last}, a"]
        if kind == 1:
            return [f"return {{'y': {last}, 'n': [a, len(MODE)]}}"]
        if kind == 2:
            return [f"return [{last}, y, x]"]
        return [f"return {last}"]
