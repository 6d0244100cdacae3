"""Loads, stores and atomics.

A load copies memory to a buffer at once, so that it does not see later stores. If nothing is
written before its readers have read, they load instead (`_lazy_load`). A mask that bounds the inner
loop (`offsets < n`) becomes the loop's bounds; other masks become branches, so masked-off lanes
never touch memory. In checked mode every access is first tested against the byte range of the
argument its pointer was computed from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tzero.cpu.lower.code import Buffer, Nest, stop_program
from tzero.cpu.lower.elems import ELEMS, Elem, unsigned
from tzero.cpu.lower.origin import origins
from tzero.cpu.lower.poly import ONE, ZERO, Loop, Poly, flat
from tzero.cpu.lower.schedule import (
    can_defer_to,
    can_load_in_readers,
    first_reader,
    only_feeds_store,
)
from tzero.cpu.lower.tiles import (
    Body,
    Index,
    Ref,
    Stored,
    Tile,
    Uniform,
    conditions,
    interval,
    nest,
)
from tzero.cpu.ttir import Op, Type, Value

if TYPE_CHECKING:
    from tzero.cpu.lower.lowering import Lowering

Lane = Callable[[Body, Index], None]
"""Adds the statements for the element at an index to a body."""


class Access:
    """The memory accesses of one operation: pointers, checks, loop order."""

    def __init__(self, lowering: Lowering, op: Op, pointer: Value, what: str) -> None:
        pointee = pointer.type.pointee
        if pointee not in ELEMS:
            raise lowering.unsupported(
                op, f"The CPU backend does not support pointers to {pointee}."
            )
        self.lowering, self.op = lowering, op
        self.tile = lowering.tile(pointer)
        self.elem: Elem = ELEMS[pointee]
        self.shape = pointer.type.shape
        self.volatile = "volatile " if op.flag("isVolatile") else ""
        self.ordered = bool(self.volatile)
        self.checks: list[tuple[int, int]] = []  # (parameter, site)
        if lowering.check:
            self._find_checks(pointer, what)

    def _find_checks(self, pointer: Value, what: str) -> None:
        found = origins(self.lowering, pointer)
        if found is None:
            self.lowering.unchecked.append(self.op.location)
            return
        args = self.lowering.kernel.regions[0][0].args
        for param in sorted(found):
            name = args[param].name.lstrip("%")
            self.checks.append((param, self.lowering.site(self.op, "bounds", what, name)))

    def element(self, body: Body, index: Index) -> tuple[str | Poly | Ref, ...]:
        """C text of the element's lvalue, after its check."""
        base, offset = self.tile.address(index, body)
        star = "" if self.elem.storage.endswith("*") else " "
        head = f"(({self.volatile}{self.elem.storage}{star}*)"
        if self.checks:
            self._check(body, (head, base, ")[", offset, "]"))
        return (head, base, ")[", offset, "]")

    def _check(self, body: Body, lvalue: tuple[str | Poly | Ref, ...]) -> None:
        at = self.lowering.names.fresh("a")
        body.do(f"uintptr_t const {at} = (uintptr_t)&", *lvalue, ";")
        size = self.elem.size
        inside = " || ".join(
            f"({at} >= launch->spans[{p}].lo && {at} + {size} <= launch->spans[{p}].hi)"
            for p, _ in self.checks
        )
        if len(self.checks) == 1:
            ((param, site),) = self.checks
            offset = f"((int64_t){at} - (int64_t)(uintptr_t)p{param}) / {size}"
            body.do(f"if (!({inside})) {stop_program(site, param, offset)}")
            return
        # The pointer may come from several arguments: report the one whose memory is nearest.
        body.do(f"if (!({inside})) {{")
        best, distance = self.lowering.names.fresh("near"), self.lowering.names.fresh("way")
        body.do(f"int32_t {best} = -1; uint64_t {distance} = UINT64_MAX;")
        for param, _ in self.checks:
            span = f"launch->spans[{param}]"
            body.do(f"TZ_NEARER({best}, {distance}, {param}, {span}, {at})")
        for param, site in self.checks:
            offset = f"((int64_t){at} - (int64_t)(uintptr_t)p{param}) / {size}"
            body.do(f"if ({best} == {param}) {stop_program(site, param, offset)}")
        body.do("}")

    def loops(self) -> tuple[list[Loop], Index]:
        """Loops over the elements; the one with unit stride in memory is innermost."""
        loops, index = self.lowering.index(self.shape)
        step = self._unit(loops, index)
        if step is not None:
            loops.append(loops.pop(step))
        return loops, index

    def order(self) -> tuple[int, ...]:
        """The order of axes in which a load stores its tile: the order in memory."""
        loops, index = self.lowering.index(self.shape)
        step = self._unit(loops, index)
        axes = list(range(len(self.shape)))
        if step is not None:
            axes.append(axes.pop([i.deps() for i in index].index(frozenset({loops[step]}))))
        return tuple(axes)

    def in_order(self) -> bool:
        """Whether the last axis has unit stride."""
        loops, index = self.lowering.index(self.shape)
        base, offset = self.tile.address(index, self.lowering.body())
        return bool(loops) and loops[-1] not in base.deps and offset.factor(loops[-1]) == ONE

    def _unit(self, loops: list[Loop], index: Index) -> int | None:
        """The position of the loop with unit stride; None if that is the last or there is none."""
        base, offset = self.tile.address(index, self.lowering.body())
        steps = [None if loop in base.deps else offset.factor(loop) for loop in loops]
        return steps.index(ONE) if ONE in steps and steps[-1] != ONE else None

    @property
    def simd(self) -> bool:
        """Whether the loop may be vectorised."""
        return not self.checks and not self.ordered


