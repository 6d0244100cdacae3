"""All rows of the suite: those that run, and those that must fail with a known error."""

from __future__ import annotations

from tests.integrations.helion import (
    kernels_calls,
    kernels_limits,
    kernels_memory,
    kernels_products,
    kernels_reductions,
    kernels_tiles,
)
from tests.integrations.helion.row import Row, rows_of

__all__ = ["LIMITS", "ROWS", "SECTIONS"]

SECTIONS: dict[str, tuple[Row, ...]] = {
    "Tiles and loops": tuple(rows_of(kernels_tiles)),
    "Reductions and scans": tuple(rows_of(kernels_reductions)),
    "Products": tuple(rows_of(kernels_products)),
    "Memory, atomics, random numbers, dtypes": tuple(rows_of(kernels_memory)),
    "Arguments and host code": tuple(rows_of(kernels_calls)),
}

ROWS = tuple(row for rows in SECTIONS.values() for row in rows)
LIMITS = tuple(rows_of(kernels_limits))
