"""Pictures of committed records: what a whole call and a whole decode step cost on the H200.

Enters: rows of records. Leaves: docs/call.svg and docs/decode.svg, which read in light and in dark.
It must not know how anything is measured. What a call costs is the median of the ratios to the bare
launch within a row, so that contenders are compared in one process; so are the tokens a second of
all ways to make a step.

    python -m bench.chart            rewrite both
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.record import read

__all__ = ["Bar", "call", "decode", "main", "svg"]

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "bench" / "results" / "h200-2026-11-15.json"
GRAPHS = ROOT / "bench" / "results" / "h200-graphs-2026-11-20.json"
STEPS = ROOT / "bench" / "results" / "h200-steps-2026-11-20.json"

WIDTH, LEFT, RIGHT, ROW = 760, 250, 60, 30


class Bar(NamedTuple):
    """One contender: what it is, its size and that in words, whether it is tzero's, and whether it
    stands apart, because another record has it."""

    words: str
    size: float
    said: str
    ours: bool = False
    apart: bool = False


# Record, row, contender, words.
_SHOWN = (
    (RECORD, "cuda.plan.2", "helion", "Helion, an earlier record"),
    (GRAPHS, "cuda.graphs.fresh.1", "torch.compile", "torch.compile, reduce-overhead"),
    (GRAPHS, "cuda.graphs.fresh.1", "triton", "Triton, host function as written"),
    (GRAPHS, "cuda.graphs.fresh.1", "no graph", "tzero.kernel, first 32 calls"),
    (GRAPHS, "cuda.graphs.fresh.1", "graph", "tzero.kernel"),
    (GRAPHS, "cuda.graphs.pooled.1", "graph", "tzero.kernel(pool=True)"),
    (GRAPHS, "cuda.graphs.fresh.1", "by hand", "a CUDA graph made by hand"),
)


_STEPS = {
    "kernels of examples/decode.py": "cuda.step.plain",
    "kernels of Liger-Kernel": "cuda.step.liger",
}
_WAYS = {
    "as written": "as it is written",
    "installed": "tzero.install()",
    "torch.compile": "torch.compile, reduce-overhead",
    "graph=True": "tzero.kernel(graph=True)",
    "by hand": "a CUDA graph made by hand",
}


def _bars(shown: Sequence[tuple[Path, str, str, str]], unit: str) -> list[Bar]:
    """The bars of rows, the longest first, and the unit."""
    rows = {path: {row.id: row for row in read(path).rows} for path, *_ in shown}
    found = [Bar(unit, 1.0, _number(1.0))]
    for path, row, name, words in shown:
        ratio = rows[path][row].ratios[name].median
        ours, apart = words.startswith("tzero"), path != shown[-1][0]
        found.append(Bar(words, ratio, _number(ratio), ours, apart))
    return sorted(found, key=lambda bar: -bar.size)


_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #333 }
  .title { font-size: 15px; font-weight: 600 }
  .small { font-size: 12px; fill: #666 }
  .bar { fill: #9aa7b8 }
  .ours { fill: #3f51b5 }
  .apart { fill: none; stroke: #9aa7b8; stroke-width: 1.5; stroke-dasharray: 5 3 }
  .line { stroke: #888; stroke-dasharray: 3 3 }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd } .small { fill: #aaa } .bar { fill: #66707f } .apart { stroke: #8a95a5 }
    .ours { fill: #8c9eff }
  }
"""


def svg(
    title: str, about: Sequence[str], shown: Sequence[Bar | str], *, unit: float | None = None
) -> str:
    """The bars as SVG, below a title and lines about them; texts among them are headings. A dashed
    line is where the unit ends, if there is one."""
    top = 46 + 18 * len(about)
    height = top + ROW * len(shown) + 12
    scale = (WIDTH - LEFT - RIGHT) / max(bar.size for bar in shown if isinstance(bar, Bar))
    line = math.inf if unit is None else unit * scale
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="12" y="26">{title}</text>',
    ]
    for number, words in enumerate(about):
        parts.append(f'<text class="small" x="12" y="{48 + 18 * number}">{words}</text>')
    for number, bar in enumerate(shown):
        y = top + number * ROW
        if isinstance(bar, str):
            parts.append(f'<text class="small" x="12" y="{y + 16}">{bar}</text>')
            continue
        width = bar.size * scale
        at = max(width, line) if line - 40 < width else width  # not on the dashed line
        kind = "ours" if bar.ours else "apart" if bar.apart else "bar"
        parts += [
            f'<text x="{LEFT - 10}" y="{y + 16}" text-anchor="end">{bar.words}</text>',
            f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.1f}" height="22" rx="3"/>',
            f'<text x="{LEFT + at + 8:.1f}" y="{y + 16}">{bar.said}</text>',
        ]
    if unit is not None:
        x = f"{LEFT + line:.1f}"
        parts.append(f'<line class="line" x1="{x}" x2="{x}" y1="{top - 6}" y2="{height - 8}"/>')
    return "\n".join([*parts, "</svg>", ""])


def _number(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio > 1.05 else f"{ratio:.2f}"


def call() -> str:
    """What a whole call costs, in launches by the driver."""
    earlier = {row.id: row for row in read(RECORD).rows}["cuda.plan.2"].ratios["triton"].median
    about = [
        f"2 tensors of 4,096 fp32, a new output; {read(GRAPHS).machine['gpu']}",
        str(GRAPHS.relative_to(ROOT)),
        f"Helion is of {RECORD.name}, in which Triton took {earlier:.1f}: "
        "compare these two, no others",
    ]
    bars = _bars(_SHOWN, "the driver's launch, from C")
    return svg("A whole call, in launches by the driver", about, bars, unit=1.0)


def decode() -> str:
    """How many tokens a second a small model makes."""
    record = read(STEPS)
    rows = {row.id: row for row in record.rows}
    about = [
        f"a model of 16 layers, examples/decode.py; {record.machine['gpu']}",
        str(STEPS.relative_to(ROOT)),
    ]
    shown: list[Bar | str] = []
    for kernels, row in _STEPS.items():
        shown.append(kernels)
        for name, words in _WAYS.items():
            rate = 1 / rows[row].values[name].median
            shown.append(Bar(words, rate, f"{rate:,.0f}", words.startswith("tzero")))
    return svg("Decode steps: tokens a second", about, shown)


def main() -> None:
    (ROOT / "docs" / "call.svg").write_text(call())
    (ROOT / "docs" / "decode.svg").write_text(decode())


if __name__ == "__main__":
    main()
