"""Lowers TTIR to C.

    ttir.Module ──schedule──► which values get a buffer
                ──Lowering──► tiles (values) and code (statements and loops)
                ──code──────► loops merged, buffers placed ──► C text

- `tiles.py`: a tensor value is a tile, which generates the C text of one element at an index.
- `code.py`: the statement tree; `poly.py`: index arithmetic; `elems.py`: element types.
- `lowering.py`: walks the operations, and calls the handler of each.

To lower a new operation:

1. Elementwise (`arith.*`, `math.*`, some `tt.*`): add it to a table in `elementwise.py`.
   Anything else: write `def name(lowering, op)`, which reads operands with `lowering.tile` and sets
   the result with `lowering.bind`, and add it to `HANDLERS` at the end of the module of its family:
   `shape.py` (moves elements), `memory.py` (loads, stores, atomics), `reduce.py` (reductions,
   scans), `dot.py` (products), `control.py` (loops, branches, calls), `debug.py` (print, assert).
2. If it writes memory, add it to `_WRITES` in `schedule.py`; if it only changes the index of an
   element, to `VIEWS`. If it returns a pointer, add it to `origin.py`, or checked mode cannot check
   accesses through it.
3. C functions that it calls go into a header in `runtime/`; `lowering.include` includes it.
4. Test it in `tests/cpu`, in the file of the same family (`test_elementwise.py`, `test_shapes.py`,
   `test_memory.py`, ...), as a `covered` case (`tests/cpu/cases.py`). `make docs` then adds it to
   the table in `docs/cpu.md`.

`CompiledKernel.asm["c"]` is the C text of a kernel.
"""

from tzero.cpu.lower.lowering import Lowered, lower

__all__ = ["Lowered", "lower"]
