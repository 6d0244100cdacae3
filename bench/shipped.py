"""A bundle that was built without a GPU, used on one.

A program with 32 kernels covers them on the CPU; a bundle for ``cuda:90`` is built from that. On a
machine with the GPU, in another directory and with another Python, new processes without a compiler
on their PATH seal themselves and launch each kernel once from the bundle. Others do the same from
tzero's disk cache, and with Triton alone from Triton's. Enters: a folder that one machine writes
and another reads. Leaves: a record in ``bench/results``, and a table in ``docs/serving.md``.

    python -m bench.shipped --pack FOLDER              build the bundle, on a machine without a GPU
    python -m bench.shipped --use FOLDER -o FILE       measure with it, on one with a GPU
    python -m bench.shipped --table                    write the table from the record
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.pages import with_tables
from bench.serving import BUNDLE, CALLS, COUNT, HEAD, KERNEL, PAGE, asked_for, first_calls

__all__ = ["main", "page"]

RECORD = Path(__file__).parent / "results" / "serving-h200.json"
TARGET = "cuda:90"
PROCESSES = 4

_LAUNCH = """
import os

device, how = sys.argv[1], sys.argv[2]
kernels = [globals()[f"kernel_{k}"] for k in range(COUNT)]
x, y, out = (torch.ones(4096, device=device) for _ in range(3))
print(out[0])  # the device is ready
started, missed = [], []


def note(what, args):
    if what in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork"):
        started.append(os.path.basename(str(args[0])) if args else what)


sys.addaudithook(note)
with tzero.events.observe(lambda each: missed.append(each) if each.kind == "cache" else None):
    wall, processor = time.perf_counter(), time.process_time()
    if how == "bundle":
        bundles.load_bundle(sys.argv[3])
        tzero.seal("error")
    for kernel in kernels:
        kernel[(4,)](x, y, out, 4096, BLOCK=1024)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
assert out.tolist() == [float(COUNT)] * 4096
if how == "cover":
    tzero.coverage().save(sys.argv[3])
stats = tzero.compile.service().stats()
print(json.dumps({
    "wall": wall, "processor": processor, "compiled": sum(stats.compiled.values()),
    "requests": stats.requests, "started": started,
    "events": sorted({each.reason for each in missed}),
}))
"""


def _programs(folder: Path) -> tuple[Path, Path, Path]:
    """The program with tzero, the same with Triton alone, and the one that calls."""
    text = HEAD + "".join(KERNEL.format(k=k) for k in range(COUNT))
    whole = f"COUNT = {COUNT}\n{text}{_LAUNCH}"
    ours, plain, calls = (folder / name for name in ("many.py", "plain.py", "calls.py"))
    ours.write_text(whole, encoding="utf-8")
    plain.write_text(whole.replace("@tzero.jit", "@triton.jit"), encoding="utf-8")
    calls.write_text(HEAD + CALLS, encoding="utf-8")
    return ours, plain, calls


def pack(folder: Path) -> None:
    """Build the bundle, with no GPU, and say with what."""
    import torch
    import triton

    assert not torch.cuda.is_available(), "the bundle is built on a machine without a GPU"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tzero-bench-") as place:
        program, coverage = _programs(Path(place))[0], str(Path(place, "coverage.json"))
        env = {**os.environ, "TZERO_CPU": "1", "TZERO_CACHE_DIR": str(Path(place, "cache"))}
        cover = [sys.executable, str(program), "cpu", "cover", coverage]
        subprocess.run(cover, env=env, check=True, stdout=subprocess.DEVNULL)
        build = ["bundle", "build", "-o", str(folder / "many.tzb"), "--coverage", coverage]
        build = [sys.executable, "-m", "tzero", *build, "--target", TARGET]
        subprocess.run(build, env=env, check=True)
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    about = {**versions, "triton": triton.__version__, "target": TARGET}
    about["bytes"] = (folder / "many.tzb").stat().st_size
    (folder / "built.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def measured(folder: Path) -> dict[str, Any]:
    """The rows by name, and what the bundle was built with."""
    with tempfile.TemporaryDirectory(prefix="tzero-bench-") as made:
        place = Path(made)
        ours, plain, calls = _programs(place)
        bundle = shutil.copy(folder / "many.tzb", place / "elsewhere.tzb")
        nothing = place / "nothing"
        nothing.mkdir()
        places = {"TZERO_CACHE_DIR": "tzero", "TRITON_CACHE_DIR": "triton"}
        full = {**os.environ, **{name: str(place / each) for name, each in places.items()}}
        full.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has bytecode
        found: dict[str, Any] = {"built": json.loads((folder / "built.json").read_text())}
        rows = found["rows"] = {}
        runs = []
        for each in range(PROCESSES):  # each with empty caches
            empty = {name: str(place / f"{text}-{each}") for name, text in places.items()}
            bare = {**full, **empty, "PATH": str(nothing)}
            bare.pop("CC", None)
            runs.append(_run(bare, str(ours), "cuda", "bundle", str(bundle)))
        rows["bundle"] = _summary(runs)
        rows["cold"] = _summary([_run(full, str(ours), "cuda", "disk")])
        rows["disk"] = _summary([_run(full, str(ours), "cuda", "disk") for _ in range(PROCESSES)])
        rows["triton.cold"] = _summary([_run(full, str(plain), "cuda", "disk")])
        again = [_run(full, str(plain), "cuda", "disk") for _ in range(PROCESSES)]
        rows["triton"] = _summary(again)
        for size in ("65536", "4096"):
            rows[f"first.{size}"] = _ratio([_run(full, str(calls), size, "cuda") for _ in range(3)])
    return found


def _run(variables: Mapping[str, str], *command: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, *command], env=variables, capture_output=True, text=True, timeout=120
    )
    if done.returncode != 0:
        raise SystemExit(f"{command}: {done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The least wall time, the median processor time, and what the runs compiled and started."""
    return {
        "processes": len(runs),
        "wall": min(run["wall"] for run in runs),
        "processor": statistics.median(run["processor"] for run in runs),
        "compiled": max(run["compiled"] for run in runs),
        "requests": max(run["requests"] for run in runs),
        "started": sorted({each for run in runs for each in run["started"]}),
        "events": sorted({each for run in runs for each in run["events"]}),
    }


