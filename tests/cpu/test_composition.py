"""Random programs of operations of all kinds, against the same steps in numpy.

Each operation alone is tested elsewhere. These test combinations: a value used twice, fused into
one loop and stored for another, reduced, transposed and broadcast back, carried through a loop or
made in a branch. Everything is int32, so every result is exact.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.cpu.cases import Array, array, assert_same, empty, tensor
from tests.cpu.rows import kernel_from_text

A, B = 8, 16
SHAPES = {"block": (A, B), "turned": (B, A), "rows": (A,), "columns": (B,), "scalar": ()}
OFFSETS = {
    "block": f"tl.arange(0, {A})[:, None] * {B} + tl.arange(0, {B})[None, :]",
    "turned": f"tl.arange(0, {B})[:, None] * {A} + tl.arange(0, {A})[None, :]",
    "rows": f"tl.arange(0, {A})",
    "columns": f"tl.arange(0, {B})",
    "scalar": "0",
}
Step = Callable[..., Array]


def wrap(value: Array) -> Array:
    return np.asarray(value).astype(np.int64).astype(np.int32)


ELEMENTWISE: list[tuple[str, int, Step]] = [
    ("{0} + {1}", 2, lambda x, y: x + y),
    ("{0} - {1}", 2, lambda x, y: x - y),
    ("{0} * {1}", 2, lambda x, y: x.astype(np.int64) * y),
    ("{0} ^ {1}", 2, lambda x, y: x ^ y),
    ("tl.minimum({0}, {1})", 2, np.minimum),
    ("tl.where({0} > {1}, {2}, {0})", 3, lambda x, y, z: np.where(x > y, z, x)),
    ("tl.where({0} < 3, {1}, 7)", 2, lambda x, y: np.where(x < 3, y, 7)),
    ("({0} >> 2) | 1", 1, lambda x: (x >> 2) | 1),
    ("tl.abs({0}) // 3", 1, lambda x: np.abs(x.astype(np.int64)).astype(np.int32) // 3),
]

# source shape, target shape, text, meaning
MOVES: list[tuple[str, str, str, Step]] = [
    ("block", "rows", "tl.sum({0}, 1)", lambda x: x.sum(1)),
    ("block", "columns", "tl.sum({0}, 0)", lambda x: x.sum(0)),
    ("block", "rows", "tl.max({0}, 1)", lambda x: x.max(1)),
    ("block", "columns", "tl.min({0}, 0)", lambda x: x.min(0)),
    ("block", "rows", "tl.argmax({0}, 1)", lambda x: x.argmax(1)),
    ("turned", "columns", "tl.xor_sum({0}, 1)", lambda x: np.bitwise_xor.reduce(x, 1)),
    ("turned", "rows", "tl.max({0}, 0)", lambda x: x.max(0)),
    ("rows", "scalar", "tl.sum({0}, 0)", lambda x: x.sum()),
    ("columns", "scalar", "tl.max({0}, 0)", lambda x: x.max()),
    ("block", "scalar", "tl.sum({0})", lambda x: x.sum()),
    ("block", "turned", "tl.trans({0})", lambda x: x.T),
    ("turned", "block", "tl.trans({0})", lambda x: x.T),
    ("block", "turned", f"tl.reshape({{0}}, ({B}, {A}))", lambda x: x.reshape(B, A)),
    ("turned", "block", f"tl.reshape({{0}}, ({A}, {B}))", lambda x: x.reshape(A, B)),
    ("block", "block", "tl.cumsum({0}, 1)", lambda x: x.cumsum(1)),
    ("block", "block", "tl.cumsum({0}, 0, reverse=True)", lambda x: x[::-1].cumsum(0)[::-1]),
    ("block", "block", "tl.flip({0}, 1)", lambda x: x[:, ::-1]),
    ("turned", "turned", "tl.cumsum({0}, 0)", lambda x: x.cumsum(0)),
    ("columns", "columns", "tl.sort({0})", np.sort),
    ("rows", "block", f"{{0}}[:, None].broadcast_to({A}, {B})", lambda x: np.tile(x, (B, 1)).T),
    ("columns", "block", f"{{0}}[None, :].broadcast_to({A}, {B})", lambda x: np.tile(x, (A, 1))),
    ("rows", "turned", f"{{0}}[None, :].broadcast_to({B}, {A})", lambda x: np.tile(x, (B, 1))),
    ("scalar", "columns", f"tl.full(({B},), 0, tl.int32) + {{0}}", lambda x: np.full(B, x)),
    ("columns", "columns", f"tl.gather({{0}}, (tl.arange(0, {B}) * 5 + 1) % {B}, 0)",
     lambda x: x[(np.arange(B) * 5 + 1) % B]),
    ("columns", "columns", f"tl.interleave({{0}}, {{0}} + 1).reshape(2, {B}).sum(0)",
     lambda x: np.stack([x, x + 1], -1).reshape(2, B).sum(0)),
    ("rows", "columns", "tl.interleave({0}, {0} * 2)", lambda x: np.stack([x, x * 2], -1).ravel()),
    ("block", "rows", "tl.sum(tl.dot(({0} & 7).to(tl.float32), "
     "tl.trans(({0} & 3).to(tl.float32))).to(tl.int32), 1)",
     lambda x: ((x & 7) @ (x & 3).T).sum(1)),
]  # fmt: skip


@dataclass
class Program:
    """Lines of a kernel and, step by step, what they must compute."""

    source: random.Random
    inputs: dict[str, Array]
    lines: list[str] = field(default_factory=list)
    indent: str = "    "
    values: dict[str, tuple[str, Array]] = field(default_factory=dict)

    def line(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def define(self, shape: str, text: str, value: Array) -> str:
        name = f"v{len(self.values)}"
        self.line(f"{name} = {text}")
        self.values[name] = (shape, wrap(value))
        return name

    def pick(self, shape: str) -> str:
        """A value of the shape; recent ones more often, so that chains get long."""
        names = [n for n, (s, _) in self.values.items() if s == shape]
        return names[max(self.source.randrange(len(names)), self.source.randrange(len(names)))]

    def has(self, shape: str) -> bool:
        return any(s == shape for s, _ in self.values.values())

    def step(self) -> None:
        if self.source.random() < 0.5:
            shape = self.source.choice([s for s in SHAPES if self.has(s)])
            text, count, meaning = self.source.choice(ELEMENTWISE)
            names = [self.pick(shape) for _ in range(count)]
            value = meaning(*(self.values[n][1] for n in names))
            self.define(shape, text.format(*names), value)
        else:
            moves = [m for m in MOVES if self.has(m[0])]
            source, target, text, meaning = self.source.choice(moves)
            name = self.pick(source)
            self.define(target, text.format(name), meaning(self.values[name][1]))

    def loop(self) -> None:
        """Swap two carried blocks, and add a reduction of one to the other."""
        x, y = self.pick("block"), self.pick("block")
        if x == y:  # Triton's front end would not see that one value is carried under two names
            y = self.define("block", f"{x} + 1", self.values[x][1] + 1)
        a, b = self.values[x][1], self.values[y][1]
        rounds = self.source.randrange(1, 4)
        first, second = f"c{len(self.values)}", f"d{len(self.values)}"
        self.line(f"{first}, {second} = {x}, {y}")
        self.line(f"for i in range(rounds * {rounds}):")
        self.line(f"    {first}, {second} = {second} + tl.sum({first}, 1)[:, None] + i, {first}")
        for i in range(rounds):
            a, b = wrap(b + a.sum(1)[:, None] + i), a
        self.define("block", first, a)
        self.define("block", second, b)

    def branch(self) -> None:
        """A block from one of two branches, chosen by a scalar of the program."""
        rows = self.pick("rows")
        total = wrap(self.values[rows][1].sum())
        scalar = self.define("scalar", f"tl.sum({rows}, 0)", total)
        x, name = self.pick("block"), f"b{len(self.values)}"
        self.line(f"{name} = {x}")
        self.line(f"if {scalar} % 2 == 0:")
        self.line(f"    {name} = {x} * 3 - 1")
        self.line("else:")
        self.line(f"    {name} = tl.cumsum({x}, 1)")
        value = self.values[x][1]
        even = int(total) % 2 == 0
        self.define("block", name, value.astype(np.int64) * 3 - 1 if even else value.cumsum(1))


def make(seed: int) -> Program:
    source = random.Random(seed)
    rng = np.random.default_rng(seed)
    inputs = {
        f"{shape}_in": rng.integers(-9, 10, SHAPES[shape]).astype(np.int32)
        for shape in ("block", "turned", "rows", "columns")
    }
    program = Program(source, inputs)
    for name, value in inputs.items():
        shape = name.removesuffix("_in")
        program.define(shape, f"tl.load({name} + {OFFSETS[shape]})", value)
    for _ in range(source.randrange(8, 25)):
        chance = source.random()
        if chance < 0.06:
            program.loop()
        elif chance < 0.12:
            program.branch()
        else:
            program.step()
    return program


def check(seed: int) -> None:
    """Store and compare the last values of the program and some earlier ones."""
    program = make(seed)
    names = list(program.values)
    kept = sorted({*names[-4:], *program.source.sample(names, 3)}, key=names.index)
    for name in kept:
        shape, _ = program.values[name]
        program.line(f"tl.store(out_{name} + {OFFSETS[shape]}, {name})")
    parameters = [*program.inputs, *(f"out_{n}" for n in kept), "rounds"]
    text = f"@triton.jit\ndef program({', '.join(parameters)}):\n" + "\n".join(program.lines) + "\n"
    outs = [empty(SHAPES[program.values[n][0]] or 1, "int32") for n in kept]
    inputs = [tensor(v, "int32") for v in program.inputs.values()]
    kernel_from_text(text, "program")[(1,)](*inputs, *outs, 1)
    for name, out in zip(kept, outs, strict=True):
        want = np.atleast_1d(program.values[name][1])
        assert_same(array(out), want, f"{name} of program {seed}:\n{text}")


@pytest.mark.parametrize("seed", range(40))
def test_a_random_program_computes_what_numpy_does(seed: int) -> None:
    check(seed)
