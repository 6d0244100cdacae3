"""A program whose sizes never repeat: what a call costs plainly, with tzero, with torch.compile.

One layer of text (`sized_kernels.gated_norm`) is called with 10,000 batches of random shapes, each
seen once. The contenders take turns, some hundred calls each. Enters: nothing. Leaves: a record in
``bench/results``, and the tables of ``docs/sizes.md``, made from all records.

    python -m bench.text                  measure here, and print
    python -m bench.text --cuda           the same on CUDA
    python -m bench.text --write          measure, keep the record, and write the tables
    python -m bench.text --table          write the tables from the records
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.pages import with_tables

__all__ = ["PAGE", "main", "page", "records"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "sizes.md"
RESULTS = ROOT / "bench" / "results"

SHAPES = 10_000
TURN = 500
FIRST = 32
"""How many shapes come before the timed ones: in these, code is compiled."""

SLOW = 2_000
"""How many shapes are enough for a contender that records each."""

HIDDEN = 32
TOKENS = 1536
"""The most tokens of a batch: more than 10,000 pairs of batch and length are below."""

TITLES = {
    "plain": "the host function itself, with Triton's launcher",
    "tzero": "`@tzero.kernel`",
    "exact": "`@tzero.kernel(static_shapes=True)`",
    "torch": "the same by operators of torch",
    "compiled": "these under `torch.compile(dynamic=True)`",
}


def shapes() -> list[tuple[int, int]]:
    """Batches and lengths, none of them twice, in random order."""
    most = TOKENS + 1
    pairs = [(batch, n) for batch in range(1, most) for n in range(1, most // batch + 1)]
    pairs = [(batch, n) for batch, n in pairs if batch * n <= TOKENS]
    return random.Random(0).sample(pairs, FIRST + SHAPES)


def contenders() -> dict[str, Callable[..., Any]]:
    """The functions that are compared, by the names in `TITLES`."""
    import torch

    import tzero
    from bench.sized_kernels import gated_norm, gated_norm_in_torch

    return {
        "plain": gated_norm,
        "tzero": tzero.kernel(gated_norm),
        "exact": tzero.kernel(static_shapes=True)(gated_norm),
        "torch": gated_norm_in_torch,
        "compiled": torch.compile(gated_norm_in_torch, dynamic=True),
    }


def measured(device: str) -> dict[str, dict[str, float]]:
    """For each contender: seconds of a call, and of the first calls together; on the CPU those of
    the processor, which others cannot take."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    seconds = _on_cuda if device == "cuda" else _on_cpu
    x, residual = (torch.randn(TOKENS * HIDDEN, device=device) for _ in range(2))
    weight = torch.randn(HIDDEN, device=device)

    def batch(rows: int, length: int) -> tuple[Any, ...]:
        views = (
            each[: rows * length * HIDDEN].view(rows, length, HIDDEN) for each in (x, residual)
        )
        return *views, weight

    batches = [batch(*each) for each in shapes()]
    functions = contenders()
    first = {name: seconds(each, batches[:FIRST]) for name, each in functions.items()}
    _check(functions, batches[:: SHAPES // 20])
    spent = {name: [] for name in functions}
    for start in range(FIRST, FIRST + SHAPES, TURN):
        for name, function in functions.items():
            if name != "exact" or start < FIRST + SLOW:
                spent[name].append(seconds(function, batches[start : start + TURN]) / TURN)
    return {
        name: {"call": statistics.mean(times), "first": first[name]}
        for name, times in spent.items()
    }


Batches = Sequence[tuple[Any, ...]]


def _on_cpu(function: Callable[..., Any], batches: Batches) -> float:
    start = time.process_time()
    for each in batches:
        function(*each)
    return time.process_time() - start


def _on_cuda(function: Callable[..., Any], batches: Batches) -> float:
    import torch

    start = time.perf_counter()
    for each in batches:
        function(*each)
    torch.cuda.synchronize()
    return time.perf_counter() - start


def _check(functions: Mapping[str, Callable[..., Any]], batches: Batches) -> None:
    import torch

    for each in batches:
        expected = functions["torch"](*each)
        for function in functions.values():
            torch.testing.assert_close(function(*each), expected, rtol=1e-4, atol=1e-4)


# -- the page --------------------------------------------------------------------------------------


def records() -> list[dict[str, Any]]:
    """All records, that of the CPU first."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob("text-*.json"))]


def table(record: Mapping[str, Any]) -> str:
    """A record as Markdown."""
    machine, versions = record["machine"], record["versions"]
    where = machine.get("gpu") or f"{machine['cpu']}, one thread, processor time"
    plain = record["seconds"]["plain"]["call"]
    lines = [
        f"{where}; Python {versions['python']}, torch {versions['torch']}, "
        f"Triton {versions['triton']}:",
        "",
        f"|  | a call | of plain | the first {FIRST} calls |",
        "|---|--:|--:|--:|",
    ]
    for name, found in record["seconds"].items():
        call, share = f"{found['call'] * 1e6:,.0f} µs", f"{found['call'] / plain:.2f}"
        lines.append(f"| {TITLES[name]} | {call} | {share} | {found['first']:.2g} s |")
    return "\n".join(lines)


def page(text: str) -> str:
    """The text of the page, with the tables of all records."""
    tables = "\n\n".join(table(each) for each in records())
    return with_tables(text, "bench.text", tables)


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.text", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--cuda", action="store_true", help="on CUDA")
    parser.add_argument("--write", action="store_true", help="keep the record, write the tables")
    parser.add_argument("--table", action="store_true", help="write the tables, measure nothing")
    given = parser.parse_args(arguments)
    if not given.table:
        device = "cuda" if given.cuda else "cpu"
        if not given.cuda:
            os.environ.setdefault("TZERO_CPU", "1")  # before Triton is imported
        from bench import record

        machine = record.machine(device)
        found = {"machine": machine, "versions": record.versions(), "seconds": measured(device)}
        print(table(found))
        if given.write:
            file = RESULTS / f"text-{device}.json"
            file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if given.table or given.write:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
