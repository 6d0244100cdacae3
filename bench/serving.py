"""The start of a server: kernels from a bundle, and the first call after a seal, in new processes.

A program with 32 kernels is bundled. New processes without a compiler on their PATH load the bundle
and launch each kernel once; others do the same from the disk cache. Then the first call of a sealed
process is compared with its second, and with the same call after the process was idle: what that
takes more is what caches cost that others have used meanwhile. Wall times are the least of several
processes, because other programs make them longer; processor times and ratios are medians. Enters:
nothing. Leaves: a record in ``bench/results``, and the table of ``docs/serving.md``.

    python -m bench.serving               measure here, and print
    python -m bench.serving --write       measure, keep the record, and write the table
    python -m bench.serving --table       write the table from the record
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.pages import with_tables

__all__ = [
    *("BUNDLE", "CALLS", "COUNT", "HEAD", "KERNEL", "PAGE"),
    *("asked_for", "first_calls", "main", "page"),
]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "serving.md"
RECORD = ROOT / "bench" / "results" / "serving-cpu.json"

COUNT = 32
PROCESSES = 9

HEAD = """
import json, resource, sys, time
import torch, triton, triton.language as tl
import triton.experimental.gluon  # which Triton imports at a process's first launch
import tzero
from tzero.launches import bundles, native

torch.set_num_threads(1)
"""

KERNEL = """
@tzero.jit
def kernel_{k}(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x + at, mask=inside) * {k} + tl.load(y + at, mask=inside)
    tl.store(out + at, total, mask=inside)
"""

_LAUNCH = """
kernels = [globals()[f"kernel_{k}"] for k in range(COUNT)]
x, y, out = torch.ones(4096), torch.ones(4096), torch.empty(4096)
wall, processor = time.perf_counter(), time.process_time()
if sys.argv[1:]:
    bundles.load_bundle(sys.argv[1])
for kernel in kernels:
    kernel[(4,)](x, y, out, 4096, BLOCK=1024)
wall, processor = time.perf_counter() - wall, time.process_time() - processor
assert out[0] == COUNT
stats = tzero.compile.service().stats()
children = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({
    "wall": wall, "processor": processor, "compiled": sum(stats.compiled.values()),
    "processes": int(children.ru_maxrss > 0),
}))
"""

CALLS = """
@triton.jit
def scale_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.exp(tl.load(x + at, mask=at < n)), mask=at < n)


@tzero.kernel
def scaled(x):
    out = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out


size, device = int(sys.argv[1]), sys.argv[2]
scaled.warmup(tzero.Spec((tzero.Range(1, size),)))
x = torch.randn(size, device=device)
tzero.seal("error")


def timed(call):
    times = [time.perf_counter_ns()]
    for _ in range(2):
        call(x)
        times.append(time.perf_counter_ns())
    return (times[1] - times[0]) / 1e9, (times[2] - times[1]) / 1e9


timed(torch.neg)  # else the first call has the first use of the timer, which takes longer
first, second = timed(scaled)
time.sleep(0.1)
print(json.dumps({"first": first, "second": second, "idle": timed(scaled)[0]}))
"""

FIRST = 2.0
"""How many times as long as the second call the first one may take."""

BUNDLE = 50e-3
"""Seconds that the first launches from a bundle may take."""


def measured() -> dict[str, dict[str, float]]:
    """Seconds by row, and what else a row has."""
    with tempfile.TemporaryDirectory(prefix="tzero-bench-") as folder:
        text = HEAD + "".join(KERNEL.format(k=k) for k in range(COUNT))
        many, calls = Path(folder, "many.py"), Path(folder, "calls.py")
        many.write_text(f"COUNT = {COUNT}\n{text}{_LAUNCH}", encoding="utf-8")
        calls.write_text(HEAD + CALLS, encoding="utf-8")
        bundle, cache = str(Path(folder, "many.tzb")), str(Path(folder, "cache"))
        full = {**os.environ, "TZERO_CPU": "1", "TZERO_CACHE_DIR": cache}
        full.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has bytecode
        build = ["-m", "tzero", "bundle", "build", "-o", bundle, "--", sys.executable, str(many)]
        subprocess.run([sys.executable, *build], env=full, check=True, stdout=subprocess.DEVNULL)
        bare = {**full, "PATH": folder, "TZERO_CACHE_DIR": str(Path(folder, "empty"))}
        found = {
            "bundle": _runs(bare, str(many), bundle),
            "disk": _runs(full, str(many)),
            "first.65536": _runs(full, str(calls), "65536", "cpu"),
            "first.4096": _runs(full, str(calls), "4096", "cpu"),
        }
    assert found["bundle"]["compiled"] == found["bundle"]["processes"] == 0, found["bundle"]
    return found


def _runs(variables: Mapping[str, str], *command: str) -> dict[str, float]:
    runs = []
    for _ in range(PROCESSES):
        done = subprocess.run(
            [sys.executable, *command], env=variables, check=True, capture_output=True, text=True
        )
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    found = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    if "wall" in found:
        found["wall"] = min(run["wall"] for run in runs)
    else:
        found["ratio"] = statistics.median(run["first"] / run["second"] for run in runs)
    return found


def table(record: Mapping[str, Any]) -> str:
    """The table of a record, in Markdown."""
    rows: dict[str, dict[str, float]] = record["rows"]
    machine, versions = record["machine"], record["versions"]
    lines = [
        f"{machine['cpu']}; Python {versions['python']}, torch {versions['torch']}, "
        f"Triton {versions['triton']}; {PROCESSES} processes each:",
        "",
        "|  | wall, the least | asked for | processor time | compiles |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, title in (
        ("bundle", f"first launches of {COUNT} kernels, from a bundle, no compiler on the PATH"),
        ("disk", "the same from the disk cache"),
    ):
        row = rows[name]
        asked = asked_for(row["wall"], BUNDLE, "50 ms") if name == "bundle" else ""
        cells = f"{row['wall'] * 1e3:.0f} ms | {asked} | {row['processor'] * 1e3:.0f} ms"
        lines.append(f"| {title} | {cells} | {row['compiled']:.0f} |")
    return "\n".join([*lines, "", *first_calls(rows)])


def asked_for(value: float, most: float, words: str) -> str:
    """A target, and whether it is met."""
    return f"≤ {words}: {'met' if value <= most else 'missed'}"


def first_calls(rows: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The lines of the table of first calls."""
    lines = [
        "|  | first call | second | ratio | asked for | after 100 ms of idling |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for size in (65536, 4096):
        row = rows[f"first.{size}"]
        idle = f"{row['idle'] * 1e6:.1f} µs"
        cells = f"{row['first'] * 1e6:.1f} µs | {row['second'] * 1e6:.1f} µs | {row['ratio']:.1f}"
        asked = asked_for(row["ratio"], FIRST, f"{FIRST:g}")
        lines.append(f"| sealed, {size:,} floats | {cells} | {asked} | {idle} |")
    return lines


def page(text: str) -> str:
    """The page with the table of the record."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    return with_tables(text, "bench.serving", table(record))


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.serving", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--write", action="store_true", help="keep the record, write the table")
    parser.add_argument("--table", action="store_true", help="write the table from the record")
    given = parser.parse_args(arguments)
    if not given.table:
        from bench import record

        about = {"machine": record.machine(), "versions": record.versions()}
        found = {**about, "rows": measured()}
        print(table(found))
        if given.write:
            RECORD.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if given.table or given.write:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
