"""Tiles: the values of tensors, as generators of C text for single elements.

For an index (one polynomial per dimension) a tile returns the C text of that element, and adds the
statements it needs to a `Body`. Elements are generated on demand, so chains of operations fuse into
the loops of their reader; `Stored` tiles read a buffer instead.

An integer tile can also return a polynomial (`linear`), a pointer tile a base and an element offset
(`address`), and a mask the bounds it puts on a loop (`conditions`). The defaults, which use the
element's value, are always correct but slower.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tzero.cpu.lower.code import Buffer, Line, Parts, Stmt, full
from tzero.cpu.lower.elems import ELEMS
from tzero.cpu.lower.poly import ZERO, Loop, Poly, Sym, flat, unflat
from tzero.cpu.ttir import Type

INDEX_BYTES = 4
"""Size of the smallest integer type that is used for indices."""

Index = tuple[Poly, ...]
Remap = Callable[[Index, "Body"], Index]


class Ref(NamedTuple):
    """A C variable or literal, and the loops in which it changes."""

    text: str
    deps: frozenset[Loop] = frozenset()


class Names:
    """Fresh C names."""

    def __init__(self) -> None:
        self.count = 0

    def fresh(self, prefix: str) -> str:
        """A name that is not in use."""
        self.count += 1
        return f"{prefix}{self.count}"


@dataclass(slots=True)
class Body:
    """Statements of a loop body under construction, each with the loops it depends on."""

    names: Names
    items: list[tuple[Stmt, frozenset[Loop] | None]] = field(default_factory=list)
    memo: dict[tuple[int, Index, str], Ref] = field(default_factory=dict)
    kept_alive: list[Tile] = field(default_factory=list)
    assume_consecutive: bool = False
    consecutive: set[str] = field(default_factory=set)
    fused_loads: list[Tile] = field(default_factory=list)
    true_masks: list[tuple[Tile, Index]] = field(default_factory=list)  # known true here
    load_masks: list[Tile] = field(default_factory=list)  # tested by loads in this body
    reads: list[tuple[Buffer, Poly]] = field(default_factory=list)

    def let(
        self, ctype: str, *parts: str | Poly | Buffer | Ref, deps: frozenset[Loop] = frozenset()
    ) -> Ref:
        """Declare a constant; it is placed in the outermost possible loop."""
        name = self.names.fresh("e")
        deps |= _deps(parts)
        star = "" if ctype.endswith("*") else " "
        line = Line((f"{ctype}{star}const {name} = ", *_plain(parts), ";"))
        self.items.append((line, deps))
        return Ref(name, deps)

    def do(self, *parts: str | Poly | Buffer | Ref) -> None:
        """Add a statement with side effects to the innermost loop."""
        self.items.append((Line(_plain(parts)), None))

    def at(self, tile: Tile, index: Index) -> Ref:
        """The carried value of an element."""
        return self._once(tile, index, "at")

    def raw(self, tile: Tile, index: Index) -> Ref:
        """The stored bits of an element."""
        return self._once(tile, index, "raw")

    def _once(self, tile: Tile, index: Index, how: str) -> Ref:
        if any(tile is mask and index == place for mask, place in self.true_masks):
            return Ref("1")
        key = (id(tile), index, how)
        if key not in self.memo:
            self.memo[key] = tile.at(index, self) if how == "at" else tile.raw(index, self)
            self.kept_alive.append(tile)  # its id is a key, and must not be reused
        return self.memo[key]


def _deps(parts: Sequence[str | Poly | Buffer | Ref]) -> frozenset[Loop]:
    found: frozenset[Loop] = frozenset()
    for part in parts:
        if isinstance(part, Ref):
            found |= part.deps
        elif isinstance(part, Poly):
            found |= part.deps()
    return found


def _plain(parts: Sequence[str | Poly | Buffer | Ref]) -> Parts:
    return tuple(p.text if isinstance(p, Ref) else p for p in parts)


def nest(loops: Sequence[Loop], body: Body, simd: bool = True) -> list[Stmt]:
    """Loops around a body, each statement in the outermost possible loop."""
    levels: list[list[Stmt]] = [[] for _ in range(len(loops) + 1)]
    for line, deps in body.items:
        level = len(loops)
        if deps is not None:
            while level and loops[level - 1] not in deps:
                level -= 1
        levels[level].append(line)
    inner = levels.pop()
    for loop in reversed(loops):
        inner = [*levels.pop(), full(loop, inner, simd)]
    return inner


@dataclass(frozen=True, slots=True)
class Bound:
    """A condition on an inner loop: index < limit (`upper`) or index >= limit."""

    limit: Poly
    upper: bool


Condition = Bound | Ref


def conditions(mask: Tile, index: Index, body: Body, inner: Loop) -> list[Condition] | None:
    """The conditions of a mask on a loop, for a body outside that loop; None if there are none.

    Statements that depend on the loop are dropped.
    """
    scratch = Body(
        body.names, assume_consecutive=body.assume_consecutive, consecutive=body.consecutive
    )
    found = mask.conditions(index, scratch, inner)
    if found is None or any(deps is None for _, deps in scratch.items):
        return None
    body.items += [item for item in scratch.items if inner not in (item[1] or ())]
    return found


def interval(body: Body, bounds: Sequence[Condition], inner: Loop) -> tuple[str, str]:
    """The range of the inner loop in which the conditions are true, as C text."""
    low: list[Poly] = [b.limit for b in bounds if isinstance(b, Bound) and not b.upper]
    high: list[Poly] = [b.limit for b in bounds if isinstance(b, Bound) and b.upper]
    rows = [b.text for b in bounds if isinstance(b, Ref)]
    start, end = "0", str(inner.extent)
    if low:
        start = body.names.fresh("low")
        body.do(f"int64_t {start} = 0;")
        for limit in low:
            body.do(f"{start} = tz_max_i64({start}, ", limit, ");")
        body.do(f"{start} = tz_min_i64({start}, {end});")
    if high or rows:
        name = body.names.fresh("high")
        body.do(f"int64_t {name} = {end};")
        for limit in high:
            body.do(f"{name} = tz_min_i64({name}, ", limit, ");")
        if rows:
            body.do(f"if (!({' && '.join(rows)})) {name} = {start};")
        body.do(f"{name} = tz_max_i64({name}, {start});")
        end = name
    return start, end


class Tile(ABC):
    """A tensor value; `cost` is the estimated number of operations per element.

    Elements depend only on the same elements of `operands`; if all of those are uniform, so is this
    tile. `depth` is the number of nested tiles behind one element.
    """

    def __init__(
        self, type_: Type, cost: int = 0, operands: Sequence[Tile] = (), depth: int = 0
    ) -> None:
        self.type = type_
        self.cost = cost
        self.depth: int = max([depth, *(t.depth + 1 for t in operands)])
        self.operands = tuple(operands)
        self.elem = ELEMS[type_.elem]

    @abstractmethod
    def at(self, index: Index, body: Body) -> Ref:
        """The carried value of one element; call `Body.at`, which caches it."""

    def raw(self, index: Index, body: Body) -> Ref:
        """The stored bits of one element."""
        value = body.at(self, index)
        if not self.elem.narrow:
            return value
        return body.let(self.elem.storage, self.elem.store(value.text), deps=value.deps)

    def linear(self, index: Index, body: Body) -> Poly:
        """One element as a polynomial."""
        return opaque(body.at(self, index))

    def address(self, index: Index, body: Body) -> tuple[Ref, Poly]:
        """One pointer as a base and an element offset."""
        return body.at(self, index), ZERO

    def conditions(self, index: Index, body: Body, inner: Loop) -> list[Condition] | None:
        """A mask as bounds on `inner` and loop-invariant conditions, or None."""
        value = body.at(self, index)
        return None if inner in value.deps else [value]


_LITERAL = re.compile(r"\(*(?:\(int\w+\))?(-?\d+)(?:LL)?\)*")


def opaque(ref: Ref) -> Poly:
    """A value as a polynomial: a constant, or one symbol."""
    match = _LITERAL.fullmatch(ref.text)
    return Poly.of(int(match[1])) if match else Poly.of(Sym(ref.text, ref.deps))


class Uniform(Tile):
    """One value for every element: scalars, and tiles made from them."""

    def __init__(self, type_: Type, text: str) -> None:
        super().__init__(type_)
        self.text = text

    def at(self, index: Index, body: Body) -> Ref:
        """The value."""
        return Ref(self.text)


class Stored(Tile):
    """A tile in a buffer, as stored bits.

    The buffer is row-major over the axes in `order`. For a tile of indices, `consecutive` may name
    a C variable that is true when each is one more than the last. A body that assumes so
    (`assume_consecutive`) gets a polynomial, and the variable is added to `Body.consecutive`.
    """

    def __init__(
        self, type_: Type, buffer: Buffer, order: tuple[int, ...] = (), consecutive: str = ""
    ) -> None:
        super().__init__(type_)
        self.buffer = buffer
        self.order = order or tuple(range(len(type_.shape)))
        self.consecutive = consecutive

    @property
    def row_major(self) -> bool:
        """Whether the buffer's order is the tile's."""
        return self.order == tuple(range(len(self.order)))

    def offset(self, index: Index) -> Poly:
        """Offset of an element in the buffer."""
        shape = tuple(self.type.shape[k] for k in self.order)
        return flat(shape, tuple(index[k] for k in self.order))

    def linear(self, index: Index, body: Body) -> Poly:
        """The first index plus the position, if the body assumes consecutive indices."""
        if not (self.consecutive and body.assume_consecutive):
            return super().linear(index, body)
        body.consecutive.add(self.consecutive)
        return opaque(body.let("int64_t", self.buffer, "[0]")) + index[0]

    def at(self, index: Index, body: Body) -> Ref:
        """Load and convert."""
        bits = body.raw(self, index)
        if not self.elem.narrow:
            return bits
        return body.let(self.elem.carried, self.elem.load(bits.text), deps=bits.deps)

    def raw(self, index: Index, body: Body) -> Ref:
        """Load."""
        return self.element(self.offset(index), body)

    def element(self, offset: Poly, body: Body, within: frozenset[Loop] = frozenset()) -> Ref:
        """Load at an offset, again in every iteration of the loops in `within`."""
        body.reads.append((self.buffer, offset))
        ctype = "_Bool" if self.type.elem == "i1" else self.elem.storage
        return body.let(ctype, self.buffer, "[", offset, "]", deps=within)


class Deferred(Stored):
    """A tile that its first reader stores, element by element, as it reads them.

    That reader must read every element once (`schedule.first_reader`).
    """

    def __init__(self, source: Tile, buffer: Buffer) -> None:
        super().__init__(source.type, buffer)
        self.source: Tile | None = source

    def at(self, index: Index, body: Body) -> Ref:
        """The element, which is stored first if it is not yet."""
        if self.source is None:
            return super().at(index, body)
        body.raw(self, index)
        return body.at(self.source, index)

    def raw(self, index: Index, body: Body) -> Ref:
        """The element's bits, which are stored first if they are not yet."""
        if self.source is None:
            return super().raw(index, body)
        bits = body.raw(self.source, index)
        body.do(self.buffer, "[", self.offset(index), "] = ", bits, ";")
        return bits


