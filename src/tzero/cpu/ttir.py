"""Triton's IR as Python objects.

Enters: an MLIR module object from Triton's bindings. Leaves: a tree of `Op`, `Block` and `Value`
with parsed types and Python source locations. It knows MLIR's generic text form; it must not know
what the operations mean. How the text is obtained: `triton_compat.generic_text`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tzero.cpu import triton_compat


@dataclass(frozen=True, slots=True)
class Type:
    """A scalar (`shape == ()`) or a tile of scalars; `pointee` is set for pointers."""

    shape: tuple[int, ...]
    elem: str
    pointee: str = ""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return functools.reduce(lambda a, b: a * b, self.shape, 1)

    @property
    def scalar(self) -> Type:
        """The type of one element."""
        return Type((), self.elem, self.pointee)

    def __str__(self) -> str:
        elem = f"ptr<{self.pointee}>" if self.elem == "ptr" else self.elem
        return "x".join([*map(str, self.shape), elem])


@dataclass(frozen=True, slots=True)
class Location:
    """A place in the user's Python source; `file` is empty when unknown."""

    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "unknown location"


@dataclass(eq=False, slots=True)
class Value:
    """An SSA value. `op` is its producer, None for block arguments."""

    name: str
    type: Type
    op: Op | None = None
    uses: list[Op] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Op:
    """One operation; attributes are kept as text and parsed on demand."""

    name: str
    operands: list[Value]
    results: list[Value] = field(default_factory=list)
    attrs: dict[str, str] = field(default_factory=dict)
    regions: list[list[Block]] = field(default_factory=list)
    successors: list[str] = field(default_factory=list)
    block: Block | None = None
    location: Location = Location()

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer attribute such as `0 : i32`."""
        text = self.attrs.get(name)
        if text is None:
            if default is None:
                raise KeyError(f"{self.name} has no attribute {name}")
            return default
        return int(text.split(":")[0])

    def integers(self, name: str) -> list[int]:
        """An array attribute such as `array<i32: 1, 0>`."""
        text = self.attrs[name]
        return [int(x) for x in re.findall(r"-?\d+", text.partition(":")[2])]

    def flag(self, name: str) -> bool:
        """A boolean or unit attribute."""
        return self.attrs.get(name, "false").startswith(("true", "unit"))

    def string(self, name: str) -> str:
        """A string attribute with MLIR's escapes undone."""
        text = self.attrs[name]
        body = text[text.index('"') + 1 : text.rindex('"')]
        raw = re.sub(
            rb"\\(?:([0-9A-Fa-f]{2})|(.))",
            lambda m: bytes([int(m[1], 16)]) if m[1] else m[2],
            body.encode(),
        )
        return raw.decode(errors="replace")

    def symbol(self, name: str) -> str:
        """A symbol reference such as `@f` or `@"f(1)"`."""
        text = self.attrs[name]
        return self.string(name) if '"' in text else text.lstrip("@")

    def segments(self) -> list[list[Value]]:
        """Operands grouped by `operandSegmentSizes`."""
        out, at = [], 0
        for size in self.integers("operandSegmentSizes"):
            out.append(self.operands[at : at + size])
            at += size
        return out


@dataclass(eq=False, slots=True)
class Block:
    """A basic block: operations that end in a terminator."""

    label: str
    args: list[Value]
    ops: list[Op] = field(default_factory=list)
    parent: Op | None = None


@dataclass(eq=False, slots=True)
class Module:
    """The functions of one module by name; `entry` is the kernel."""

    functions: dict[str, Op]
    entry: str


class MalformedIR(ValueError):
    """The printed IR is not in the form this parser knows."""


def read_module(module: Any) -> Module:
    """Read a Triton module object, which must not be used again."""
    return parse(triton_compat.generic_text(module))


def parse(text: str) -> Module:
    """Parse a module printed in generic form with locations."""
    reader = _Reader(text)
    top = reader.read()
    functions = {op.string("sym_name"): op for op in top.regions[0][0].ops if op.name == "tt.func"}
    public = [n for n, op in functions.items() if op.string("sym_visibility") == "public"]
    if len(public) != 1:
        raise MalformedIR(f"expected one public function, found {public}")
    return Module(functions, public[0])


def walk(blocks: list[Block]) -> Iterator[Op]:
    """Every operation in the blocks and in the regions below them, in text order."""
    for block in blocks:
        for op in block.ops:
            yield op
            for region in op.regions:
                yield from walk(region)


def blocks(op: Op) -> Iterator[Block]:
    """Every block in the regions of an operation, at any depth."""
    for region in op.regions:
        for block in region:
            yield block
            for inner in block.ops:
                yield from blocks(inner)


@functools.lru_cache(maxsize=4096)
def parse_type(text: str) -> Type:
    """`tensor<64x32xf32>`, `!tt.ptr<f32>`, `i32`, ..."""
    text = text.strip()
    if text.startswith("tensor<"):
        match = re.match(r"tensor<((?:\d+x)*)(.*)>$", text, re.S)
        if match is None:
            raise MalformedIR(f"tensor type {text!r}")
        dims = tuple(int(d) for d in match[1].split("x") if d)
        inner = parse_type(match[2])
        return Type(dims, inner.elem, inner.pointee)
    match = re.match(r'!tt\.ptr<(.*?)(?:, (?:\d+|"[^"]*"))?>$', text)  # an address space may follow
    if match:
        return Type((), "ptr", "ptr" if match[1].startswith("!tt.ptr") else match[1])
    return Type((), text)


_OP = re.compile(
    r'(?:(?P<results>%[^=]*?) = )?"(?P<name>[\w.]+)"\((?P<operands>[^)]*)\)'
    r"(?:\[(?P<successors>[^\]]*)\])?\s*"
)
_LABEL = re.compile(r"(\^\w+)(?:\((.*)\))?:(?:\s*//.*)?$")
_ARG = re.compile(r"(%[\w$.-]+): (.*?) loc\(")


