"""Random programs over sizes: a host function, and calls of it with ever new sizes.

Enters: a seed. Leaves: source text and calls, the same for the same seed. It must not know how a
program is run or compared.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from tests.sizes import grammar

__all__ = ["Call", "Program", "Tensor", "generate"]

CALLS = 24
SIZES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 8, 12, 16, 16, 17, 31, 32, 33, 48)
NUMBERS = (
    *(0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 31, 32, 48, 64, 100, 1000, 1024),
    *(-1, -2, -5, -16, -100, 2**31 - 1, 2**31, -(2**31), 2**31 + 16, 2**40, 2**62),
    *(2**63 - 1, 2**63, -(2**63), 2**63 - 16, 2**64, 10**30),
)
LAYOUTS = (
    *("plain", "plain", "plain", "plain", "turned", "steps", "wide", "spread", "shifted"),
    *("alias", "part"),
)
"""How an argument lies in memory: `alias` is the first tensor itself, `part` a view of it."""

DTYPES = ("float32", "float32", "float32", "float64", "int32", "float16")
CONTEXTS = ("", "", "", "", "", "", "no_grad", "inference", "grad")


class Tensor(NamedTuple):
    """The geometry of an argument."""

    sizes: tuple[int, ...]
    layout: str
    grad: bool = False
    inference: bool = False
    dtype: str = "float32"


class Call(NamedTuple):
    """Arguments (a tensor, an integer, or a list of tensors each), and the mode around the call."""

    args: tuple[Tensor | int | list[Tensor], ...]
    context: str = ""


class Program(NamedTuple):
    """A host function's parameters and statements, a few lines each, and what is returned."""

    parameters: tuple[str, ...]
    statements: tuple[tuple[str, ...], ...]
    returned: str
    calls: tuple[Call, ...]

    def source(self) -> str:
        lines = [line for statement in self.statements for line in statement]
        body = [*lines, f"return {self.returned}"]
        head = f"def host({', '.join(self.parameters)}):"
        return "\n".join([grammar.CORE, head, *(f"    {line}" for line in body), ""])


def generate(seed: int) -> Program:
    """The program of a seed."""
    return _Writer(random.Random(seed)).program()