class Range(Tile):
    """`start, start + 1, ...`"""

    def __init__(self, type_: Type, start: int) -> None:
        super().__init__(type_)
        self.start = Poly.of(start)

    def at(self, index: Index, body: Body) -> Ref:
        """The index as an integer of the tile's type."""
        return body.let(self.elem.carried, f"({self.elem.carried})(", self.linear(index, body), ")")

    def linear(self, index: Index, body: Body) -> Poly:
        """The index."""
        return index[0] + self.start


class View(Tile):
    """Another tile with its index remapped."""

    def __init__(self, type_: Type, source: Tile, remap: Remap) -> None:
        super().__init__(type_, source.cost, depth=source.depth + 1)
        self.source = source
        self.remap = remap

    def at(self, index: Index, body: Body) -> Ref:
        """The source's element."""
        return body.at(self.source, self.remap(index, body))

    def raw(self, index: Index, body: Body) -> Ref:
        """The source's bits."""
        return body.raw(self.source, self.remap(index, body))

    def linear(self, index: Index, body: Body) -> Poly:
        """The source's polynomial."""
        return self.source.linear(self.remap(index, body), body)

    def address(self, index: Index, body: Body) -> tuple[Ref, Poly]:
        """The source's address."""
        return self.source.address(self.remap(index, body), body)

    def conditions(self, index: Index, body: Body, inner: Loop) -> list[Condition] | None:
        """The source's conditions."""
        return self.source.conditions(self.remap(index, body), body, inner)


