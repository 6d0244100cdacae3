"""`tzero report` and `tzero trace`: what is noted of a run, the page, the trace, and the file."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.browser import PHONE, layout
from tests.commands.conftest import Command
from tzero.commands import tracing
from tzero.commands.record import Candidate, Compile, Kernel, Plan, Run, Search, Span, Told
from tzero.commands.report import page

PROGRAM = """
import sys, threading
import torch, triton, triton.language as tl
import tzero

@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

@triton.autotune([triton.Config({"BLOCK": b}) for b in (32, 64)], key=["n"])
@triton.jit
def tuned_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

own_kernel = tzero.jit(double_kernel)
copied_kernel = triton.jit(double_kernel.fn)  # another one of the same name

@tzero.kernel
def double(x):
    out = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
    return out

@tzero.kernel
def sign(x):
    return double(x) if double(x).sum() > 0 else x

@tzero.kernel(configs=[tzero.Config(BLOCK=b) for b in (32, 64)])
def chosen(x, config):
    out = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), config.BLOCK),)](x, out, x.numel(), **config)
    return out

x = torch.ones(100)
out = torch.empty_like(x)
for _ in range(20):
    double(x), sign(x), chosen(x)
    double_kernel[(2,)](x, out, 100, BLOCK=64)
    tuned_kernel[lambda given: (triton.cdiv(100, given["BLOCK"]),)](x, out, 100)
    own_kernel[(2,)](x, out, 100, BLOCK=64)
for _ in range(5):
    copied_kernel[(2,)](x, out, 100, BLOCK=64)
