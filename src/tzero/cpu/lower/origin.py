"""Which kernel parameters a pointer may be computed from, for checked mode.

Enters: a pointer value. Leaves: indices of parameters, or None if they cannot be determined (a
pointer loaded from memory or made from an integer).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tzero.cpu.ttir import Block, Op, Value

if TYPE_CHECKING:
    from tzero.cpu.lower.lowering import Lowering

_FORWARDING = {
    "tt.addptr",
    "tt.splat",
    "tt.unsplat",
    "tt.broadcast",
    "tt.expand_dims",
    "tt.trans",
    "tt.reshape",
    "tt.bitcast",
    "tt.gather",
}


Calls = tuple[Op, ...]
"""The calls that are being inlined where a value is, the outermost first."""


def origins(lowering: Lowering, pointer: Value) -> frozenset[int] | None:
    """Indices of the parameters that a pointer may be computed from."""
    params = {value: k for k, value in enumerate(lowering.kernel.regions[0][0].args)}
    found: set[int] = set()
    seen: set[tuple[Value, Calls]] = set()
    todo = [(pointer, tuple(lowering.calls))]
    while todo:
        value, calls = todo.pop()
        if (value, calls) in seen:
            continue
        seen.add((value, calls))
        if value in params:
            found.add(params[value])
            continue
        sources = list(_sources(lowering, value, calls))
        if not sources:
            return None
        todo += sources
    return frozenset(found)


def _sources(lowering: Lowering, value: Value, calls: Calls) -> Iterator[tuple[Value, Calls]]:
    """The values that this one may be or be computed from; none if unknown."""
    if value.op is None and calls and value in _parameters(lowering, calls[-1]):
        k = _parameters(lowering, calls[-1]).index(value)
        yield calls[-1].operands[k], calls[:-1]
    elif value.op is not None and value.op.name == "tt.call":
        k = value.op.results.index(value)
        for block in _callee(lowering, value.op).regions[0]:
            if block.ops[-1].name == "tt.return":
                yield block.ops[-1].operands[k], (*calls, value.op)
    else:
        yield from ((source, calls) for source in _local(lowering, value))


def _callee(lowering: Lowering, call: Op) -> Op:
    return lowering.module.functions[call.symbol("callee")]


def _parameters(lowering: Lowering, call: Op) -> list[Value]:
    return _callee(lowering, call).regions[0][0].args


def _local(lowering: Lowering, value: Value) -> Iterator[Value]:
    """The sources in the same function."""
    if value.op is None:
        yield from _incoming(lowering, value)
    elif value.op.name in _FORWARDING:
        yield value.op.operands[0]
    elif value.op.name in ("arith.select", "tt.join", "tt.cat"):
        yield from value.op.operands[-2:]
    elif value.op.name == "tt.split":
        yield value.op.operands[0]
    elif value.op.name in ("scf.if", "scf.for", "scf.while"):
        yield from _results(value.op, value.op.results.index(value))


def _results(op: Op, k: int) -> Iterator[Value]:
    if op.name == "scf.for":
        yield op.operands[3 + k]
    if op.name == "scf.while":
        yield op.regions[0][0].ops[-1].operands[1 + k]
        return
    for region in op.regions:
        if region:
            yield region[0].ops[-1].operands[k]


def _incoming(lowering: Lowering, value: Value) -> Iterator[Value]:
    """The values passed to a block argument."""
    block = lowering.blocks[value]
    k, op = block.args.index(value), block.parent
    assert op is not None, "only kernel parameters have no parent"
    if op.name == "scf.for":
        yield op.operands[2 + k]
        yield block.ops[-1].operands[k - 1]
    elif op.name == "scf.while":
        if block is op.regions[0][0]:
            yield op.operands[k]
            yield op.regions[1][0].ops[-1].operands[k]
        else:
            yield op.regions[0][0].ops[-1].operands[1 + k]
    elif op.name == "tt.func":
        yield from _branches(op.regions[0], block, k)


def _branches(blocks: list[Block], target: Block, k: int) -> Iterator[Value]:
    for block in blocks:
        last = block.ops[-1]
        if last.name == "cf.br" and last.successors[0] == target.label:
            yield last.operands[k]
        elif last.name == "cf.cond_br":
            _, yes, no = last.segments()
            for label, values in zip(last.successors, (yes, no), strict=True):
                if label == target.label:
                    yield values[k]