def reshaped(type_: Type, source: Tile) -> Tile | None:
    """A reshape without copying; None if the source must be stored first."""
    if isinstance(source, Stored):
        return Stored(type_, source.buffer) if source.row_major else None
    probe = tuple(Poly.of(Loop(f"probe{k}", n)) for k, n in enumerate(type_.shape))
    if unflat(source.type.shape, flat(type_.shape, probe)) is None:
        return None

    def remap(index: Index, body: Body) -> Index:
        offset = flat(type_.shape, index)
        return unflat(source.type.shape, offset) or _split(source.type.shape, offset, body)

    return View(type_, source, remap)


def _split(shape: tuple[int, ...], offset: Poly, body: Body) -> Index:
    """An index computed at run time from a row-major offset."""
    index, stride = [], 1
    for extent in reversed(shape):
        index.append(opaque(body.let("int64_t", "(", offset, f") / {stride} % {extent}")))
        stride *= extent
    return tuple(reversed(index))


class Map(Tile):
    """An elementwise operation: C text from the carried values of the operands."""

    def __init__(
        self, type_: Type, operands: Sequence[Tile], text: Callable[..., str], cost: int = 1
    ) -> None:
        super().__init__(type_, min(cost + sum(t.cost for t in operands), 1000), operands)
        self.text = text

    def at(self, index: Index, body: Body) -> Ref:
        """The result of the operation."""
        refs = [body.at(t, index) for t in self.operands]
        deps = frozenset[Loop]().union(*(r.deps for r in refs))
        return body.let(self.elem.carried, self.text(*(r.text for r in refs)), deps=deps)


