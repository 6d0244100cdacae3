"""The statement tree, and the passes over it that produce C text.

Enters: statements made of C text, polynomials and buffers. Leaves: C text with nested tile loops
merged and buffers placed on the stack or in scratch memory. It must not know tiles or Triton.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tzero.cpu.lower.poly import Loop, Poly


@dataclass(eq=False, slots=True)
class Buffer:
    """Memory for one tile, private to the running program."""

    name: str
    ctype: str
    item: int
    count: int

    @property
    def nbytes(self) -> int:
        """Size, rounded up so that no two buffers share a cache line."""
        return -(-self.item * self.count // 64) * 64


Part = str | Poly | Buffer
"""A piece of a statement: C text, an index expression, or the name of a buffer."""
Parts = tuple[Part, ...]


@dataclass(eq=False, slots=True)
class Line:
    """One statement, e.g. a declaration with initialiser or a store."""

    parts: Parts


@dataclass(eq=False, slots=True)
class Nest:
    """A loop over tile indices from `low` to `high`."""

    loop: Loop
    low: Parts
    high: Parts
    body: list[Stmt]
    simd: bool = False

    @property
    def whole(self) -> bool:
        """Whether the loop runs over its full extent."""
        return self.low == ("0",) and self.high == (str(self.loop.extent),)


@dataclass(eq=False, slots=True)
class Scope:
    """`head { body }`: a run-time loop, a branch, or a plain block (empty head)."""

    head: Parts
    body: list[Stmt]
    loops: bool = False


Stmt = Line | Nest | Scope


def full(loop: Loop, body: list[Stmt], simd: bool = False) -> Nest:
    """A nest over the whole extent of a loop."""
    return Nest(loop, ("0",), (str(loop.extent),), body, simd)


def collapse(stmts: list[Stmt]) -> None:
    """Merge perfectly nested tile loops where every polynomial can use one index for both.

    Otherwise shapes such as 2x2x2x16 give loops too short to vectorise.
    """
    for stmt in stmts:
        if isinstance(stmt, Line):
            continue
        collapse(stmt.body)
        while isinstance(stmt, Nest) and stmt.whole and len(stmt.body) == 1:
            inner = stmt.body[0]
            if not isinstance(inner, Nest) or not inner.whole:
                break
            if stmt.loop.ordered or inner.loop.ordered:
                break
            if not all(_mergeable(p, stmt.loop, inner.loop) for p in _polys(inner.body)):
                break
            merged = Loop(inner.loop.name, stmt.loop.extent * inner.loop.extent)
            _rename(inner.body, {stmt.loop: Poly.of(0), inner.loop: Poly.of(merged)})
            stmt.loop, stmt.body, stmt.simd = merged, inner.body, inner.simd
            stmt.high = (str(merged.extent),)


def _mergeable(poly: Poly, outer: Loop, inner: Loop) -> bool:
    high, low = poly.factor(outer, through=False), poly.factor(inner, through=False)
    return high is not None and low is not None and high == low.scaled(inner.extent)


def _polys(stmts: Sequence[Stmt]) -> Iterator[Poly]:
    for stmt in stmts:
        for parts in _parts(stmt):
            yield from (p for p in parts if isinstance(p, Poly))
        if not isinstance(stmt, Line):
            yield from _polys(stmt.body)


def _parts(stmt: Stmt) -> list[Parts]:
    if isinstance(stmt, Line):
        return [stmt.parts]
    return [stmt.low, stmt.high] if isinstance(stmt, Nest) else [stmt.head]


def _rename(stmts: list[Stmt], changes: dict[Loop, Poly]) -> None:
    def renamed(parts: Parts) -> Parts:
        return tuple(p.substitute(changes) if isinstance(p, Poly) else p for p in parts)

    for stmt in stmts:
        if isinstance(stmt, Line):
            stmt.parts = renamed(stmt.parts)
            continue
        if isinstance(stmt, Nest):
            stmt.low, stmt.high = renamed(stmt.low), renamed(stmt.high)
        else:
            stmt.head = renamed(stmt.head)
        _rename(stmt.body, changes)


@dataclass(slots=True)
class _Lifetimes:
    """First and last time each buffer is used. A tile loop is one point in time: no iteration may
    overwrite what a later one reads. So is a run-time loop, for buffers first used before it."""

    clock: int = 0
    spans: dict[Buffer, list[int]] = field(default_factory=dict)

    def visit(self, stmts: Sequence[Stmt]) -> None:
        for stmt in stmts:
            self.clock += 1
            self._see(stmt)
            if not isinstance(stmt, Scope):
                continue
            start = self.clock
            self.visit(stmt.body)
            self.clock += 1
            if stmt.loops:
                for span in self.spans.values():
                    if span[0] < start <= span[1]:
                        span[1] = self.clock

    def _see(self, stmt: Stmt) -> None:
        for parts in _parts(stmt):
            for part in parts:
                if isinstance(part, Buffer):
                    self.spans.setdefault(part, [self.clock, self.clock])[1] = self.clock
        if isinstance(stmt, Nest):
            for inner in stmt.body:
                self._see(inner)


@dataclass(frozen=True, slots=True)
class Memory:
    """Where buffers live: C declarations for the top of the body, and scratch bytes needed."""

    declarations: list[str]
    names: dict[Buffer, str]
    scratch: int


STACK_BYTES = 192 * 1024
"""Stack for a program's tiles; the smallest platforms have thread stacks of 512 KiB."""