def masked(access: Access, mask: Tile | None, on: Lane, off: Lane | None) -> None:
    """Add loops that run `on` for lanes whose mask is true and `off` for the others."""
    access.lowering.with_consecutive_indices(lambda: _masked(access, mask, on, off))


def _masked(access: Access, mask: Tile | None, on: Lane, off: Lane | None) -> None:
    lowering = access.lowering
    loops, index = access.loops()
    body = lowering.body()
    if mask is None:
        on(body, index)
        lowering.add_nest(loops, body, access.simd)
        return
    bounds = conditions(mask, index, body, loops[-1]) if loops else None
    if bounds is None:
        _branches(access, mask, on, off, loops, index)
        return
    inner = loops[-1]
    low, high = interval(body, bounds, inner)
    for start, end, lane in ((low, high, on), ("0", low, off), (high, str(inner.extent), off)):
        if lane is None or start == end:
            continue
        part = lowering.body()
        if lane is on:
            part.true_masks.append((mask, index))
        lane(part, index)
        for stmt in nest([inner], part, access.simd):
            if isinstance(stmt, Nest):
                stmt.low, stmt.high = (start,), (end,)
            body.items.append((stmt, None))
    lowering.add_nest(loops[:-1], body)


def _branches(
    access: Access, mask: Tile, on: Lane, off: Lane | None, loops: list[Loop], index: Index
) -> None:
    body = access.lowering.body()
    body.do("if (", body.at(mask, index), ") {")
    _inline(body, access, on, index, mask)
    if off is not None:
        body.do("} else {")
        _inline(body, access, off, index)
    body.do("}")
    access.lowering.add_nest(loops, body, access.simd)


def _inline(
    body: Body, access: Access, lane: Lane, index: Index, true_mask: Tile | None = None
) -> None:
    """A lane's statements, all kept inside the branch around them."""
    part = access.lowering.body()
    if true_mask is not None:
        part.true_masks.append((true_mask, index))
    lane(part, index)
    body.items += [(stmt, None) for stmt, _ in part.items]