class _Reader:
    """Line reader: the generic form puts one operation, label or region edge on a line."""

    def __init__(self, text: str) -> None:
        start = text.find('"builtin.module"')
        if start < 0:
            raise MalformedIR(f"not in generic form: {text[:200]!r}")
        self.lines = text[start:].splitlines()
        self.at = 0
        self.scopes: list[dict[str, Value]] = [{}]
        self.locations = _Locations(text)

    def read(self) -> Op:
        return self._op(self.lines[0])

    def _op(self, line: str) -> Op:
        line = line.strip()
        match = _OP.match(line)
        if match is None:
            raise MalformedIR(f"operation {line[:200]!r}")
        operands = [self._lookup(n) for n in _names(match["operands"])]
        op = Op(match["name"], operands, successors=_names(match["successors"] or ""))
        rest = line[match.end() :]
        if rest.startswith("<{"):
            end = _closing(rest, 1)
            op.attrs.update(_attributes(rest[2:end]))
            rest = rest[end + 2 :].lstrip()
        self.at += 1
        if rest.startswith("({"):
            rest = self._regions(op)
        if rest.startswith("{"):
            end = _closing(rest, 0)
            op.attrs.update(_attributes(rest[1:end]))
            rest = rest[end + 1 :].lstrip()
        types, _, location = rest.rpartition(" loc(")
        op.location = self.locations.resolve(location[:-1])
        self._results(op, match["results"], types.rpartition(" -> ")[2])
        for value in operands:
            value.uses.append(op)
        return op

    def _results(self, op: Op, names: str | None, types: str) -> None:
        if names is None:
            return
        flat: list[str] = []
        for name in names.split(","):
            base, _, count = name.strip().partition(":")
            flat += [f"{base}#{k}" for k in range(int(count))] if count else [base]
        parsed = [parse_type(t) for t in _split(types[1:-1] if types.startswith("(") else types)]
        if len(parsed) != len(flat):
            raise MalformedIR(f"{op.name}: {len(flat)} results, {len(parsed)} types")
        for name, type_ in zip(flat, parsed, strict=True):
            value = Value(name, type_, op)
            op.results.append(value)
            self.scopes[-1][name] = value

    def _regions(self, op: Op) -> str:
        """Read regions up to their closing line; return what follows the last brace."""
        while True:
            self.scopes.append({})
            blocks: list[Block] = []
            while not (line := self.lines[self.at].strip()).startswith("}"):
                if line.startswith("^"):
                    blocks.append(self._label(line, op))
                    self.at += 1
                    continue
                if not blocks:
                    blocks.append(Block("^entry", [], parent=op))
                inner = self._op(line)
                inner.block = blocks[-1]
                blocks[-1].ops.append(inner)
            self.scopes.pop()
            op.regions.append(blocks)
            self.at += 1
            if line != "}, {":
                return line[2:].lstrip()

    def _label(self, line: str, parent: Op) -> Block:
        match = _LABEL.match(line)
        if match is None:
            raise MalformedIR(f"block label {line!r}")
        args = [Value(n, parse_type(t)) for n, t in _ARG.findall(match[2] or "")]
        for value in args:
            self.scopes[-1][value.name] = value
        return Block(match[1], args, parent=parent)

    def _lookup(self, name: str) -> Value:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise MalformedIR(f"use of {name} before its definition")


class _Locations:
    """Resolves `loc(...)` text to the user's frame, skipping frames of triton.language."""

    def __init__(self, text: str) -> None:
        self.aliases = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.M))
        self.known: dict[str, Location] = {}

    def resolve(self, text: str) -> Location:
        if text not in self.known:
            frames = list(self._frames(text, 0))
            own = [f for f in frames if "/triton/language/" not in f.file.replace("\\", "/")]
            self.known[text] = (own or frames or [Location()])[0]
        return self.known[text]

    def _frames(self, text: str, depth: int) -> Iterator[Location]:
        if depth > 64:
            return
        match = re.match(r'"((?:[^"\\]|\\.)*)":(\d+):\d+', text)
        if match:
            yield Location(match[1], int(match[2]))
            return
        for alias in re.findall(r"#loc\d*", text) or re.findall(r'"[^"]*":\d+:\d+', text):
            yield from self._frames(self.aliases.get(alias, alias), depth + 1)


def _names(text: str) -> list[str]:
    return [n.strip() for n in text.split(",") if n.strip()]


def _closing(text: str, start: int) -> int:
    """Index of the bracket that closes the one at `start`; strings are skipped."""
    depth, at = 0, start
    while True:
        char = text[at]
        if char == '"':
            at += 1
            while text[at] != '"':
                at += 2 if text[at] == "\\" else 1
        elif char in "<([{":
            depth += 1
        elif char in ">)]}" and text[at - 1 : at + 1] != "->":
            depth -= 1
            if depth == 0:
                return at
        at += 1


def _split(text: str) -> list[str]:
    """Split at commas outside brackets and strings."""
    parts, start, at = [], 0, 0
    while at < len(text):
        if text[at] in "<([{":
            at = _closing(text, at)
        elif text[at] == '"':
            at += 1
            while text[at] != '"':
                at += 2 if text[at] == "\\" else 1
        elif text[at] == ",":
            parts.append(text[start:at].strip())
            start = at + 1
        at += 1
    if text[start:].strip():
        parts.append(text[start:].strip())
    return parts


def _attributes(text: str) -> dict[str, str]:
    found = {}
    for part in _split(text):
        name, equals, value = part.partition(" = ")
        found[name.strip('"')] = value if equals else "unit"
    return found
