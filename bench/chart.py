"""The picture in the README: what a whole call costs on the H200, made from committed records.

Enters: rows of two records. Leaves: docs/call.svg, which reads in light and in dark. It must not
know how anything is measured. A bar is the median of the ratios to the bare launch within a row, so
that contenders of one row are compared in one process.

    python -m bench.chart            rewrite docs/call.svg
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bench.record import read

__all__ = ["PICTURE", "bars", "main", "svg"]

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "bench" / "results" / "h200-2026-11-15.json"
GRAPHS = ROOT / "bench" / "results" / "h200-graphs-2026-11-18.json"
PICTURE = ROOT / "docs" / "call.svg"

WIDTH, LEFT, RIGHT, TOP, ROW = 760, 250, 60, 74, 30


class Bar(NamedTuple):
    """One contender: what it is, how often the bare launch fits into a call, and whether it is
    tzero's."""

    words: str
    ratio: float
    ours: bool = False


# Record, row, contender, words.
_SHOWN = (
    (RECORD, "cuda.plan.2", "helion", "Helion"),
    (GRAPHS, "cuda.graphs.fresh.1", "torch.compile", "torch.compile, reduce-overhead"),
    (GRAPHS, "cuda.graphs.fresh.1", "triton", "Triton, host function as written"),
    (GRAPHS, "cuda.graphs.fresh.1", "no graph", "tzero.kernel, first 32 calls"),
    (GRAPHS, "cuda.graphs.fresh.1", "graph", "tzero.kernel"),
    (GRAPHS, "cuda.graphs.pooled.1", "graph", "tzero.kernel(pool=True)"),
    (GRAPHS, "cuda.graphs.fresh.1", "by hand", "a CUDA graph made by hand"),
)


def bars() -> list[Bar]:
    """The bars of the records, the longest first, and the bare launch."""
    rows = {path: {row.id: row for row in read(path).rows} for path in (RECORD, GRAPHS)}
    found = [
        Bar(words, rows[path][row].ratios[name].median, words.startswith("tzero"))
        for path, row, name, words in _SHOWN
    ]
    launch = Bar("the driver's launch, from C", 1.0)
    return sorted([*found, launch], key=lambda bar: -bar.ratio)


_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #333 }
  .title { font-size: 15px; font-weight: 600 }
  .small { font-size: 12px; fill: #666 }
  .bar { fill: #9aa7b8 }
  .ours { fill: #3f51b5 }
  .line { stroke: #888; stroke-dasharray: 3 3 }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd } .small { fill: #aaa } .bar { fill: #66707f } .ours { fill: #8c9eff }
  }
"""


def svg(shown: list[Bar], source: str) -> str:
    """The bars as SVG."""
    height = TOP + ROW * len(shown) + 12
    scale = (WIDTH - LEFT - RIGHT) / max(bar.ratio for bar in shown)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<style>{_STYLE}</style>",
        '<text class="title" x="12" y="26">A whole call, in launches by the driver</text>',
        f'<text class="small" x="12" y="48">{source}</text>',
    ]
    for number, bar in enumerate(shown):
        y, width = TOP + number * ROW, bar.ratio * scale
        kind = "ours" if bar.ours else "bar"
        parts += [
            f'<text x="{LEFT - 10}" y="{y + 16}" text-anchor="end">{bar.words}</text>',
            f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.1f}" height="22" rx="3"/>',
            f'<text x="{LEFT + width + 8:.1f}" y="{y + 16}">{bar.ratio:.1f}</text>',
        ]
    x = LEFT + scale
    parts.append(f'<line class="line" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height - 8}"/>')
    return "\n".join([*parts, "</svg>", ""])


def picture() -> str:
    """The picture of the committed record."""
    record = read(GRAPHS)
    device = str(record.machine["gpu"]) if "gpu" in record.machine else "H200"
    source = f"2 tensors of 4,096 fp32, a new output; {device}; {GRAPHS.relative_to(ROOT)}"
    return svg(bars(), f"{source} (Helion: {RECORD.name})")


def main() -> None:
    PICTURE.write_text(picture())


if __name__ == "__main__":
    main()