class _Writer:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        kinds = chance.choice(("t", "t", "ti", "tt", "tti", "tii", "l", "lt", "li", "tl"))
        self.kinds = kinds
        self.ranks = tuple(chance.choice((1, 1, 2, 2, 2, 3)) for _ in kinds)
        self.length = chance.choice((1, 2, 3))
        self.tensors: list[str] = []
        self.integers: list[str] = []
        self.shown: list[str] = []
        self.depth = self.names = 0
        self.hostile = chance.random() < 0.3

    def program(self) -> Program:
        parameters = tuple(f"{kind}{k}" for k, kind in enumerate(self.kinds))
        first: list[tuple[str, ...]] = []
        for name, kind in zip(parameters, self.kinds, strict=True):
            if kind == "t":
                self.tensors.append(name)
            elif kind == "i":
                self.integers.append(name)
            else:
                self.tensors.append(f"{name}[0]")
                first += [(f"last, count = {name}[-1], len({name})",)]
                self.tensors.append("last")
                self.integers.append("count")
        statements = [self.statement() for _ in range(self.chance.randrange(2, 7))]
        shown = [*self.shown, *self.chance.sample(self.tensors + self.integers, 1)]
        wanted = ", ".join(shown)
        returned = self.chance.choice((f"{wanted},", f"[{wanted}]", f"{{'a': ({wanted},)}}"))
        return Program(parameters, (*first, *statements), returned, self.calls())

    # -- calls -------------------------------------------------------------------------------------

    def calls(self) -> tuple[Call, ...]:
        """Calls that change one or two sizes at a time, so that classes are seen more than once."""
        sizes = [self.sizes(rank) for rank in self.ranks]
        layouts = [self.chance.choice(LAYOUTS) for _ in self.kinds]
        alike = self.chance.random() < 0.6
        made: list[Call] = []
        context, dtype = "", "float32"
        for k in range(CALLS):
            chosen = self.chance.random()
            if k and chosen < 0.15:
                made.append(self.chance.choice(made))
                continue
            if chosen > 0.94:
                context = self.chance.choice(CONTEXTS)
                layouts[self.chance.randrange(len(layouts))] = self.chance.choice(LAYOUTS)
                dtype = self.chance.choice(DTYPES)
            for at, rank in enumerate(self.ranks):
                if self.chance.random() < 0.6:
                    dim = self.chance.randrange(rank)
                    sizes[at][dim] = self.chance.choice(SIZES)
            if alike:  # so that operators on two tensors work
                sizes = [list(sizes[0]) if len(s) == len(sizes[0]) else s for s in sizes]
            made.append(self.call(sizes, layouts, context, dtype))
        return tuple(made)

    def sizes(self, rank: int) -> list[int]:
        return [self.chance.choice(SIZES[3:]) for _ in range(rank)]

    def call(
        self, sizes: Sequence[list[int]], layouts: Sequence[str], context: str, dtype: str
    ) -> Call:
        args: list[Tensor | int | list[Tensor]] = []
        for kind, size, layout in zip(self.kinds, sizes, layouts, strict=True):
            inference = context == "inference" and self.chance.random() < 0.5
            grad = context == "grad" and dtype != "int32"
            one = Tensor(tuple(size), layout, grad, inference, dtype)
            if kind == "t":
                args.append(one)
            elif kind == "i":
                low = 12 if self.chance.random() < 0.75 else 0
                args.append(self.chance.choice(NUMBERS[: 22 if low else None]))
            else:
                args.append([one] * self.length)
        return Call(tuple(args), context)

    # -- statements --------------------------------------------------------------------------------

    def name(self, start: str) -> str:
        self.names += 1
        return f"{start}_{self.names}"

    def integer(self) -> str:
        deep = self.depth > 2 or self.chance.random() < 0.45
        if not deep:
            return self.written(self.chance.choice(grammar.INTEGERS))
        if self.integers and self.chance.random() < 0.55:
            return self.chance.choice(self.integers)
        return self.written(self.chance.choice(grammar.GEOMETRY))

    def small(self) -> str:
        if self.hostile and self.chance.random() < 0.1:
            return self.integer()  # perhaps negative, or huge
        return f"({self.written(self.chance.choice(grammar.SMALL))})"

    def tensor(self) -> str:
        return self.chance.choice(self.tensors)

    def written(self, template: str) -> str:
        """A template with everything in it chosen. The same tensor stands for all `{x}`, mostly."""
        self.depth += 1
        one = self.tensor()
        fillings = {
            "{i}": self.integer,
            "{s}": self.small,
            "{x}": lambda: one if self.chance.random() < 0.85 else self.tensor(),
            "{c}": lambda: self.written(self.chance.choice(grammar.CONDITIONS)),
            "{g}": lambda: self.written(self.chance.choice(grammar.GRIDS)),
            "{b}": lambda: self.written(self.chance.choice(grammar.BLOCKS)),
        }
        found, rest = "", template
        while rest:
            for mark, fill in fillings.items():
                if rest.startswith(mark):
                    found, rest = found + fill(), rest[len(mark) :]
                    break
            else:
                two = rest[:2] in ("{{", "}}")
                found, rest = found + rest[0], rest[2 if two else 1 :]
        self.depth -= 1
        return found

    def statement(self) -> tuple[str, ...]:
        kinds = (self.assigned, self.branched, self.viewed, self.allocated, self.valued)
        kinds += (self.computed, self.launched, self.copied, self.looped, self.launched)
        kinds += (self.guarded, self.increased, self.in_rows, self.viewed)
        return self.chance.choice(kinds)()

    def assigned(self) -> tuple[str, ...]:
        if self.chance.random() < 0.2:
            name, tensor = self.name("n"), self.tensor()
            self.integers.append(name)
            return (f"*_, {name} = {tensor}.shape",)
        value = self.integer()
        name = self.name("n")
        self.integers.append(name)
        return (f"{name} = {value}",)

    def branched(self) -> tuple[str, ...]:
        condition = self.written(self.chance.choice(grammar.CONDITIONS))
        one, other, name = self.integer(), self.integer(), self.name("n")
        self.integers.append(name)
        if self.chance.random() < 0.3:
            early = self.tensor()
            return (f"{name} = {one}", f"if {condition}:", f"    return {early}, {other}")
        return (f"if {condition}:", f"    {name} = {one}", "else:", f"    {name} = {other}")

    def looped(self) -> tuple[str, ...]:
        small, value, name = self.small(), self.integer(), self.name("n")
        kind = self.chance.randrange(3)
        lines: tuple[str, ...]
        if kind == 0:
            lines = (f"{name} = 0", f"for k in range({small}):", f"    {name} += k + {value}")
        elif kind == 1:
            lines = (f"{name} = 1", f"while {name} < {small} * 3:", f"    {name} *= 2")
        else:
            lines = (f"{name} = sum(k * {value} for k in range({small}))",)
        self.integers.append(name)
        return lines

    def guarded(self) -> tuple[str, ...]:
        value, other, name = self.integer(), self.integer(), self.name("n")
        self.integers.append(name)
        caught = "except (ZeroDivisionError, ValueError, OverflowError, IndexError):"
        return ("try:", f"    {name} = {value}", caught, f"    {name} = {other}")

    def kept(self, value: str, *, shown: float) -> tuple[str, ...]:
        name = self.name("v")
        self.tensors.append(name)
        if self.chance.random() < shown:
            self.shown.append(name)
        return (f"{name} = {value}",)

    def viewed(self) -> tuple[str, ...]:
        return self.kept(self.written(self.chance.choice(grammar.VIEWS)), shown=0.5)

    def allocated(self) -> tuple[str, ...]:
        made = self.written(self.chance.choice(grammar.ALLOCATED))
        return self.kept(f"stamped({made})", shown=0.8)

    def valued(self) -> tuple[str, ...]:
        return self.kept(self.written(self.chance.choice(grammar.VALUES)), shown=0.8)

    def computed(self) -> tuple[str, ...]:
        return self.kept(self.written(self.chance.choice(grammar.OPS)), shown=0.6)

    def copied(self) -> tuple[str, ...]:
        return self.kept(f"copied({self.tensor()})", shown=0.8)

    def increased(self) -> tuple[str, ...]:
        tensor, by = self.tensor(), self.small()
        return self.kept(f"increased({tensor}.contiguous(), {by})", shown=0.8)

    def launched(self) -> tuple[str, ...]:
        log = self.name("log")
        self.shown.append(log)
        launch = self.written(self.chance.choice(grammar.LAUNCHES)).replace("(log", f"({log}")
        return (f"{log} = torch.zeros(8, dtype=torch.int64)", launch)

    def in_rows(self) -> tuple[str, ...]:
        tensor, out = self.tensor(), self.name("v")
        self.tensors.append(out)
        self.shown.append(out)
        last = f"{tensor}.shape[-1]"
        flat = self.name("flat")
        return (
            f"{flat} = {tensor}.reshape(-1, max(1, {last}))",
            f"{out} = torch.empty({flat}.shape, dtype={flat}.dtype, device={flat}.device)",
            f"rows[({flat}.shape[0],)]({flat}, {out}, {flat}.shape[1],",
            f"    *{flat}.stride(), BLOCK=triton.next_power_of_2({flat}.shape[1]))",
        )
