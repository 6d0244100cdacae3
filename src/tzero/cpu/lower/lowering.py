"""Walks the operations of a kernel and assembles its C text.

Enters: a parsed module, and whether accesses are checked. Leaves: `Lowered`, the C text and what
the launcher needs. Each family of operations has its handlers in its own module; this one holds
what all of them share and must not know single operations.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tzero.cpu.lower import code, control, debug, dot, memory, reduce, shape
from tzero.cpu.lower.code import Buffer, Line, Scope, Stmt
from tzero.cpu.lower.elementwise import elementwise
from tzero.cpu.lower.elems import ELEMS, FP8, literal
from tzero.cpu.lower.poly import ZERO, Loop, Poly, flat
from tzero.cpu.lower.schedule import DIVISIONS, can_defer_to, first_reader, schedule
from tzero.cpu.lower.tiles import Body, Deferred, Index, Names, Ref, Stored, Tile, Uniform, nest
from tzero.cpu.ttir import Block, Location, Module, Op, Type, Value, blocks
from tzero.errors import UnsupportedOperation

Handler = Callable[["Lowering", Op], None]

HANDLERS: dict[str, Handler] = {
    **shape.HANDLERS,
    **memory.HANDLERS,
    **reduce.HANDLERS,
    **dot.HANDLERS,
    **control.HANDLERS,
    **debug.HANDLERS,
}


MAX_COST = 250
"""A tile that costs more is always stored, so that C expressions stay bounded."""
MAX_DEPTH = 40
"""So is a deeper one: each level takes a few Python stack frames."""


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the source where a check can stop the program."""

    kind: str
    message: str
    file: str
    line: int
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A kernel as C text, and what the launcher needs to call it."""

    name: str
    source: str
    params: list[str]
    scratch: int
    work: int
    sites: list[Site]
    unchecked: list[Location]


class Lowering:
    """State of one kernel's lowering. Handlers read operands with `tile` and set results with
    `bind`."""

    def __init__(self, module: Module, check: bool) -> None:
        self.module = module
        self.check = check
        self.kernel = module.functions[module.entry]
        self.names = Names()
        self.env: dict[Value, Tile] = {}
        self.stmts: list[Stmt] = []  # where statements are added now
        self.sites: list[Site] = []
        self.headers = ["kernel.h"]
        self.stored: set[Value] = set()  # values to store when they are defined
        self.exits: list[control.Exit] = []  # of the functions being inlined
        self.calls: list[Op] = []  # that are being inlined, the outermost first
        self.labels: list[dict[str, tuple[str, list[control.Slot]]]] = []  # blocks in scope
        self.blocks: dict[Value, Block] = {}  # block arguments: their block
        self.unchecked: list[Location] = []  # accesses that checked mode cannot check
        self.work = 0
        self.staged: dict[tuple[Value, int], Stored] = {}  # operands staged before a loop
        self.deferred: dict[int, list[Deferred]] = {}  # by the id of the reader
        self.assumed: set[str] | None = None  # see with_consecutive_indices
        for function in module.functions.values():
            self.stored |= schedule(function.regions[0])
            for block in blocks(function):
                self.blocks.update((arg, block) for arg in block.args)

    # -- reading -------------------------------------------------------------------------------

    def tile(self, value: Value) -> Tile:
        """The tile of a value."""
        return self.env[value]

    def scalar(self, value: Value) -> str:
        """C text of a scalar or of a uniform tile."""
        tile = self.env[value]
        if not isinstance(tile, Uniform):
            raise TypeError(f"{value.name} is not uniform")
        return tile.text

    # -- writing -------------------------------------------------------------------------------

    def emit(self, *parts: str | Poly | Buffer) -> None:
        """Add a statement."""
        self.stmts.append(Line(parts))

    def declare(self, ctype: str, *parts: str | Poly | Buffer, prefix: str = "s") -> str:
        """Add a C constant and return its name."""
        name = self.names.fresh(prefix)
        self.emit(f"{ctype} const {name} = ", *parts, ";")
        return name

    def variable(self, ctype: str, start: str = "") -> str:
        """Add a C variable and return its name."""
        name = self.names.fresh("v")
        self.emit(f"{ctype} {name}{' = ' + start if start else ''};")
        return name

    @contextlib.contextmanager
    def scope(self, *head: str, loops: bool = False) -> Iterator[None]:
        """Statements emitted inside go between `head {` and `}`."""
        inner: list[Stmt] = []
        self.stmts.append(Scope(head, inner, loops))
        with self.into(inner):
            yield

    @contextlib.contextmanager
    def into(self, target: list[Stmt]) -> Iterator[None]:
        """Statements emitted inside go to `target`."""
        outer, self.stmts = self.stmts, target
        try:
            yield
        finally:
            self.stmts = outer

    def buffer(self, type_: Type) -> Buffer:
        """Memory for a tile."""
        elem = ELEMS[type_.elem]
        return Buffer(self.names.fresh("b"), elem.storage, elem.size, type_.numel)

    def body(self) -> Body:
        """An empty loop body."""
        if self.assumed is None:
            return Body(self.names)
        return Body(self.names, assume_consecutive=True, consecutive=self.assumed)

    def index(self, shape_: Sequence[int]) -> tuple[list[Loop], Index]:
        """New loops over a shape, and the index they form; dimensions of size one have no loop."""
        loops = [Loop(self.names.fresh("i"), n) for n in shape_]
        index = tuple(Poly.of(loop) if loop.extent > 1 else ZERO for loop in loops)
        return [loop for loop in loops if loop.extent > 1], index

    def add_nest(self, loops: Sequence[Loop], body: Body, simd: bool = True) -> None:
        """Add loops around a body."""
        self.stmts += nest(loops, body, simd)

    def store(self, tile: Tile, buffer: Buffer | None = None) -> Stored:
        """Put a tile into a buffer: the given one, its own, or a new one."""
        if buffer is None:
            if isinstance(tile, Stored) and tile.row_major:
                return tile
            buffer = self.buffer(tile.type)
        loops, index = self.index(tile.type.shape)
        body = self.body()
        value = body.raw(tile, index)
        body.do(buffer, "[", flat(tile.type.shape, index), "] = ", value.text, ";")
        self.add_nest(loops, body)
        return Stored(tile.type, buffer)

    def stored_for(self, op: Op, value: Value) -> Stored:
        """Store a value's tile. Later readers share the buffer, unless they are in another block
        and may run without `op`."""
        stored = self.store(self.tile(value))
        if value.op is not None and value.op.block is op.block:
            self.env[value] = stored
        return stored

    def bind(self, value: Value, tile: Tile) -> None:
        """Set the tile of a result; a scalar, or a value scheduled for storing, is computed now."""
        if isinstance(tile, (Uniform, Stored)):
            self.env[value] = tile
        elif not tile.type.shape or _uniform(tile):
            body = self.body()
            ref = body.at(tile, (ZERO,) * len(tile.type.shape))
            self.add_nest([], body)
            self.env[value] = Uniform(value.type, ref.text)
        else:
            keep = value in self.stored or tile.cost > MAX_COST or tile.depth > MAX_DEPTH
            self.env[value] = self._kept(value, tile) if keep else tile

    def _kept(self, value: Value, tile: Tile) -> Stored:
        """Store a tile. For quotients and remainders of indices, add a run-time test whether they
        are consecutive."""
        reader = first_reader(value, self.stored)
        if reader is not None and can_defer_to(value, reader):
            return self.defer(tile, reader)
        stored = self.store(tile)
        if value.op is None or value.op.name not in DIVISIONS or len(value.type.shape) != 1:
            return stored
        consecutive = self.variable("_Bool", "1")
        loops, (at,) = self.index(value.type.shape)
        body = self.body()
        first = body.let("int64_t", stored.buffer, "[0]")
        body.do(f"{consecutive} &= ", stored.buffer, "[", at, "] == ", first, " + ", at, ";")
        self.add_nest(loops, body, simd=False)
        return Stored(stored.type, stored.buffer, consecutive=consecutive)

    def defer(self, tile: Tile, reader: Op) -> Stored:
        """A tile that `reader` will store as it reads it."""
        deferred = Deferred(tile, self.buffer(tile.type))
        self.deferred.setdefault(id(reader), []).append(deferred)
        return deferred

    def finish_deferred(self, reader: Op) -> None:
        """Record that `reader` has stored its deferred tiles."""
        for deferred in self.deferred.pop(id(reader), []):
            deferred.source = None

    def with_consecutive_indices(self, build: Callable[[], None]) -> None:
        """Add what `build` emits. If stored index tiles may be consecutive, add a second, faster
        version for when they are, and a branch on their run-time tests."""
        fast: list[Stmt] = []
        self.assumed = set()
        try:
            with self.into(fast):
                build()
            tests = sorted(self.assumed)
        finally:
            self.assumed = None
        if not tests:
            self.stmts += fast
            return
        self.stmts.append(Scope((f"if ({' && '.join(tests)}) ",), fast))
        with self.scope("else "):
            build()

    def site(self, op: Op, kind: str, message: str, argument: str = "") -> int:
        """Register a place where a check can stop the program."""
        self.sites.append(Site(kind, message, op.location.file, op.location.line, argument))
        return len(self.sites) - 1

    def unsupported(self, op: Op, why: str) -> UnsupportedOperation:
        """The error for an operation that this backend does not support."""
        return UnsupportedOperation(
            operation=op.name,
            kernel=self.module.entry,
            file=op.location.file,
            line=op.location.line,
            advice=why,
        )

    def include(self, header: str) -> None:
        """Have the C text include a runtime header."""
        if header and header not in self.headers:
            self.headers.append(header)

    @contextlib.contextmanager
    def around_loop(self, loop: Op) -> Iterator[None]:
        """Stage loop-invariant operands of products before the loop; undone after it."""
        before = dict(self.staged)
        dot.stage_ahead(self, loop)
        yield
        self.staged = before

    # -- walking -------------------------------------------------------------------------------

    def op(self, op: Op) -> None:
        """Lower one operation."""
        for value in op.results:
            if value.type.elem not in ELEMS:
                raise self.unsupported(op, f"The CPU backend does not support {value.type} values.")
        handler = HANDLERS.get(op.name)
        if handler is not None:
            handler(self, op)
            return
        if op.name == "arith.constant":
            self.env[op.result] = _constant(self, op)
            return
        found = elementwise(op)
        if found is None:
            raise self.unsupported(op, debug.why_unsupported(op))
        self.include(found.header)
        tiles = [self.tile(v) for v in op.operands]
        self.bind(op.result, found.tile(op.result.type, tiles, found.text, found.cost))

    def ops(self, ops: Sequence[Op]) -> None:
        """Lower operations in order."""
        for op in ops:
            self.op(op)


def _uniform(tile: Tile) -> bool:
    return bool(tile.operands) and all(isinstance(t, Uniform) for t in tile.operands)


def _constant(lowering: Lowering, op: Op) -> Uniform:
    text, type_ = op.attrs["value"], op.result.type
    value = text.rpartition(" : ")[0] if " : " in text else text
    if value.startswith("dense<"):
        value = value[len("dense<") : value.rindex(">")]
    if value.startswith("["):
        why = "Constants whose elements differ are not supported; load them from memory."
        raise lowering.unsupported(op, why)
    return Uniform(type_, literal(value, type_.elem))


_PARAM_TAGS = {**dict.fromkeys(FP8, "i8"), "index": "i64"}

_SOURCE = """\
/* {name}: generated from TTIR by tzero.cpu */
{includes}
struct args {{
{fields}
}};
static inline void body(const tz_launch *launch, const int32_t *pid, char *scratch{params}) {{
  {declarations}
{statements}
}}
TZ_EXPORT void tz_kernel(const tz_launch *launch, int64_t first, int64_t last, void *scratch) {{
  const struct args a = *(const struct args *)launch->args;
  const int64_t nx = launch->grid[0], ny = launch->grid[1];
  int32_t pid[3] = {{first % nx, first / nx % ny, first / nx / ny}};
  for (int64_t k = first; k < last; k++) {{
    {stop}body(launch, pid, scratch{values});
    if (++pid[0] == nx) {{
      pid[0] = 0;
      if (++pid[1] == ny) {{
        pid[1] = 0;
        pid[2]++;
      }}
    }}
  }}
}}
"""


def lower(module: Module, check: bool = False) -> Lowered:
    """Lower a module's kernel to C."""
    lowering = Lowering(module, check)
    entry: Block = lowering.kernel.regions[0][0]
    names = [f"p{k}" for k in range(len(entry.args))]
    for value, name in zip(entry.args, names, strict=True):
        if value.type.elem not in ELEMS:
            raise UnsupportedOperation(
                operation="tt.func",
                kernel=module.entry,
                file=lowering.kernel.location.file,
                line=lowering.kernel.location.line,
                advice=f"Parameter {value.name.lstrip('%')} has type {value.type}.",
            )
        elem = ELEMS[value.type.elem]
        text = lowering.declare(elem.carried, elem.load(name)) if elem.narrow else name
        lowering.env[value] = Uniform(value.type, text)
    control.lower_blocks(lowering, lowering.kernel.regions[0])
    code.collapse(lowering.stmts)
    place = code.place(lowering.stmts)
    types = [ELEMS[v.type.elem] for v in entry.args]
    pairs = list(zip(types, names, strict=True))
    source = _SOURCE.format(
        name=module.entry.replace("*/", "* /"),
        includes="\n".join(f'#include "{h}"' for h in lowering.headers),
        fields="\n".join(f"  {t.storage} {n};" for t, n in pairs) or "  char none;",
        params="".join(f", {t.storage} const {n}" for t, n in pairs),
        values="".join(f", a.{n}" for n in names),
        declarations="\n  ".join(place.declarations) or ";",
        statements="\n".join(code.text(lowering.stmts, place)),
        stop="if (tz_stopped(launch)) return;\n    " if lowering.sites else "",
    )
    tags = [_PARAM_TAGS.get(v.type.elem, v.type.elem) for v in entry.args]
    work = code.work(lowering.stmts) + lowering.work
    return Lowered(
        module.entry, source, tags, place.scratch, work, lowering.sites, lowering.unchecked
    )


__all__ = ["Lowered", "Lowering", "Ref", "Site", "lower"]
