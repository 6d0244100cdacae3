"""Which lazy values are worth a buffer.

Enters: a function's blocks. Leaves: the set of values to store when they are defined. A value
that one consumer reads is computed in that consumer's loop; one that is dear and read by several
consumers, in a deeper loop, or once per row of a broadcast, is computed once and stored.
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
_LINEAR = {"arith.addi", "arith.subi", "arith.muli", "arith.extsi", "arith.index_cast"}
_RUN_TIME_LOOPS = ("scf.for", "scf.while")
DEAR = 8
"""Cost from which storing beats computing again; a load and a store cost about as much."""
ROW_DEAR = 4
"""The same for a value that a broadcast would compute once per row."""


def schedule(blocks: list[Block]) -> set[Value]:
    """Values to store at their definition."""
    ops = list(walk(blocks))
    costs: dict[Value, int] = {}
    for op in ops:
        own = _own_cost(op)
        if own is not None:
            total = min(own + sum(costs.get(v, 0) for v in op.operands), 1000)
            costs.update((r, total) for r in op.results)
    stored: set[Value] = set()
    sinks: dict[Value, set[int]] = {}
    for op in reversed(ops):
        if _own_cost(op) is None:
            continue
        for value in op.results:
            found, dear = _consumers(value, op, stored, sinks)
            sinks[value] = found
            plain = value.type.elem != "ptr" and value.type.numel > 1
            if plain and costs[value] >= dear and len(found) > 1:
                stored.add(value)
    return stored


def _own_cost(op: Op) -> int | None:
    """Cost per element, None for operations that are not lazy."""
    if op.name in VIEWS:
        return 0
    found = elementwise(op)
    if found is None:
        return None
    return 0 if op.name in _LINEAR else found.cost


def _consumers(
    value: Value, op: Op, stored: set[Value], sinks: dict[Value, set[int]]
) -> tuple[set[int], int]:
    """The consumers that would each compute the value, and from what cost that is too dear."""
    found: set[int] = set()
    dear = DEAR
    depth = _depth(op)
    for use in value.uses:
        if use.results and use.results[0] in sinks and use.results[0] not in stored:
            found |= sinks[use.results[0]]
        else:
            found.add(id(use))
        if _depth(use) > depth:
            found.add(-1)  # every turn of the loop would compute it
        if use.name == "tt.broadcast" and _repeats_rows(use):
            found |= {-1, id(use)}
            dear = ROW_DEAR
    return found, dear


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
