"""Loops, branches, calls and blocks.

A value carried out of a loop or branch gets a slot: a C variable for a scalar, a buffer for a tile.
A pointer or index tile that a loop advances by the same amount in every lane gets a scalar distance
instead, so that its addresses stay polynomials. Calls are inlined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tzero.cpu.lower.code import Buffer
from tzero.cpu.lower.elems import ELEMS, unsigned
from tzero.cpu.lower.poly import Poly, Sym, flat
from tzero.cpu.lower.tiles import INDEX_BYTES, Body, Index, Ref, Stored, Tile, Uniform
from tzero.cpu.ttir import Block, Op, Type, Value

if TYPE_CHECKING:
    from tzero.cpu.lower.lowering import Lowering


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a carried value lives: a C variable, or a buffer."""

    type: Type
    name: str = ""
    buffer: Buffer | None = None

    def tile(self) -> Tile:
        """The value as a tile."""
        if self.buffer is not None:
            return Stored(self.type, self.buffer)
        return Uniform(self.type, self.name)


@dataclass(frozen=True, slots=True)
class Exit:
    """Where `tt.return` jumps in an inlined function; the kernel itself has none."""

    label: str
    slots: list[Slot]


def new_slot(lowering: Lowering, type_: Type) -> Slot:
    """A slot without a value."""
    if type_.shape:
        return Slot(type_, buffer=lowering.buffer(type_))
    return Slot(type_, lowering.variable(ELEMS[type_.elem].carried))


def assign(lowering: Lowering, slots: Sequence[Slot], tiles: Sequence[Tile]) -> None:
    """Assign all slots simultaneously: the new values may read the old ones."""
    scalars: list[tuple[str, str]] = []
    waiting: list[_Assignment] = []
    for slot, tile in zip(slots, tiles, strict=True):
        if slot.buffer is None:
            assert isinstance(tile, Uniform), "a scalar slot takes a uniform value"
            ctype = ELEMS[slot.type.elem].carried
            scalars.append((slot.name, lowering.declare(ctype, tile.text, prefix="y")))
        elif not (isinstance(tile, Stored) and tile.buffer is slot.buffer):
            waiting.append(_Assignment.of(lowering, slot.buffer, tile))
    while waiting:
        ready = [
            a
            for a in waiting
            if a.in_place and not any(a.buffer in b.reads for b in waiting if b is not a)
        ]
        if ready:
            lowering.store(ready[0].tile, ready[0].buffer)
            waiting.remove(ready[0])
        else:  # a cycle: copy one value to a temporary buffer
            first = waiting.pop(0)
            copy = lowering.store(first.tile, lowering.buffer(first.tile.type))
            waiting.append(_Assignment.of(lowering, first.buffer, copy))
    for name, value in scalars:
        lowering.emit(f"{name} = {value};")


def fits_in_place(lowering: Lowering, buffer: Buffer, tile: Tile) -> bool:
    """Whether a tile may be stored into a buffer that it also reads."""
    return _Assignment.of(lowering, buffer, tile).in_place


@dataclass(frozen=True, slots=True, eq=False)
class _Assignment:
    """A tile to store in a buffer, the buffers that computing it reads, and whether it may
    overwrite the buffer element by element."""

    buffer: Buffer
    tile: Tile
    reads: frozenset[Buffer]
    in_place: bool

    @staticmethod
    def of(lowering: Lowering, buffer: Buffer, tile: Tile) -> _Assignment:
        _, index = lowering.index(tile.type.shape)
        body = lowering.body()
        body.raw(tile, index)
        here = flat(tile.type.shape, index)
        in_place = all(at == here for read, at in body.reads if read is buffer)
        return _Assignment(buffer, tile, frozenset(b for b, _ in body.reads), in_place)


class _Moved(Tile):
    """A tile plus a distance that is the same for all elements and grows in each iteration."""

    def __init__(self, start: Tile, distance: str) -> None:
        super().__init__(start.type, start.cost, depth=start.depth + 1)
        self.start, self.distance = start, distance
        self.item = ELEMS[start.type.pointee].size if start.type.elem == "ptr" else 0

    def at(self, index: Index, body: Body) -> Ref:
        """The sum, in the element type's arithmetic."""
        start = body.at(self.start, index)
        if self.item:
            return body.let("char *", start, f" + {self.item} * {self.distance}")
        wide = unsigned(self.type.elem)
        return body.let(
            self.elem.carried,
            f"({self.elem.carried})(({wide})",
            start,
            f" + ({wide}){self.distance})",
        )

    def linear(self, index: Index, body: Body) -> Poly:
        """The start's polynomial plus the distance."""
        return self.start.linear(index, body) + Poly.of(Sym(self.distance))

    def address(self, index: Index, body: Body) -> tuple[Ref, Poly]:
        """The start's address plus the distance."""
        base, offset = self.start.address(index, body)
        return base, offset + Poly.of(Sym(self.distance))


