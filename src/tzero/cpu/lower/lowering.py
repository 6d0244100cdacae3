"""The walk from operations to tiles and statements.

Enters: a parsed module and the options that change code. Leaves: `Lowered`, the C text and what
the launcher must know. Each family of operations registers its handlers in a table here; this
module knows only what all of them share.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tzero.cpu.lower import code, control, debug, dot, memory, reduce, shape
from tzero.cpu.lower.code import Buffer, Line, Scope, Stmt
from tzero.cpu.lower.elementwise import elementwise
from tzero.cpu.lower.elems import ELEMS, literal
from tzero.cpu.lower.poly import ZERO, Loop, Poly, flat
from tzero.cpu.lower.schedule import DIVISIONS, first_reader, schedule, stays_before
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


LONGEST = 250
"""Cost from which a tile is stored whoever reads it: C expressions must not grow without end."""
DEEPEST = 40
"""Depth from which it is: asking for an element takes a few Python frames for each level."""


@dataclass(frozen=True, slots=True)
class Site:
    """A place in the source where a program can stop: kind, message, location, argument."""

    kind: str
    message: str
    file: str
    line: int
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A kernel as C, with what the launcher needs to call it."""

    name: str
    source: str
    params: list[str]
    scratch: int
    work: int
    sites: list[Site]
    unchecked: list[Location]


