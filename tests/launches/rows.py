"""Every row: one fact each that may change between two launches. The rows run over all tiers."""

from __future__ import annotations

from tests.launches import rows_arguments, rows_calls, rows_grids, rows_hooks, rows_life, rows_world

ROWS = (
    *rows_arguments.ROWS,
    *rows_calls.ROWS,
    *rows_world.ROWS,
    *rows_hooks.ROWS,
    *rows_grids.ROWS,
    *rows_life.ROWS,
)