def load(lowering: Lowering, op: Op) -> None:
    """Read memory into a buffer or a scalar."""
    pointer, mask, other = (seg[0] if seg else None for seg in op.segments()[:3])
    assert pointer is not None
    access = Access(lowering, op, pointer, "load")
    masks = lowering.tile(mask) if mask is not None else None
    others = lowering.tile(other) if other is not None else None
    type_ = op.result.type
    if not type_.shape:
        _load_scalar(access, masks, others, op)
        return
    lazy = _lazy_load(access, masks, others, op)
    if lazy is not None:
        lowering.env[op.result] = lazy
        return
    stored = Stored(type_, lowering.buffer(type_), access.order())
    truth = " != 0" if type_.elem == "i1" else ""

    def on(body: Body, index: Index) -> None:
        text = access.element(body, index)
        body.do(stored.buffer, "[", stored.offset(index), "] = ", *text, truth, ";")

    def off(body: Body, index: Index) -> None:
        value = body.raw(others, index) if others is not None else Ref("0")
        body.do(stored.buffer, "[", stored.offset(index), "] = ", value, ";")

    masked(access, masks, on, off)
    lowering.env[op.result] = stored


def _lazy_load(access: Access, mask: Tile | None, other: Tile | None, op: Op) -> Tile | None:
    """A tile whose readers load the memory, where that is as good as copying it now."""
    lowering, value = access.lowering, op.result
    if not access.simd or not access.in_order():
        return None
    loaded = _Loaded(value.type, access, mask, other)
    if can_load_in_readers(value, lowering.stored):
        return loaded
    if only_feeds_store(value, lowering.stored):
        return FusedLoad(loaded, lowering.buffer(value.type))
    reader = first_reader(value, lowering.stored)
    if reader is not None and can_defer_to(value, reader):
        return lowering.defer(loaded, reader)
    return None


class _Loaded(Tile):
    """Memory that is read when an element is used, unless its mask is false."""

    def __init__(self, type_: Type, access: Access, mask: Tile | None, other: Tile | None) -> None:
        super().__init__(type_, 1)
        self.access, self.mask, self.other = access, mask, other

    def raw(self, index: Index, body: Body) -> Ref:
        """The bits in memory, or those of `other`."""
        text = self.access.element(body, index)
        truth = " != 0" if self.type.elem == "i1" else ""
        if self.mask is None:
            return body.let(self.elem.storage, *text, truth)
        mask = body.at(self.mask, index)
        if mask.text == "1":
            return body.let(self.elem.storage, *text, truth)
        body.load_masks.append(self.mask)
        other = body.raw(self.other, index) if self.other is not None else Ref("0")
        return body.let(self.elem.storage, mask, " ? ", *text, truth, " : ", other)

    def at(self, index: Index, body: Body) -> Ref:
        """The value in memory, or `other`."""
        bits = body.raw(self, index)
        if not self.elem.narrow:
            return bits
        return body.let(self.elem.carried, self.elem.load(bits.text), deps=bits.deps)


class FusedLoad(Stored):
    """A load whose only reader is a store. The store decides at run time: if both access the same
    or disjoint memory, it reads each element as it writes; else it reads all of them first."""

    def __init__(self, source: _Loaded, buffer: Buffer) -> None:
        super().__init__(source.type, buffer)
        self.source = source
        self.staged = False

    def at(self, index: Index, body: Body) -> Ref:
        """The value, from memory or from the buffer."""
        if self.staged:
            return super().at(index, body)
        body.fused_loads.append(self)
        return body.at(self.source, index)

    def raw(self, index: Index, body: Body) -> Ref:
        """The bits, from memory or from the buffer."""
        if self.staged:
            return super().raw(index, body)
        body.fused_loads.append(self)
        return body.raw(self.source, index)


def _load_scalar(access: Access, mask: Tile | None, other: Tile | None, op: Op) -> None:
    lowering, elem = access.lowering, ELEMS[op.result.type.elem]
    start = "0" if other is None else _bits(lowering, other)
    name = lowering.variable(elem.storage, start)
    truth = " != 0" if op.result.type.elem == "i1" else ""

    def on(body: Body, index: Index) -> None:
        body.do(f"{name} = ", *access.element(body, index), truth, ";")

    masked(access, mask, on, None)
    text = lowering.declare(elem.carried, elem.load(name)) if elem.narrow else name
    lowering.env[op.result] = Uniform(op.result.type, text)