class Lowering:
    """State of one kernel's lowering. Handlers read operands with `tile`, and `bind` results."""

    def __init__(self, module: Module, check: bool) -> None:
        self.module = module
        self.check = check
        self.kernel = module.functions[module.entry]
        self.names = Names()
        self.env: dict[Value, Tile] = {}
        self.stmts: list[Stmt] = []
        self.sites: list[Site] = []
        self.headers = ["kernel.h"]
        self.stored: set[Value] = set()
        self.exits: list[control.Exit] = []
        self.callers: dict[Value, Value] = {}
        self.labels: list[dict[str, tuple[str, list[control.Slot]]]] = []
        self.blocks: dict[Value, Block] = {}
        self.unchecked: list[Location] = []
        self.work = 0
        self.staged: dict[tuple[Value, int], Stored] = {}
        self.deferred: dict[int, list[Deferred]] = {}
        self.assumed: set[str] | None = None
        for function in module.functions.values():
            self.stored |= schedule(function.regions[0])
            for block in blocks(function):
                self.blocks.update((arg, block) for arg in block.args)

    # -- reading -------------------------------------------------------------------------------

    def tile(self, value: Value) -> Tile:
        """What a value is."""
        return self.env[value]

    def scalar(self, value: Value) -> str:
        """C text of a scalar or of a tile whose elements are all equal."""
        tile = self.env[value]
        if not isinstance(tile, Uniform):
            raise TypeError(f"{value.name} is not uniform")
        return tile.text

    # -- writing -------------------------------------------------------------------------------

    def emit(self, *parts: str | Poly | Buffer) -> None:
        """Add a statement."""
        self.stmts.append(Line(parts))

    def declare(self, ctype: str, *parts: str | Poly | Buffer, prefix: str = "s") -> str:
        """Add a constant and return its name."""
        name = self.names.fresh(prefix)
        self.emit(f"{ctype} const {name} = ", *parts, ";")
        return name

    def variable(self, ctype: str, start: str = "") -> str:
        """Add a variable that later statements assign to."""
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
        return Body(self.names, assume_runs=True, runs=self.assumed)

    def index(self, shape_: Sequence[int]) -> tuple[list[Loop], Index]:
        """Fresh loops over a shape, and the index they make; dimensions of one have no loop."""
        loops = [Loop(self.names.fresh("i"), n) for n in shape_]
        index = tuple(Poly.of(loop) if loop.extent > 1 else ZERO for loop in loops)
        return [loop for loop in loops if loop.extent > 1], index

    def run(self, loops: Sequence[Loop], body: Body, simd: bool = True) -> None:
        """Add a loop nest."""
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
        self.run(loops, body)
        return Stored(tile.type, buffer)

    def stored_for(self, op: Op, value: Value) -> Stored:
        """A value's tile in a buffer. Later readers share it, unless they may run without `op`."""
        stored = self.store(self.tile(value))
        if value.op is not None and value.op.block is op.block:
            self.env[value] = stored
        return stored

    def bind(self, value: Value, tile: Tile) -> None:
        """Say what a result is; it is computed now if it is a scalar or scheduled for storing."""
        if isinstance(tile, (Uniform, Stored)):
            self.env[value] = tile
        elif not tile.type.shape or _uniform(tile):
            body = self.body()
            ref = body.at(tile, (ZERO,) * len(tile.type.shape))
            self.run([], body)
            self.env[value] = Uniform(value.type, ref.text)
        else:
            keep = value in self.stored or tile.cost > LONGEST or tile.depth > DEEPEST
            self.env[value] = self._kept(value, tile) if keep else tile

    def _kept(self, value: Value, tile: Tile) -> Stored:
        """A stored tile; divided indices also learn at run time whether they are consecutive."""
        reader = first_reader(value, self.stored)
        if reader is not None and stays_before(value, reader):
            return self.defer(tile, reader)
        stored = self.store(tile)
        if value.op is None or value.op.name not in DIVISIONS or len(value.type.shape) != 1:
            return stored
        run = self.variable("_Bool", "1")
        loops, (at,) = self.index(value.type.shape)
        body = self.body()
        first = body.let("int64_t", stored.buffer, "[0]")
        body.do(f"{run} &= ", stored.buffer, "[", at, "] == ", first, " + ", at, ";")
        self.run(loops, body, simd=False)
        return Stored(stored.type, stored.buffer, run=run)

    def defer(self, tile: Tile, reader: Op) -> Stored:
        """A tile that `reader` will store while it reads it."""
        deferred = Deferred(tile, self.buffer(tile.type))
        self.deferred.setdefault(id(reader), []).append(deferred)
        return deferred

    def settle(self, reader: Op) -> None:
        """Say that `reader` has read everything it was to store."""
        for deferred in self.deferred.pop(id(reader), []):
            deferred.source = None

    def assuming_runs(self, build: Callable[[], None]) -> None:
        """Add what `build` emits; in two versions, where index tiles may turn out consecutive."""
        fast: list[Stmt] = []
        self.assumed = set()
        try:
            with self.into(fast):
                build()
            runs = sorted(self.assumed)
        finally:
            self.assumed = None
        if not runs:
            self.stmts += fast
            return
        self.stmts.append(Scope((f"if ({' && '.join(runs)}) ",), fast))
        with self.scope("else "):
            build()

    def site(self, op: Op, kind: str, message: str, argument: str = "") -> int:
        """Register a place where the program can stop."""
        self.sites.append(Site(kind, message, op.location.file, op.location.line, argument))
        return len(self.sites) - 1

    def fail(self, site: int, param: int = -1, offset: str = "0") -> str:
        """C text that stops the program at a site."""
        return f"TZ_FAIL({site}, {param}, {offset});"

    def unsupported(self, op: Op, why: str) -> UnsupportedOperation:
        """The error for an operation this backend refuses."""
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
        """Emit what a loop would otherwise do again in every turn; it holds inside the loop."""
        before = dict(self.staged)
        dot.stage_ahead(self, loop)
        yield
        self.staged = before

    # -- walking -------------------------------------------------------------------------------

    def op(self, op: Op) -> None:
        """Lower one operation."""
        for value in op.results:
            if value.type.elem not in ELEMS:
                raise self.unsupported(op, f"The CPU backend has no values of type {value.type}.")
        handler = HANDLERS.get(op.name)
        if handler is not None:
            handler(self, op)
            return
        if op.name == "arith.constant":
            self.env[op.result] = _constant(self, op)
            return
        found = elementwise(op)
        if found is None:
            raise self.unsupported(op, debug.refusal(op))
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


_PARAM_TAGS = {"f8E4M3FN": "i8", "f8E5M2": "i8", "index": "i64"}

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
    control.chain(lowering, lowering.kernel.regions[0])
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