class Quotient(Map):
    """Division of f32. If the divisor is invariant in a loop in which the dividend changes, as in a
    softmax, it is multiplication by the reciprocal: within 2 ulp, like `/` on a GPU (`tl.div_rn` is
    another operation). The scale keeps the reciprocals of huge and tiny divisors finite."""

    def at(self, index: Index, body: Body) -> Ref:
        """The quotient."""
        above, below = (body.at(t, index) for t in self.operands)
        if below.deps >= above.deps:
            return super().at(index, body)
        scale = body.let("float", "tz_divisor_scale(", below, ")")
        inverse = body.let("float", "1.0f / (", below, " * ", scale, ")")
        text = self.elem.rounded(f"{above.text} * {inverse.text} * {scale.text}")
        return body.let(self.elem.carried, text, deps=above.deps | below.deps)


class Select(Map):
    """`mask ? a : b`"""

    def raw(self, index: Index, body: Body) -> Ref:
        """The selected bits, without converting narrow floats."""
        mask = body.at(self.operands[0], index)
        a, b = (body.raw(t, index) for t in self.operands[1:])
        return body.let(self.elem.storage, mask, " ? ", a, " : ", b)


class Sum(Map):
    """Integer addition or subtraction."""

    sign = 1

    def linear(self, index: Index, body: Body) -> Poly:
        """The sum of the operands' polynomials; narrow integers wrap, so not for those."""
        if self.elem.size < INDEX_BYTES:
            return super().linear(index, body)
        a, b = (t.linear(index, body) for t in self.operands)
        return a + b.scaled(self.sign)


class Difference(Sum):
    """Integer subtraction."""

    sign = -1


class Product(Map):
    """Integer multiplication; a polynomial if one side is uniform."""

    def linear(self, index: Index, body: Body) -> Poly:
        """The product, if linear."""
        if self.elem.size < INDEX_BYTES:
            return super().linear(index, body)
        a, b = (t.linear(index, body) for t in self.operands)
        if a.deps() and b.deps():
            return opaque(body.at(self, index))
        return a * b


