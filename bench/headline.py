"""The rows of the default run, and what they come to in one sentence.

Enters: rows, or results. Leaves: the rows that a run measures; a sentence. It must not know how
anything is measured.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.record import Result, ratio_to

if TYPE_CHECKING:
    from bench.rows.row import Row

__all__ = ["HEADLINES", "chosen", "in_words"]

HEADLINES: Mapping[str, tuple[str, ...]] = {
    "cpu": (
        "plan.torch.2",
        "plan.triton.8",
        "helion.2",
        "launch.native.2",
        "cpu.compile.small",
        "cpu.softmax.1024x4096.f32",
        "cpu.matmul.512.f32",
        "cpu.attention.causal.1x4x512x64.f16",
    ),
    "cuda": (
        "cuda.plan.2",
        "cuda.plan.16",
        "cuda.plan.pooled.2",
        "cuda.plan.launches.5",
        "cuda.helion.2",
        "cuda.launch.native.2",
        "cuda.tune.matmul",
    ),
}


def chosen(rows: Sequence[Row], pattern: str | None, *, everything: bool = False) -> list[Row]:
    """The headline rows; or every row; or those whose id matches a shell pattern or contains it."""
    if everything:
        return list(rows)
    if pattern is None:
        by_id = {row.id: row for row in rows}
        return [by_id[row_id] for ids in HEADLINES.values() for row_id in ids if row_id in by_id]
    found = [row for row in rows if fnmatch.fnmatch(row.id, pattern) or pattern in row.id]
    if not found:
        raise SystemExit(f"no row matches {pattern!r}; there are: {', '.join(r.id for r in rows)}")
    return found


# -- the closing sentence --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Clause:
    """A subject, and what its row is compared with: contender, and the words for it."""

    subject: str
    row: str
    beside: tuple[tuple[str, str], ...]


_CLAUSES = (
    _Clause("a call costs", "plan.torch.2", (("torch", "torch.add"), ("triton", "Triton's"))),
    _Clause("a Helion kernel's call", "helion.2", (("helion", "Helion's own"),)),
    _Clause("the overhead of a launch", "launch.native.2", (("triton", "Triton's"),)),
    _Clause(
        "a call on the GPU costs", "cuda.plan.2", (("torch", "torch.add"), ("triton", "Triton's"))
    ),
    _Clause("a Helion kernel's call", "cuda.helion.2", (("helion", "Helion's own"),)),
    _Clause("a launch", "cuda.launch.native.2", (("triton", "Triton's"),)),
    _Clause("tuning a matmul", "cuda.tune.matmul", (("triton", "Triton's autotuner"),)),
)

_ON_CPU = ("cpu.softmax.", "cpu.matmul.", "cpu.attention.", "cpu.add.", "cpu.layernorm.")

_FRACTIONS = (
    *("third", "quarter", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh"),
    *("twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth"),
    *("eighteenth", "nineteenth", "twentieth"),
)


def in_words(results: Sequence[Result]) -> str | None:
    """One sentence on the rows that were measured; none if it would have nothing to say."""
    by_id = {result.id: result for result in results if not result.failed}
    clauses = [text for each in _CLAUSES if (text := _clause(each, by_id.get(each.row)))]
    clauses += [text for text in (_kernels(by_id),) if text]
    if not clauses:
        return None
    *before, last = clauses
    text = f"{', '.join(before)}, and {last}" if before else last
    return f"In short: {text}."


def _clause(clause: _Clause, result: Result | None) -> str | None:
    if result is None:
        return None
    said = [
        beside(ratio_to(result, name), words)
        for name, words in clause.beside
        if name in result.values
    ]
    return f"{clause.subject} {' and '.join(said)}" if said else None


def _kernels(by_id: Mapping[str, Result]) -> str | None:
    """The range of the kernels that run on the CPU, beside torch's."""
    found = sorted(
        ratio_to(result, "torch") for name, result in by_id.items() if name.startswith(_ON_CPU)
    )
    if not found:
        return None
    low, high = _decimal(found[0]), _decimal(found[-1])
    return f"kernels on the CPU take {low if low == high else f'{low} to {high}'} of torch's time"


def beside(ratio: float, whom: str) -> str:
    """A ratio as one says it: `0.8 of torch.add`, `a ninth of Triton's`, `1.4 times torch.add`."""
    if ratio > 1.05:
        return f"{_decimal(ratio)} times {whom}"
    if ratio > 0.95:
        return f"as much as {whom}"
    if ratio >= 0.38:
        return f"{'half' if 0.47 <= ratio <= 0.53 else _decimal(ratio)} of {whom}"
    if ratio < 0.001:  # above a floor, noise may leave nothing or less
        return f"less than a thousandth of {whom}"
    parts = round(1 / ratio)
    if parts > len(_FRACTIONS) + 2:
        return f"1/{parts} of {whom}"
    name = _FRACTIONS[parts - 3]
    return f"{'an' if name.startswith('e') else 'a'} {name} of {whom}"


def _decimal(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"
