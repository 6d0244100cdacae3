"""The timeline in the docs: a run of examples/reported.py with empty caches.

Enters: nothing. Leaves: a record of the run in ``bench/results``, without its single launches, and
docs/timeline.svg. It must not know how a run is watched or drawn.

    python -m bench.watched --write      run it here, keep the record, and draw
    python -m bench.watched              draw from the record
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tzero.commands import timeline
from tzero.commands.record import Run

__all__ = ["PICTURE", "RECORD", "main", "picture"]

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "bench" / "results" / "run-cpu.json"
PICTURE = ROOT / "docs" / "timeline.svg"
PROGRAM = "examples/reported.py"

_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #5b6472 }
  .compiled { fill: #c77700 } .loaded { fill: #9aa7b8 } .search { fill: #3f51b5 }
  .told { stroke: #b3261e; stroke-width: 1.5 } .grid { stroke: #d9dde3; stroke-width: .7 }
  @media (prefers-color-scheme: dark) {
    text { fill: #aaa } .compiled { fill: #e0a24a } .loaded { fill: #66707f }
    .search { fill: #8c9eff } .told { stroke: #ff9a92 } .grid { stroke: #444c58 }
  }
"""


def measure() -> None:
    """Run the program with empty caches, and keep the record."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "run.json")
        caches = {"TZERO_CACHE_DIR": f"{folder}/tzero", "TRITON_CACHE_DIR": f"{folder}/triton"}
        command = [sys.executable, "-m", "tzero", "report", "--save", str(file)]
        subprocess.run(
            [*command, "-o", f"{folder}/page.html", PROGRAM],
            cwd=ROOT,
            env={**os.environ, **caches, "TZERO_QUIET": "1"},
            check=True,
        )
        dataclasses.replace(Run.read(file), spans=()).save(RECORD)


def picture() -> str:
    """The timeline of the record, as a file of its own."""
    text = timeline.svg(Run.read(RECORD))
    head, rest = text.split(">", 1)
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{_STYLE}</style>{rest}\n'


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true", help="run the program, keep the record")
    if parser.parse_args().write:
        measure()
    PICTURE.write_text(picture())


if __name__ == "__main__":
    main()