def _bits(lowering: Lowering, tile: Tile) -> str:
    body = lowering.body()
    ref = body.raw(tile, ())
    lowering.add_nest([], body)
    return ref.text


def store(lowering: Lowering, op: Op) -> None:
    """Write a tile to memory."""
    access = Access(lowering, op, op.operands[0], "store")
    value = lowering.tile(op.operands[1])
    mask = lowering.tile(op.operands[2]) if len(op.operands) > 2 else None

    def on(body: Body, index: Index) -> None:
        bits = body.raw(value, index)
        body.do(*access.element(body, index), " = ", bits, ";")

    loads = _fused_loads(access, mask, on)
    if loads and access.in_order():
        tests = [_disjoint(access, load.source.access) for load in loads]
        with lowering.scope(f"if ({' && '.join(tests)}) "):
            masked(access, mask, on, None)
        with lowering.scope("else "):
            _stage(lowering, loads)
            masked(access, mask, on, None)
        return
    _stage(lowering, loads)
    masked(access, mask, on, None)


def _stage(lowering: Lowering, loads: list[FusedLoad]) -> None:
    """Finish loads before a store that may overwrite their memory."""
    for load in loads:
        lowering.store(load.source, load.buffer)
        load.staged = True


def _fused_loads(access: Access, mask: Tile | None, on: Lane) -> list[FusedLoad]:
    """The fused loads among a store's value, mask and addresses."""
    body = access.lowering.body()
    _, index = access.lowering.index(access.shape)
    on(body, index)
    if mask is not None:
        body.at(mask, index)
    found: list[FusedLoad] = []
    for tile in body.fused_loads:
        if isinstance(tile, FusedLoad) and tile not in found:
            found.append(tile)
    return found


def _disjoint(store: Access, load: Access) -> str:
    """C text: whether storing a tile element by element cannot change what a load still reads."""
    lowering = store.lowering
    names = []
    for access in (store, load):
        body = lowering.body()
        base, offset = access.tile.address((ZERO,), body)
        pointer = body.let("char *", base, f" + {access.elem.size} * (", offset, ")")
        lowering.add_nest([], body)
        names.append(pointer.text)
    size = max(store.elem.size, load.elem.size) * store.shape[0]
    same = f"{names[0]} == {names[1]} || " if store.elem.size == load.elem.size else ""
    return f"({same}tz_apart({names[0]}, {names[1]}, {size}))"


# By MLIR's enum values of atomic_rmw_op and of the memory semantics.
_FETCH = {1: "and", 2: "or", 3: "xor", 4: "add"}
_FADD, _XCHG = 5, 10
_KEEP = {6: (">", False), 7: ("<", False), 8: (">", True), 9: ("<", True)}  # sign, unsigned
_ORDERS = {
    1: "__ATOMIC_RELAXED",
    2: "__ATOMIC_ACQUIRE",
    3: "__ATOMIC_RELEASE",
    4: "__ATOMIC_ACQ_REL",
}


def atomic_rmw(lowering: Lowering, op: Op) -> None:
    """Read, modify and write; the result is the old value."""
    value, what = lowering.tile(op.operands[1]), op.integer("atomic_rmw_op")
    order, elem = _ORDERS[op.integer("sem")], ELEMS[op.result.type.elem]
    mask = lowering.tile(op.operands[2]) if len(op.operands) > 2 else None

    def lane(body: Body, index: Index) -> tuple[str, str]:
        if what == _XCHG:
            return "TZ_ATOMIC_XCHG(", f", {body.raw(value, index).text}, {order})"
        new = body.at(value, index).text
        if what in _FETCH:
            return f"__atomic_fetch_{_FETCH[what]}(", f", {new}, {order})"
        if what == _FADD:
            updated = elem.store(f"{elem.load('tz_old')} + {new}")
        else:
            sign, is_unsigned = _KEEP[what]
            cast = f"({unsigned(elem.name)})" if is_unsigned else ""
            updated = f"{cast}tz_old {sign} {cast}{new} ? tz_old : {new}"
        return "TZ_ATOMIC_UPDATE(", f", {updated}, {order})"

    _atomic(lowering, op, mask, lane)


