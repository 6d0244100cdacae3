"""TTIR to C, in passes.

    ttir.Module ──schedule──► which values get a buffer
                ──Lowering──► tiles (what a value is) and code (statements and loops)
                ──code──────► loops collapsed, buffers placed ──► C text

`tiles.py` is the small typed IR: each tensor value is a tile that can be asked for one element.
`code.py` is the statement tree. The other modules each lower one family of operations.
"""

from tzero.cpu.lower.lowering import Lowered, lower

__all__ = ["Lowered", "lower"]
