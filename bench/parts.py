"""The picture of what a call is made of, on the H200, made from committed records.

Enters: three rows of a record. Leaves: docs/parts.svg. Each row has its contenders and the bare
launch in one process; the lengths are ratios to that launch, and a part is the difference of two of
them. It must not know how anything is measured.

    python -m bench.parts            rewrite docs/parts.svg
"""

from __future__ import annotations

from typing import NamedTuple

from bench.chart import RECORD, ROOT
from bench.record import Record, read

__all__ = ["PICTURE", "Part", "calls", "main", "picture"]

PICTURE = ROOT / "docs" / "parts.svg"

WIDTH, LEFT, RIGHT, TOP, ROW = 760, 190, 40, 70, 54


class Part(NamedTuple):
    """A part of a call: what it does, how many launches by the driver it takes, and its colour."""

    words: str
    launches: float
    kind: str


def calls(record: Record) -> list[tuple[str, list[Part]]]:
    """Three ways to make a call, each with its parts, which add up to the whole."""
    rows = {each.id: each.ratios for each in record.rows}
    launch, whole = rows["cuda.launch.native.2"], rows["cuda.plan.2"]
    pooled = rows["cuda.plan.pooled.2"]["pooled"].median
    triton, plain = launch["triton"].median, whole["triton"].median
    ours = whole["native"].median
    driver = Part("driver", 1.0, "driver")
    return [
        (
            "Triton",
            [
                driver,
                Part("Triton's launch in Python", triton - 1, "launch"),
                Part("host function, output", plain - triton, "host"),
            ],
        ),
        (
            "tzero.kernel",
            [
                driver,
                Part("key, guards, packing", pooled - 1, "launch"),
                Part("output", ours - pooled, "host"),
            ],
        ),
        (
            "with reused outputs",
            [driver, Part("key, guards, packing, output", pooled - 1, "launch")],
        ),
    ]


_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #333 }
  .title { font-size: 15px; font-weight: 600 }
  .small { font-size: 12px; fill: #666 }
  .driver { fill: #9aa7b8 } .launch { fill: #3f51b5 } .host { fill: #c77700 }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd } .small { fill: #aaa }
    .driver { fill: #66707f } .launch { fill: #8c9eff } .host { fill: #e0a24a }
  }
"""
_MEANING = (
    ("driver", "the driver's launch"),
    ("launch", "finding the binary, checking, packing"),
    ("host", "allocation by torch, other Python"),
)


def svg(shown: list[tuple[str, list[Part]]], source: str) -> str:
    """The calls as SVG: a bar of parts for each."""
    height = TOP + ROW * len(shown) + 34
    most = max(sum(part.launches for part in parts) for _, parts in shown)
    scale = (WIDTH - LEFT - RIGHT) / most
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<style>{_STYLE}</style>",
        '<text class="title" x="12" y="26">Parts of a call, in launches by the driver</text>',
        f'<text class="small" x="12" y="48">{source}</text>',
    ]
    for number, (name, parts) in enumerate(shown):
        x, y = float(LEFT), TOP + number * ROW
        whole = sum(part.launches for part in parts)
        lines.append(f'<text x="{LEFT - 10}" y="{y + 17}" text-anchor="end">{name}</text>')
        for part in parts:
            width = part.launches * scale
            place = f'x="{x:.1f}" y="{y}" width="{max(width - 1, 1):.1f}" height="24"'
            words = f"{part.words}: {part.launches:.2f}"
            lines.append(f'<rect class="{part.kind}" {place}><title>{words}</title></rect>')
            x += width
        lines.append(f'<text x="{x + 6:.1f}" y="{y + 17}">{whole:.1f}</text>')
        words = " + ".join(f"{part.words} {part.launches:.1f}" for part in parts)
        lines.append(f'<text class="small" x="{LEFT}" y="{y + 40}">{words}</text>')
    x = 110.0
    for kind, words in _MEANING:
        lines.append(f'<rect class="{kind}" x="{x}" y="{height - 22}" width="12" height="12"/>')
        lines.append(f'<text class="small" x="{x + 18}" y="{height - 12}">{words}</text>')
        x += 34 + 6.2 * len(words)
    return "\n".join([*lines, "</svg>", ""])


def picture() -> str:
    """The picture of the committed record."""
    source = f"launched one by one (TZERO_GRAPHS=0); 2 tensors of 4,096 fp32, H200; {RECORD.name}"
    return svg(calls(read(RECORD)), source)


def main() -> None:
    PICTURE.write_text(picture())


if __name__ == "__main__":
    main()