def _step(arg: Value, result: Value, block: Block) -> Value | None:
    """What a loop adds to a tile in each iteration, if it only adds a uniform value."""
    op = result.op
    if op is None or op.block is not block or op.name not in ("tt.addptr", "arith.addi"):
        return None
    if not arg.type.shape or ELEMS[arg.type.elem].size < INDEX_BYTES or arg not in op.operands:
        return None
    step = op.operands[1] if op.operands[0] is arg else op.operands[0]
    return step if step is not arg and _is_uniform(step) else None


def _is_uniform(value: Value) -> bool:
    """Whether a value is a splat or a constant, before it has been lowered."""
    return value.op is not None and value.op.name in ("tt.splat", "arith.constant")


def for_(lowering: Lowering, op: Op) -> None:
    """A counted loop."""
    block = op.regions[0][0]
    counter, args = block.args[0], block.args[1:]
    ends = block.ops[-1].operands
    low, high, by = (lowering.scalar(v) for v in op.operands[:3])
    slots: list[Slot] = []
    moved: list[tuple[str, Value]] = []
    carried: list[Value] = []
    for arg, start, end, result in zip(args, op.operands[3:], ends, op.results, strict=True):
        step = _step(arg, end, block)
        if step is not None and not isinstance(lowering.tile(start), Uniform):
            distance = lowering.variable("int64_t", "0")
            moved.append((distance, step))
            tile: Tile = _Moved(lowering.tile(start), distance)
        else:
            slot = new_slot(lowering, arg.type)
            _start(lowering, slot, lowering.tile(start))
            slots.append(slot)
            carried.append(end)
            tile = slot.tile()
        lowering.env[arg] = lowering.env[result] = tile
    ctype = ELEMS[counter.type.elem].carried
    cast = f"({unsigned(counter.type.elem)})" if op.flag("unsignedCmp") else ""
    turn = lowering.names.fresh("t")
    head = f"for (int64_t {turn} = {cast}{low}; {turn} < (int64_t){cast}{high}; {turn} += {by}) "
    with lowering.around_loop(op), lowering.scope(head, loops=True):
        name = lowering.declare(ctype, f"({ctype}){turn}")
        lowering.env[counter] = Uniform(counter.type, name)
        lowering.ops(block.ops[:-1])
        # A step may be a carried value itself, so read it before the slots change.
        steps = [lowering.declare("int64_t", lowering.scalar(step)) for _, step in moved]
        assign(lowering, slots, [lowering.tile(v) for v in carried])
        for (distance, _), by_turn in zip(moved, steps, strict=True):
            lowering.emit(f"{distance} += {by_turn};")


def _start(lowering: Lowering, slot: Slot, tile: Tile) -> None:
    if slot.buffer is not None:
        lowering.store(tile, slot.buffer)
    else:
        assert isinstance(tile, Uniform)
        lowering.emit(f"{slot.name} = {tile.text};")


def if_(lowering: Lowering, op: Op) -> None:
    """A branch, with results from either side."""
    slots = [new_slot(lowering, r.type) for r in op.results]
    heads = [f"if ({lowering.scalar(op.operands[0])}) ", "else "]
    for head, region in zip(heads, op.regions, strict=True):
        if not region:
            continue
        with lowering.scope(head):
            block = region[0]
            lowering.ops(block.ops[:-1])
            assign(lowering, slots, [lowering.tile(v) for v in block.ops[-1].operands])
    for slot, result in zip(slots, op.results, strict=True):
        lowering.env[result] = slot.tile()


