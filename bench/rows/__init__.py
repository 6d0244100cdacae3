"""Every measurement. Ids never change, so that records of different days can be compared."""

from __future__ import annotations

from bench.rows import (
    building,
    choosing,
    compiling,
    graphing,
    helion,
    installing,
    keying,
    launching,
    ordinary,
    planning,
    running,
    sharing,
    sizes,
    stepping,
    tuning,
)
from bench.rows.row import Case, Row

__all__ = ["ROWS", "Case", "Row"]

ROWS: tuple[Row, ...] = (
    *running.ROWS,
    *compiling.ROWS,
    *keying.ROWS,
    *launching.ROWS,
    *installing.ROWS,
    *planning.ROWS,
    *graphing.ROWS,
    *sizes.ROWS,
    *ordinary.ROWS,
    *helion.ROWS,
    *building.ROWS,
    *sharing.ROWS,
    *choosing.ROWS,
    *tuning.ROWS,
    *stepping.ROWS,
)