assert out.tolist() == [2.0] * 100
print("program:", *sys.argv[1:])
sys.exit(int(sys.argv[1]))
"""

COMMAND = "from tzero.cli import main; main()"


def tzero(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: each for name, each in os.environ.items() if name[:6] != "TZERO_"}
    environment |= {"TZERO_CPU": "1", "TZERO_CACHE_DIR": str(tmp_path / "cache")}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path / "triton")}
    command = [sys.executable, "-c", COMMAND, *words]
    return warm.run(command, cwd=tmp_path, env=environment)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    """The program above, run once by `tzero report`, which leaves a page and a record."""
    (folder / "program.py").write_text(PROGRAM)
    done = tzero(folder, "report", "--save", "run.json", "program.py", "0", "--flag")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "program: 0 --flag\n"
    return Run.read(folder / "run.json")


def kernel(run: Run, name: str, kind: str) -> Kernel:
    (found,) = (each for each in run.kernels if (each.name, each.kind) == (name, kind))
    return found


# -- what is noted ---------------------------------------------------------------------------------


def test_calls_stay_native_while_they_are_watched(run: Run) -> None:
    double = kernel(run, "double", "host function")
    assert double.calls == 60 and double.native >= 55
    assert kernel(run, "chosen", "host function").native >= 18
    same = [each for each in run.kernels if each.name == "double_kernel" and each.native]
    assert sorted(each.kind for each in same) == ["Triton kernel", "Triton kernel", "tzero.jit"]
    assert 5 in {each.calls for each in same}, "kernels of the same name are not confused"
    assert kernel(run, "double_kernel", "tzero.jit").calls == 20
    assert {each.module for each in run.kernels} == {"__main__"}
    assert re.fullmatch(r".*program\.py:\d+", double.place)


def test_a_fallback_is_noted_with_its_place(run: Run) -> None:
    (told,) = (each for each in run.events if each.kind == "fallback" and each.kernel == "sign")
    line = PROGRAM.splitlines().index("    return double(x) if double(x).sum() > 0 else x") + 1
    assert "reads the value of a tensor" in told.reason
    assert told.reason.endswith(f"program.py:{line}")
    sign = kernel(run, "sign", "host function")
    assert sign.native == 0 and told.reason in sign.others


def test_binaries_are_noted_with_where_they_were_compiled(run: Run) -> None:
    where = {each.where for each in run.compiles if each.kernel == "double_kernel"}
    assert "compiled here" in where and "compiled in a worker" in where
    assert all(0 <= each.start < each.end <= run.seconds for each in run.compiles)


def test_searches_are_noted_with_their_candidates(run: Run) -> None:
    own, triton = sorted(run.searches, key=lambda each: each.kernel)
    assert (own.kernel, triton.kernel) == ("chosen", "tuned_kernel")
    assert {each.config for each in own.candidates} == {"Config(BLOCK=32)", "Config(BLOCK=64)"}
    assert own.chosen in {each.config for each in own.candidates}
    assert triton.chosen in {each.config for each in triton.candidates}
    for search in (own, triton):
        timed = {each.config: each.seconds for each in search.candidates}
        assert all(seconds is not None and seconds > 0 for seconds in timed.values())
    least = min(each.seconds or 1 for each in triton.candidates)  # two may be equal
    assert triton.chosen in {each.config for each in triton.candidates if each.seconds == least}


def test_times_of_candidates_are_noted_with_their_intervals(run: Run) -> None:
    for search in run.searches:
        for each in search.candidates:
            assert each.seconds is not None and each.low is not None and each.high is not None
            assert each.low <= each.seconds <= each.high


def test_trials_of_an_autotuner_are_no_calls(run: Run) -> None:
    (tuned,) = (each for each in run.kernels if each.trials)
    assert tuned.name == "tuned_kernel" and tuned.calls < 100
    assert f"and {tuned.trials:,} trials of its autotuner" in page(run)


def test_plans_are_noted_with_their_guards(run: Run) -> None:
    (plan,) = (each for each in run.plans if each.kernel == "double")
    assert "x: float32[100] strides [1] on cpu" in plan.guards
    assert any(step.startswith("launch double_kernel[(2, 1, 1)]") for step in plan.steps)


def test_candidates_of_a_search_are_no_calls_of_the_program(run: Run) -> None:
    calls = [each for each in run.spans if (each.stage, each.kernel) == ("call", "chosen")]
    assert len(calls) == 20


def test_a_record_is_read_as_it_was_written(run: Run, tmp_path: Path) -> None:
    run.save(tmp_path / "again.json")
    assert Run.read(tmp_path / "again.json") == run


# -- the page --------------------------------------------------------------------------------------

NASTY = '<script>alert("1")</script>\x1b[2J'
MADE = Run(
    (NASTY, "x" * 300),
    3,
    10.0,
    "2026-11-18T21:00:00+00:00",
    {"tzero": "0.1.0"},
    NASTY,
    kernels=(Kernel(NASTY, NASTY, "Triton kernel", 1000, 10, 5.0, NASTY * 5, {NASTY: 990}),),
    events=(Told(1.0, "fallback", NASTY, NASTY), Told(1.0, "miss", NASTY, NASTY)),
    compiles=(Compile(NASTY, 1.0, 4.0, "compiled here"), Compile(NASTY, 4.0, 4.1, "loaded")),
    searches=(
        Search(NASTY, 9.0, "Config(B=1)", NASTY, NASTY, 4.0, (
            Candidate("Config(B=1)", 2e-6), Candidate(NASTY * 3, None, NASTY),
        )),
    ),
    plans=(Plan(NASTY, (NASTY * 4,), (NASTY, "return")),),
    spans=(Span("launch", NASTY, 1.0, 2.0, 1),),
)  # fmt: skip


def test_a_page_needs_nothing_else(run: Run, folder: Path) -> None:
    text = (folder / "tzero-report.html").read_text()
    assert text == page(run)
    assert not re.search(r"<script|<link|<img|@import|url\(|src=|https?://", text)


def test_a_page_says_what_happened(run: Run) -> None:
    text = page(run)
    for words in ("program.py 0 --flag", "ended well", "reads the value of a tensor", "chosen"):
        assert words in text
    for name in ("Kernels", "Fallbacks", "Compiling and loading", "Searches", "Plans"):
        assert f"<h2>{name}" in text
    assert "Compute on the device" in text, "what to change is told"


def test_what_a_program_names_is_escaped() -> None:
    text = page(MADE)
    assert "<script" not in text and "\x1b" not in text
    assert text.count("&lt;script&gt;") > 10


def test_what_costs_most_comes_first() -> None:
    found = re.search(r"<ul><li>(.*?)</ul>", page(MADE))
    assert found is not None
    words = [re.sub("<.*?>", "", each) for each in found[1].split("<li>")]
    assert ["The search" in words[0], "waited" in words[1], "990 of 1,000 calls" in words[2]] == [
        True
    ] * 3


def test_many_compiles_are_told_in_one_line() -> None:
    compiles = tuple(Compile(f"k{n}", 0.0, 1.0 + n, "compiled here") for n in range(40))
    first = re.search(r"<ul>(.*?)</ul>", page(dataclasses.replace(MADE, compiles=compiles)))
    assert first is not None
    assert first[1].count("for compiles of 40 kernels") == first[1].count("tzero.warmup") == 1
    assert "<code>k39</code> 40.00 s, <code>k38</code> 39.00 s, <code>k37</code>" in first[1]


def searched(chosen: str, *candidates: Candidate) -> str:
    """What the page says of one search, as text."""
    search = Search("k", 1.0, chosen, "why", candidates=candidates)
    made = page(Run(("a.py",), 0, 2.0, "now", {}, "here", searches=(search,)))
    return re.sub(r"<[^>]*>", " ", made.partition("<h2>Searches</h2>")[2])


def test_a_first_config_that_is_kept_is_told_with_the_spread() -> None:
    first = Candidate("A", 5e-6, "", 4e-6, 6e-6)
    text = searched("A", first, Candidate("B", 4.5e-6, "", 4.2e-6, 4.8e-6))
    assert "4.2 to 4.8" in text and "4.0 to 6.0" in text
    assert "It is kept unless another is faster by more than the spread" in text


def test_the_config_with_the_least_time_needs_no_words() -> None:
    text = searched("A", Candidate("A", 4e-6), Candidate("B", 5e-6), Candidate("C", None, "odd"))
    assert "is kept unless" not in text and "odd" in text
    assert "not timed in this search" in searched("D", Candidate("A", 4e-6))


def test_a_bar_has_the_interval_of_its_time() -> None:
    search = Search("k", 1.0, "A", "", candidates=(Candidate("A", 2e-6, "", 1e-6, 4e-6),))
    made = page(Run(("a.py",), 0, 2.0, "now", {}, "here", searches=(search,)))
    assert '<i style="width:50.0%"></i><b style="left:25.0%;width:75.0%"></b>' in made


def test_a_run_without_kernels_has_a_page() -> None:
    text = page(Run(("a.py",), 0, 0.1, "now", {}, "here"))
    assert "No kernel was called" in text and "<h2>Searches" not in text


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [PHONE, 1200])
def test_a_page_fits_its_window_in_light_and_in_dark(run: Run, width: int, dark: bool) -> None:
    for each in (run, MADE):
        wide, ground, text = layout(page(each), width, dark=dark)
        assert wide <= width, "it scrolls sideways"
        assert (ground < 60 and text > 200) if dark else (ground > 240 and text < 60)


# -- the trace -------------------------------------------------------------------------------------


def spans(made: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [each for each in made["traceEvents"] if each.get("cat") == kind and each["ph"] == "X"]


def test_a_trace_has_launches_calls_binaries_and_searches(run: Run, folder: Path) -> None:
    done = tzero(folder, "trace", "run.json", "-o", "trace.json")
    assert done.returncode == 2, "what follows the record would be the program's"
    done = tzero(folder, "trace", "--json", "-o", "trace.json", "run.json")
    assert done.returncode == 0, done.stderr
    made = json.loads((folder / "trace.json").read_text())
    told = json.loads(done.stdout)
    assert told["events"] == len(made["traceEvents"]) and told["trace"] == "trace.json"
    assert len(spans(made, "launch")) >= 60 and len(spans(made, "call")) == 20 * 5
    assert {each["name"] for each in spans(made, "tune")} == {
        "config of chosen",
        "config of tuned_kernel",
    }
    assert len(spans(made, "compile")) == len(run.compiles)


def test_spans_of_a_track_are_nested(run: Run) -> None:
    """A viewer cannot draw spans of one thread that overlap in part."""
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for each in tracing.trace(run)["traceEvents"]:
        if each["ph"] == "X":
            ends = (each["ts"], each["ts"] + each["dur"])
            tracks.setdefault((each["pid"], each["tid"]), []).append(ends)
    assert tracks
    for ends in tracks.values():
        open_ends: list[float] = []
        for start, end in sorted(ends, key=lambda each: (each[0], -each[1])):
            while open_ends and open_ends[-1] <= start + 0.01:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1] + 0.01
            open_ends.append(end)


# -- programs that end in other ways ---------------------------------------------------------------


def test_the_status_of_the_program_is_that_of_the_command(folder: Path, run: Run) -> None:
    done = tzero(folder, "report", "--json", "program.py", "7")
    assert done.returncode == 7 and "program: 7" in done.stderr
    assert json.loads(done.stdout)["status"] == 7


def test_a_program_that_raises_and_forks_has_one_report(tmp_path: Path) -> None:
    text = (
        "import os\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\nraise ValueError(pid > 0)\n"
    )
    (tmp_path / "program.py").write_text(text)
    done = tzero(tmp_path, "report", "program.py")
    assert done.returncode == 1
    assert done.stderr.count("the report is in") == 1 and "ValueError: True" in done.stderr
    assert "ended with status 1" in (tmp_path / "tzero-report.html").read_text()


def test_a_module_is_run_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("import sys; print(sys.argv[1:])")
    done = tzero(tmp_path, "trace", "-m", "module", "a")
    assert (done.returncode, done.stdout) == (0, "['a']\n"), done.stderr
    assert (tmp_path / "tzero-trace.json").exists()


def test_what_is_no_program_or_record_is_refused(tzero_command: Command, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"tzero_run": 0}')
    assert "no record" in tzero_command("report", str(tmp_path / "run.json"), code=2).stderr
    assert "no program" in tzero_command("trace", str(tmp_path / "nothing.py"), code=2).stderr


def test_a_page_that_cannot_be_written_is_told(tzero_command: Command, tmp_path: Path) -> None:
    dataclasses.replace(MADE, status=0).save(tmp_path / "run.json")
    there = str(tmp_path / "nowhere" / "page.html")
    done = tzero_command("report", "-o", there, str(tmp_path / "run.json"), code=3)
    assert there in done.stderr


@pytest.mark.skipif(find_spec("helion") is None, reason="Helion is not installed")
def test_kernels_of_helion_are_told_as_such(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "helion_kernel.py"
    done = tzero(tmp_path, "report", "--json", str(example))
    assert done.returncode == 0, done.stderr
    run = Run.from_facts(json.loads(done.stdout))
    (found,) = (each for each in run.kernels if each.kind == "Helion kernel")
    assert found.native > 0 and "helion_kernel.py:" in found.place