def place(stmts: Sequence[Stmt]) -> Memory:
    """Assign every buffer a slot; buffers with disjoint lifetimes share one."""
    lifetimes = _Lifetimes()
    lifetimes.visit(stmts)
    order = sorted(lifetimes.spans.items(), key=lambda item: item[1][0])
    slots: list[list[int]] = []  # [bytes, busy until]
    chosen: dict[Buffer, int] = {}
    for buffer, (first, last) in order:
        free = [k for k, s in enumerate(slots) if s[1] < first and s[0] == buffer.nbytes]
        if not free:
            slots.append([buffer.nbytes, last])
            free = [len(slots) - 1]
        slots[free[0]][1] = last
        chosen[buffer] = free[0]
    declarations, stack, scratch = [], 0, 0
    for k, (nbytes, _) in enumerate(slots):
        if stack + nbytes <= STACK_BYTES:
            stack += nbytes
            declarations.append(f"char m{k}[{nbytes}] TZ_ALIGNED;")
        else:
            declarations.append(
                f"char *const restrict m{k} = TZ_ASSUME_ALIGNED(scratch + {scratch});"
            )
            scratch += nbytes
    names = {b: f"(({b.ctype} *)m{k})" for b, k in chosen.items()}
    return Memory(declarations, names, scratch)


def text(stmts: Sequence[Stmt], memory: Memory, indent: int = 1) -> list[str]:
    """C lines of the statements."""
    pad = "  " * indent

    def joined(parts: Parts) -> str:
        return "".join(
            p if isinstance(p, str) else p.text() if isinstance(p, Poly) else memory.names[p]
            for p in parts
        )

    lines: list[str] = []
    for stmt in stmts:
        if isinstance(stmt, Line):
            lines.append(pad + joined(stmt.parts))
            continue
        if isinstance(stmt, Nest):
            innermost = not any(isinstance(s, Nest) for s in stmt.body)
            if stmt.simd and innermost and not stmt.loop.ordered:
                lines.append(pad + "TZ_IVDEP")
            i = stmt.loop.name
            low, high = joined(stmt.low), joined(stmt.high)
            lines.append(f"{pad}for (int64_t {i} = {low}; {i} < {high}; {i}++) {{")
        else:
            lines.append(f"{pad}{joined(stmt.head)}{{")
        lines += text(stmt.body, memory, indent + 1)
        lines.append(pad + "}")
    return lines


def stop_program(site: int, param: int = -1, offset: str = "0") -> str:
    """C text that ends the running program with a failed check at a site."""
    return f"TZ_FAIL({site}, {param}, {offset});"


def work(stmts: Sequence[Stmt]) -> int:
    """Estimated number of element operations; a run-time loop counts as eight iterations."""
    total = 0
    for stmt in stmts:
        if isinstance(stmt, Line):
            total += 1
        elif isinstance(stmt, Nest):
            total += stmt.loop.extent * work(stmt.body)
        else:
            total += work(stmt.body) * (8 if stmt.loops else 1)
    return total