def _ratio(runs: list[dict[str, float]]) -> dict[str, float]:
    found = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    return {**found, "ratio": statistics.median(run["first"] / run["second"] for run in runs)}


def table(record: Mapping[str, Any]) -> str:
    """The table of a record, in Markdown."""
    rows, built, versions = record["rows"], record["built"], record["versions"]
    lines = [
        f"{record['machine']['gpu']}; Python {versions['python']}, torch {versions['torch']}, "
        f"Triton {versions['triton']}. The bundle was built without a GPU, with Python "
        f"{built['python']} and torch {built['torch']}: {built['bytes'] / 2**20:.1f} MiB.",
        "",
        f"| first launches of {COUNT} kernels | wall, the least | asked for | compiles | "
        "programs started |",
        "|---|--:|--:|--:|---|",
    ]
    for name, title in (
        ("bundle", "from the bundle, sealed, no compiler on the PATH, empty caches"),
        ("disk", "from the disk cache"),
        ("triton", "Triton alone, from its cache"),
        ("cold", "nothing cached"),
        ("triton.cold", "Triton alone, nothing cached"),
    ):
        row = rows[name]
        counted = COUNT if name == "triton.cold" else row["compiled"]
        programs = ", ".join(row["started"]) or "none"
        asked = asked_for(row["wall"], BUNDLE, "50 ms") if name == "bundle" else ""
        wall = f"{row['wall'] * 1e3:.0f} ms"
        lines.append(f"| {title} | {wall} | {asked} | {counted} | {programs} |")
    return "\n".join([*lines, "", *first_calls(rows)])


def page(text: str) -> str:
    """The page with the table of the record."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    return with_tables(text, "bench.shipped", table(record))


def main(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m bench.shipped", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="build the bundle there")
    parser.add_argument("--use", type=Path, metavar="FOLDER", help="measure with the bundle there")
    parser.add_argument("-o", "--output", type=Path, default=RECORD, help="where the record goes")
    parser.add_argument("--table", action="store_true", help="write the table from the record")
    given = parser.parse_args(arguments)
    if given.pack is not None:
        pack(given.pack)
    if given.use is not None:
        from bench import record

        about = {"machine": record.machine("cuda"), "versions": record.versions()}
        found = {**about, **measured(given.use)}
        print(table(found))
        given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if given.table:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