def while_(lowering: Lowering, op: Op) -> None:
    """A loop whose condition is computed in its first region."""
    before, after = op.regions[0][0], op.regions[1][0]
    starts = [new_slot(lowering, v.type) for v in before.args]
    for slot, arg, value in zip(starts, before.args, op.operands, strict=True):
        _start(lowering, slot, lowering.tile(value))
        lowering.env[arg] = slot.tile()
    ends = [new_slot(lowering, v.type) for v in op.results]
    for slot, arg, result in zip(ends, after.args, op.results, strict=True):
        lowering.env[arg] = lowering.env[result] = slot.tile()
    with lowering.scope("for (;;) ", loops=True):
        lowering.ops(before.ops[:-1])
        condition = before.ops[-1]
        go = lowering.declare("_Bool", lowering.scalar(condition.operands[0]))
        assign(lowering, ends, [lowering.tile(v) for v in condition.operands[1:]])
        lowering.emit(f"if (!{go}) break;")
        lowering.ops(after.ops[:-1])
        assign(lowering, starts, [lowering.tile(v) for v in after.ops[-1].operands])


def lower_blocks(lowering: Lowering, blocks: list[Block]) -> None:
    """Lower blocks in order; jumps between them become gotos."""
    lowering.labels.append({})
    for block in blocks[1:]:
        slots = [new_slot(lowering, v.type) for v in block.args]
        lowering.labels[-1][block.label] = (lowering.names.fresh("block"), slots)
        for slot, arg in zip(slots, block.args, strict=True):
            lowering.env[arg] = slot.tile()
    for block in blocks:
        if block is not blocks[0]:
            lowering.emit(f"{lowering.labels[-1][block.label][0]}:;")
        lowering.ops(block.ops)
    lowering.labels.pop()


def inline_blocks(lowering: Lowering, blocks: list[Block], args: Sequence[Tile]) -> list[Tile]:
    """Lower the blocks of a function or region in place; returns the values they return."""
    for arg, tile in zip(blocks[0].args, args, strict=True):
        lowering.env[arg] = tile
    if len(blocks) == 1:
        lowering.ops(blocks[0].ops[:-1])
        return [lowering.tile(v) for v in blocks[0].ops[-1].operands]
    ends = next(b.ops[-1] for b in blocks if b.ops[-1].name.endswith("return"))
    slots = [new_slot(lowering, v.type) for v in ends.operands]
    lowering.exits.append(Exit(lowering.names.fresh("exit"), slots))
    lower_blocks(lowering, blocks)
    lowering.emit(f"{lowering.exits.pop().label}:;")
    return [slot.tile() for slot in slots]


def call(lowering: Lowering, op: Op) -> None:
    """A call of a device function, inlined."""
    callee = lowering.module.functions[op.symbol("callee")]
    args = [lowering.tile(v) for v in op.operands]
    lowering.calls.append(op)
    results = inline_blocks(lowering, callee.regions[0], args)
    lowering.calls.pop()
    lowering.env.update(zip(op.results, results, strict=True))


def return_(lowering: Lowering, op: Op) -> None:
    """The end of a function."""
    if not lowering.exits:
        lowering.emit("return;")
        return
    exit_ = lowering.exits[-1]
    assign(lowering, exit_.slots, [lowering.tile(v) for v in op.operands])
    lowering.emit(f"goto {exit_.label};")


def _jump(lowering: Lowering, label: str, values: Sequence[Value]) -> None:
    target, slots = lowering.labels[-1][label]
    assign(lowering, slots, [lowering.tile(v) for v in values])
    lowering.emit(f"goto {target};")


def br(lowering: Lowering, op: Op) -> None:
    """A jump."""
    _jump(lowering, op.successors[0], op.operands)


def cond_br(lowering: Lowering, op: Op) -> None:
    """A jump to either of two blocks."""
    (condition,), yes, no = op.segments()
    for head, label, values in (
        (f"if ({lowering.scalar(condition)}) ", op.successors[0], yes),
        ("else ", op.successors[1], no),
    ):
        with lowering.scope(head):
            _jump(lowering, label, values)


def ignore(lowering: Lowering, op: Op) -> None:
    """Hints and barriers, which need no code: one thread runs a whole program."""


HANDLERS = {
    "scf.for": for_,
    "scf.if": if_,
    "scf.while": while_,
    "tt.call": call,
    "tt.return": return_,
    "tt.map_elementwise.return": return_,
    "tt.reduce.return": return_,
    "tt.scan.return": return_,
    "cf.br": br,
    "cf.cond_br": cond_br,
    "llvm.intr.assume": ignore,
    "gpu.barrier": ignore,
    "ttg.barrier": ignore,
    "ttg.local_barrier": ignore,
    "tt.grid_dependency_wait": ignore,
    "tt.grid_dependency_launch_dependents": ignore,
}
