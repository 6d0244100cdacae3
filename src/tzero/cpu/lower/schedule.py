"""Which values are stored in a buffer, and which loads may be delayed to their readers.

Enters: a function's blocks. Leaves: the set of values to store when they are defined. A value with
one reader is computed in that reader's loop. An expensive value that would be computed several
times (several readers, a deeper loop, once per row of a broadcast) is computed once and stored.
"""

from __future__ import annotations

from tzero.cpu.lower.elementwise import elementwise
from tzero.cpu.ttir import Block, Op, Value, walk

VIEWS = {
    "tt.splat",
    "tt.broadcast",
    "tt.expand_dims",
    "tt.trans",
    "tt.reshape",
    "tt.join",
    "tt.split",
    "tt.bitcast",
    "arith.bitcast",
    "tt.make_range",
    "tt.addptr",
}
DIVISIONS = {"arith.remsi", "arith.remui", "arith.divsi", "arith.divui"}
"""Always stored: they become addresses, and on stored indices a run-time test can show that the
addresses are consecutive (see `Stored.consecutive`)."""
_LINEAR = {"arith.addi", "arith.subi", "arith.muli", "arith.extsi", "arith.index_cast"}
_RUN_TIME_LOOPS = ("scf.for", "scf.while")
EXPENSIVE = 8
"""Cost from which storing beats recomputing; a load and a store cost about as much."""
EXPENSIVE_PER_ROW = 4
"""The same for a value that a broadcast would compute once per row."""


def schedule(blocks: list[Block]) -> set[Value]:
    """Values to store at their definition."""
    ops = list(walk(blocks))
    costs: dict[Value, int] = {}
    for op in ops:
        own = _own_cost(op)
        if own is not None and op.results[0].type.shape:
            total = min(own + sum(costs.get(v, 0) for v in op.operands), 1000)
            costs.update((r, total) for r in op.results)
    stored: set[Value] = set()
    sinks: dict[Value, set[int]] = {}
    for op in reversed(ops):
        if _own_cost(op) is None:
            continue
        for value in op.results:
            found, threshold = _consumers(value, op, stored, sinks)
            sinks[value] = found
            plain = value.type.elem != "ptr" and value.type.numel > 1
            if plain and (op.name in DIVISIONS or (costs[value] >= threshold and len(found) > 1)):
                stored.add(_through_views(value))
    return stored


def _through_views(value: Value) -> Value:
    """The source of a view: storing it is no more work, and its other views share it."""
    while value.op is not None and value.op.name in ("tt.broadcast", "tt.expand_dims"):
        value = value.op.operands[0]
    return value


def _own_cost(op: Op) -> int | None:
    """Cost per element; None for operations that are not computed on demand."""
    if op.name in VIEWS:
        return 0
    found = elementwise(op)
    if found is None:
        return None
    return 0 if op.name in _LINEAR else found.cost


def _consumers(
    value: Value, op: Op, stored: set[Value], sinks: dict[Value, set[int]]
) -> tuple[set[int], int]:
    """The operations that would each compute the value, and the cost from which to store it."""
    found: set[int] = set()
    threshold = EXPENSIVE
    depth = _depth(op)
    for use in value.uses:
        if use.results and use.results[0] in sinks and use.results[0] not in stored:
            found |= sinks[use.results[0]]
        else:
            found.add(id(use))
        if _depth(use) > depth:
            found.add(-1)  # every iteration of the loop would compute it
        if use.name == "tt.broadcast" and _repeats_rows(use):
            found |= {-1, id(use)}
            threshold = EXPENSIVE_PER_ROW
    return found, threshold


UNROLLED = 4
"""Longest axis for which a reduction is computed where its result is read."""

_WRITES = {
    "tt.store",
    "tt.atomic_rmw",
    "tt.atomic_cas",
    "tt.atomic_store",
    "tt.atomic_load",  # later accesses must stay after it
    "tt.atomic_poll",
    "tt.call",
}


def first_reader(value: Value, stored: set[Value]) -> Op | None:
    """The reduction that reads every element of a value once, before any other reader."""
    readers = _readers(value, stored)
    if not readers:
        return None
    reader = readers[0][1]
    shape = value.type.shape
    if reader.name != "tt.reduce" or reader.integer("axis") != len(shape) - 1:
        return None
    return reader if shape[-1] > UNROLLED else None


def can_load_in_readers(value: Value, stored: set[Value]) -> bool:
    """Whether a value's few readers may load it themselves: no write precedes them."""
    readers = _readers(value, stored)
    if not 1 <= len(readers) <= 2:
        return False
    if not all(_is_eager_reduction(op) or elementwise(op) is not None for _, op in readers):
        return False  # other readers read later, or only copy, which the load does best
    return not _memory_may_change(value, readers[-1][0] + 1)


def _is_eager_reduction(op: Op) -> bool:
    """Whether an operation is a reduction that is computed at once, not where it is read."""
    if op.name != "tt.reduce":
        return False
    short = op.operands[0].type.shape[op.integer("axis")] <= UNROLLED
    return not (short and op.results[0].type.shape)


def only_feeds_store(value: Value, stored: set[Value]) -> bool:
    """Whether a load's only reader is a store, which is also the first write after it."""
    readers = _readers(value, stored)
    if len(readers) != 1 or len(value.type.shape) != 1:
        return False
    place, op = readers[0]
    return op.name == "tt.store" and not _memory_may_change(value, place)


def can_defer_to(value: Value, reader: Op) -> bool:
    """Whether a reader in the same block may do the load: no write lies between."""
    return value.op is not None and not _memory_may_change(value, _position(reader))


def _position(op: Op) -> int:
    assert op.block is not None
    return op.block.ops.index(op)


def _memory_may_change(value: Value, end: int) -> bool:
    """Whether memory may change between a value's operation and a position in its block."""
    assert value.op is not None and value.op.block is not None
    return any(
        op.name in _WRITES or (op.regions and op.name not in ("tt.reduce", "tt.scan"))
        for op in value.op.block.ops[_position(value.op) + 1 : end]
    )


def _readers(value: Value, stored: set[Value]) -> list[tuple[int, Op]]:
    """The operations that compute a value's elements, with their positions in its block; empty if
    one is in another block or reads it through a view."""
    if value.op is None or value.op.block is None:
        return []
    block = value.op.block
    place = {id(op): k for k, op in enumerate(block.ops)}
    readers: dict[int, Op] = {}
    seen = {value}
    todo = [value]
    while todo:
        for use in todo.pop().uses:
            if use.block is not block or use.name in VIEWS:
                return []
            if elementwise(use) is None or use.result in stored:
                readers[place[id(use)]] = use
            elif use.result not in seen:
                seen.add(use.result)
                todo.append(use.result)
    return sorted(readers.items())


def _repeats_rows(op: Op) -> bool:
    source, target = op.operands[0].type.shape, op.result.type.shape
    outer = [k for k, (s, t) in enumerate(zip(source, target, strict=True)) if s < t]
    return bool(outer) and any(s > 1 for s in source[outer[0] + 1 :])


def _depth(op: Op) -> int:
    depth = 0
    block = op.block
    while block is not None and block.parent is not None:
        depth += block.parent.name in _RUN_TIME_LOOPS
        block = block.parent.block
    return depth