def atomic_cas(lowering: Lowering, op: Op) -> None:
    """Compare and swap; the result is the old value."""
    expected, desired = (lowering.tile(v) for v in op.operands[1:3])

    def lane(body: Body, index: Index) -> tuple[str, str]:
        old, new = body.raw(expected, index), body.raw(desired, index)
        return "TZ_ATOMIC_CAS(", f", {old.text}, {new.text}, {_ORDERS[op.integer('sem')]})"

    _atomic(lowering, op, None, lane)


def _atomic(
    lowering: Lowering,
    op: Op,
    mask: Tile | None,
    lane: Callable[[Body, Index], tuple[str, str]],
) -> None:
    """One atomic call per lane, in order; `lane` gives the C text before and after the address."""
    lowering.include("atomics.h")
    access = Access(lowering, op, op.operands[0], "atomic")
    access.ordered = True
    type_, elem = op.result.type, ELEMS[op.result.type.elem]
    name = lowering.variable(elem.storage, "0") if not type_.shape else ""
    buffer = lowering.buffer(type_) if type_.shape else None

    def keep(body: Body, index: Index, *parts: str | Poly | Ref) -> None:
        if buffer is None:
            body.do(f"{name} = ", *parts, ";")
        else:
            body.do(buffer, "[", flat(type_.shape, index), "] = ", *parts, ";")

    def on(body: Body, index: Index) -> None:
        head, tail = lane(body, index)
        keep(body, index, f"{head}&", *access.element(body, index), tail)

    def off(body: Body, index: Index) -> None:
        keep(body, index, "0")

    loops, index = lowering.index(access.shape)
    if mask is None:
        body = lowering.body()
        on(body, index)
        lowering.add_nest(loops, body, simd=False)
    else:
        _branches(access, mask, on, off, loops, index)
    if buffer is not None:
        lowering.env[op.result] = Stored(type_, buffer)
        return
    text = lowering.declare(elem.carried, elem.load(name)) if elem.narrow else name
    lowering.env[op.result] = Uniform(type_, text)


def atomic_load(lowering: Lowering, op: Op) -> None:
    """Atomic load."""
    order = _ORDERS[op.integer("sem")]
    mask = lowering.tile(op.operands[1]) if len(op.operands) > 1 else None
    _atomic(lowering, op, mask, lambda body, index: ("TZ_ATOMIC_LOAD(", f", {order})"))


def atomic_store(lowering: Lowering, op: Op) -> None:
    """Atomic store."""
    access = Access(lowering, op, op.operands[0], "atomic")
    access.ordered = True
    lowering.include("atomics.h")
    value, order = lowering.tile(op.operands[1]), _ORDERS[op.integer("sem")]
    mask = lowering.tile(op.operands[2]) if len(op.operands) > 2 else None

    def on(body: Body, index: Index) -> None:
        bits = body.raw(value, index)
        body.do("TZ_ATOMIC_STORE(&", *access.element(body, index), f", {bits.text}, {order});")

    masked(access, mask, on, None)


def atomic_poll(lowering: Lowering, op: Op) -> None:
    """Wait until memory has a value, or until a timeout in nanoseconds, which all lanes share."""
    wanted, order = lowering.tile(op.operands[1]), _ORDERS[op.integer("sem")]
    lowering.include("atomics.h")
    limit = lowering.scalar(op.operands[2]) if len(op.operands) > 2 else "-1"
    until = lowering.declare("int64_t", f"tz_deadline({limit})")

    def lane(body: Body, index: Index) -> tuple[str, str]:
        return "TZ_ATOMIC_POLL(", f", {body.raw(wanted, index).text}, {until}, {order})"

    _atomic(lowering, op, None, lane)


HANDLERS = {
    "tt.load": load,
    "tt.store": store,
    "tt.atomic_rmw": atomic_rmw,
    "tt.atomic_cas": atomic_cas,
    "tt.atomic_load": atomic_load,
    "tt.atomic_store": atomic_store,
    "tt.atomic_poll": atomic_poll,
}