class Widened(Map):
    """Sign extension: the same integer in a wider type."""

    def linear(self, index: Index, body: Body) -> Poly:
        """The operand's polynomial."""
        return self.operands[0].linear(index, body)


class Narrowed(Map):
    """f32 rounded to a narrower float."""

    def raw(self, index: Index, body: Body) -> Ref:
        """The bits, without widening the rounded value again."""
        if not self.elem.narrow:
            return super().raw(index, body)
        wide = body.at(self.operands[0], index)
        return body.let(self.elem.storage, self.elem.store(wide.text), deps=wide.deps)


class Offset(Tile):
    """Pointers plus element offsets."""

    def __init__(self, type_: Type, pointer: Tile, offset: Tile, item: int) -> None:
        super().__init__(
            type_, pointer.cost + offset.cost, depth=max(pointer.depth, offset.depth) + 1
        )
        self.pointer, self.offset, self.item = pointer, offset, item

    def at(self, index: Index, body: Body) -> Ref:
        """The pointer."""
        base, offset = self.address(index, body)
        return body.let("char *", base, f" + {self.item} * (", offset, ")")

    def address(self, index: Index, body: Body) -> tuple[Ref, Poly]:
        """The pointer's base, and the sum of the offsets."""
        base, start = self.pointer.address(index, body)
        return base, start + self.offset.linear(index, body)


class Compare(Map):
    """Signed comparison of integers that can bound a loop: <, <=, >, >=."""

    less, strict = True, True

    def conditions(self, index: Index, body: Body, inner: Loop) -> list[Condition] | None:
        """A bound, if the difference is the loop index plus a loop-invariant value."""
        a, b = (t.linear(index, body) for t in self.operands)
        gap = a - b if self.less else b - a  # the condition is gap < 0, or gap <= 0
        factor = gap.factor(inner)
        step = factor.constant() if factor is not None else None
        if step is None or abs(step) > 1:
            return None
        if step == 0:
            return super().conditions(index, body, inner)
        rest = gap - Poly.of(inner).scaled(step)
        slack = Poly.of(0 if self.strict else 1)
        if step == 1:  # inner + rest < slack
            return [Bound(slack - rest, True)]
        return [Bound(rest - slack + Poly.of(1), False)]  # inner > rest - slack


class LessEqual(Compare):
    """`<=`"""

    strict = False


class Greater(Compare):
    """`>`"""

    less = False


class GreaterEqual(Compare):
    """`>=`"""

    less, strict = False, False


class And(Map):
    """Logical and of masks."""

    def conditions(self, index: Index, body: Body, inner: Loop) -> list[Condition] | None:
        """The conditions of both masks."""
        found: list[Condition] = []
        for tile in self.operands:
            more = tile.conditions(index, body, inner)
            if more is None:
                return None
            found += more
        return found


class Bitcast(Tile):
    """The same bits as another element type of the same size."""

    def __init__(self, type_: Type, source: Tile) -> None:
        super().__init__(type_, source.cost + 1, [source])
        self.source = source

    def raw(self, index: Index, body: Body) -> Ref:
        """The source's bits, retyped."""
        bits = body.raw(self.source, index)
        a, b = self.source.elem.storage, self.elem.storage
        if "float" in (a, b) and a != b:
            text = f"tz_bits_f32({bits.text})" if a == "float" else f"tz_from_bits_f32({bits.text})"
        elif "double" in (a, b) and a != b:
            text = (
                f"tz_bits_f64({bits.text})" if a == "double" else f"tz_from_bits_f64({bits.text})"
            )
        else:
            text = f"({b}){bits.text}"
        return body.let(b, text, deps=bits.deps)

    def at(self, index: Index, body: Body) -> Ref:
        """The bits as a value."""
        bits = body.raw(self, index)
        if not self.elem.narrow:
            return bits
        return body.let(self.elem.carried, self.elem.load(bits.text), deps=bits.deps)
