"""The benchmark's own code: ratios, records, tables, the choice of rows, and rows that fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import fleet, record, serving, shipped, simulation, table, text
from bench.__main__ import options
from bench.headline import HEADLINES, chosen
from bench.measure import Effort, Loop, Spread, compare, spread
from bench.record import Record, Result, Target
from bench.rows import ROWS
from bench.rows.row import Case, Row
from bench.run import gauge, measure
from tzero.cpu import toolchain


class FakeClock:
    """A clock that only moves when a contender works; ``speed`` is how busy the machine is."""

    def __init__(self) -> None:
        self.now = 0.0
        self.speed = 1.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        return self.now

    def contender(self, name: str, seconds: float) -> Callable[[], None]:
        def work() -> None:
            self.calls.append(name)
            self.now += seconds * self.speed

        return work


def test_known_costs_give_known_ratios() -> None:
    clock = FakeClock()
    contenders = {"slow": clock.contender("slow", 3.0), "fast": clock.contender("fast", 2.0)}
    found = compare(contenders, baseline="fast", effort=Effort(5, 0.01), clock=clock)
    assert found.seconds["slow"] == Spread(3.0, 3.0, 3.0, 5)
    assert found.seconds["fast"].median == 2.0
    assert found.ratios == {"slow": Spread(1.5, 1.5, 1.5, 5)}


def test_ratio_is_steady_while_the_machine_is_not() -> None:
    clock = FakeClock()
    rounds = iter([1.0, 9.0, 2.0, 30.0, 4.0])
    slow, fast = clock.contender("slow", 4.0), clock.contender("fast", 1.0)

    def pace() -> None:
        # Both contenders of a round see the same machine; the next round sees another.
        if len(clock.calls) % 2 == 0:
            clock.speed = next(rounds)

    def paced(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            pace()
            work()

        return run

    found = compare(
        {"slow": paced(slow), "fast": paced(fast)},
        baseline="fast",
        effort=Effort(5, 0.01),
        calls=1,
        clock=clock,
    )
    assert found.ratios["slow"] == Spread(4.0, 4.0, 4.0, 5)
    assert found.seconds["fast"].q1 < found.seconds["fast"].q3


def test_contenders_take_turns_at_being_first() -> None:
    clock = FakeClock()
    contenders = {name: clock.contender(name, 1.0) for name in "abc"}
    compare(contenders, effort=Effort(4, 0.01), calls=1, clock=clock)
    assert "".join(clock.calls) == "abcbcacababc"


def test_short_calls_are_repeated_until_a_sample_is_long_enough() -> None:
    clock = FakeClock()
    contenders = {"tiny": clock.contender("tiny", 0.001), "long": clock.contender("long", 5.0)}
    found = compare(contenders, baseline="long", effort=Effort(1, 0.1), clock=clock)
    # 1 + 2 + 4 ... + 128 calls to find out, then a run-in and one sample; the long one needs a
    # single call for each.
    assert clock.calls.count("tiny") == 255 + 2 * 128
    assert clock.calls.count("long") == 3
    assert found.seconds["tiny"].median == pytest.approx(0.001)
    assert found.ratios["tiny"].median == pytest.approx(0.0002)


def test_baseline_must_be_a_contender() -> None:
    with pytest.raises(ValueError, match="'torch' is not among a"):
        compare({"a": lambda: None}, baseline="torch", effort=Effort(1, 0.0))


def test_above_a_floor_only_what_is_above_it_counts() -> None:
    clock = FakeClock()
    contenders = {
        "bare": clock.contender("bare", 1.0),
        "ours": clock.contender("ours", 1.5),
        "theirs": clock.contender("theirs", 6.0),
    }
    found = compare(contenders, baseline="theirs", floor="bare", effort=Effort(3, 0.0), clock=clock)
    assert found.ratios == {"ours": Spread(0.1, 0.1, 0.1, 3)}
    with pytest.raises(ValueError, match="floor 'c' is not among bare, ours, theirs"):
        compare(contenders, baseline="theirs", floor="c", effort=Effort(1, 0.0))


def test_a_loop_is_timed_as_a_whole() -> None:
    clock = FakeClock()
    asked: list[int] = []

    def run(times: int) -> None:
        asked.append(times)
        clock.now += 0.5 * times

    found = compare({"c": Loop(run)}, effort=Effort(2, 4.0), clock=clock)
    assert found.seconds["c"].median == 0.5
    assert set(asked[-4:]) == {8}


def test_each_round_tells_how_much_is_done() -> None:
    told: list[float] = []
    compare({"a": lambda: None}, effort=Effort(4, 0.0), calls=1, tick=told.append)
    assert told == [0.25, 0.5, 0.75, 1.0]


def test_what_is_under_way_ends_before_a_sample() -> None:
    clock = FakeClock()
    work = clock.contender("work", 1.0)
    compare({"a": work}, effort=Effort(2, 0.5), clock=clock, settle=clock.contender("wait", 0.0))
    assert clock.calls == ["work", "work", "wait", "work", "work", "wait", "work"]


def test_contenders_of_a_row_in_bytes_say_how_many() -> None:
    said = iter([5, 7, 6])
    found = gauge({"tzero": lambda: next(said)}, 3)
    assert found.seconds["tzero"] == Spread(6.0, 5.5, 6.5, 3)


def test_spread_is_median_and_quartiles() -> None:
    assert spread([4.0, 1.0, 3.0, 2.0, 5.0]) == Spread(3.0, 2.0, 4.0, 5)
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0, 1)
    assert Spread(2.0, 1.0, 3.0, 9).scaled(10) == Spread(20.0, 10.0, 30.0, 9)


def result(row_id: str, ratio: float, target: Target | None, **more: object) -> Result:
    facts = {
        "id": row_id,
        "title": "a row",
        "subject": "triton",
        "baseline": "torch",
        "floor": None,
        "unit": "ms",
        "target": target,
        "values": {
            "triton": Spread(0.002 * ratio, 0.001, 0.003, 5),
            "torch": Spread(0.002, 0.002, 0.002, 5),
        },
        "ratios": {"triton": Spread(ratio, ratio - 0.1, ratio + 0.1, 5)},
    }
    return Result(**{**facts, **more})  # type: ignore[arg-type]


@pytest.fixture
def example() -> Record:
    interpreted = {
        "triton": Spread(0.001, 0.001, 0.001, 5),
        "interpreter": Spread(0.5, 0.5, 0.5, 3),
    }
    return Record(
        when="2025-01-01T00:00:00+00:00",
        machine={"cpu": "a processor", "cores": 2, "system": "Linux", "load_at_start": 0.5},
        versions={"torch": "2.13.0", "triton": "3.6.0"},
        threads=2,
        quick=False,
        rows=(
            result("kept", 1.25, Target("ratio", 1.3)),
            result("missed", 1.35, Target("ratio", 1.3), notes=("a reason",)),
            result(
                "timed",
                1.0,
                Target("value", 0.0015),
                baseline=None,
                ratios={},
                values=interpreted,
            ),
            result("free", 2.0, None),
        ),
    )


def test_a_value_is_compared_with_its_target_without_the_floor() -> None:
    target = Target("value", 0.0011)
    assert result("a", 1.5, target).verdict == "miss"  # 3 ms
    assert result("a", 1.5, target, floor="torch").verdict == "pass"  # 3 ms less 2 ms


def test_verdict_compares_with_the_target(example: Record) -> None:
    assert [row.verdict for row in example.rows] == ["pass", "miss", "pass", ""]


def test_record_survives_the_file(example: Record, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record.write(example, path)
    assert record.read(path) == example
    content = json.loads(path.read_text())
    assert content["schema"] == record.SCHEMA
    assert [row["verdict"] for row in content["rows"]] == ["pass", "miss", "pass", ""]


def test_record_of_another_schema_is_refused(example: Record, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record.write(example, path)
    path.write_text(path.read_text().replace('"schema": 2', '"schema": 99'))
    with pytest.raises(ValueError, match="schema 99; this reads 2"):
        record.read(path)


def test_table_shows_every_row_with_its_verdict(example: Record) -> None:
    text = table.markdown(example)
    lines = {line.split(" | ")[0].strip("| "): line for line in text.splitlines()}
    assert "1.25 (1.15–1.35) | ≤ 1.3 | pass" in lines["kept"]
    assert "triton 2.7 ms | torch 2 ms | 1.35" in lines["missed"]
    assert "interpreter fails" in lines["missed"]
    assert "≤ 1.5 ms | pass | interpreter 500×" in lines["timed"]
    assert "a processor" in text
    assert "triton 3.6.0" in text
    assert "missed: a reason" in text


def test_machine_and_versions_are_recorded() -> None:
    assert record.machine().keys() >= {"cpu", "cores", "system", "load_at_start"}
    found = record.versions()
    assert found["compiler"] == toolchain.find().version
    assert found.keys() >= {"python", "torch", "triton", "tzero"}
    assert found["tzero"][0].isdigit()


def test_a_missing_compiler_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZERO_CC", "no-such-compiler")
    assert record.versions()["compiler"] == "not found"


def make_row(row_id: str, case: Case) -> Row:
    return Row(row_id, "a row", lambda: case)


def test_rows_are_chosen_by_pattern_or_part() -> None:
    case = Case({}, lambda: None)
    rows = [make_row(name, case) for name in ("cpu.add", "cpu.softmax", "launch.2")]
    assert chosen(rows, None, everything=True) == rows
    assert [row.id for row in chosen(rows, "cpu.*")] == ["cpu.add", "cpu.softmax"]
    assert [row.id for row in chosen(rows, "max")] == ["cpu.softmax"]
    with pytest.raises(SystemExit, match=r"cpu\.add, cpu\.softmax, launch\.2"):
        chosen(rows, "gpu")


def test_wrong_results_are_not_timed() -> None:
    calls: list[str] = []

    def check() -> None:
        raise AssertionError("wrong")

    case = Case({"triton": lambda: calls.append("timed"), "torch": lambda: None}, check)
    with pytest.raises(AssertionError, match="wrong"):
        measure(make_row("cpu.wrong", case), Effort(1, 0.0))
    assert not calls


def test_options() -> None:
    given = options(["--quick", "--only", "cpu.*", "--json", "out.json"])
    assert (given.quick, given.only, given.json) == (True, "cpu.*", Path("out.json"))
    assert not given.all
    with pytest.raises(SystemExit):
        options(["--all", "--only", "cpu.*"])


TUNED = ("matmul", "softmax", "layernorm")
LIGER = ("rms_norm", "fused_add_rms_norm", "rope", "swiglu")


def test_ids_are_the_ones_that_were_published() -> None:
    assert [row.id for row in ROWS] == [
        "cpu.add.4M.f32",
        "cpu.softmax.1024x4096.f32",
        "cpu.layernorm.1024x1000.f32",
        "cpu.matmul.512.f32",
        "cpu.attention.causal.1x4x512x64.f16",
        "cpu.compile.small",
        "cpu.compile.sort.16x64",
        *(f"key.{what}.{count}" for what in ("extract", "bind", "call") for count in (2, 8, 16)),
        "key.entries.10000",
        "key.measure.off",
        "key.measure.on",
        "key.memory",
        "launch.triton.2",
        "launch.triton.8",
        "launch.triton.16",
        *(f"launch.{tier}.{count}" for tier in ("native", "python") for count in (2, 8, 16)),
        *(f"cuda.launch.native.{count}" for count in (2, 8, 16)),
        *(f"install.{how}.{count}" for how in ("plain", "tuned") for count in (0, 19, 58)),
        *(f"install.heuristics.{count}" for count in (0, 19, 58)),
        "install.three.58",
        *(f"install.compiled.{count}" for count in (0, 19, 58)),
        *("install.tuples", "install.descriptors"),
        *("cuda.install.tuples", "cuda.install.descriptors"),
        *(f"cuda.install.compiled.{count}" for count in (0, 19, 58)),
        *("cuda.install.fla.chunk_gla", "cuda.install.fla.fused_recurrent_gla"),
        *(f"cuda.install.{how}.{count}" for how in ("plain", "tuned") for count in (0, 19, 58)),
        *(f"cuda.install.heuristics.{count}" for count in (0, 19, 58)),
        "plan.torch.2",
        "plan.pooled.2",
        *(f"plan.{what}.{n}" for what in ("triton", "helion", "cycling") for n in (2, 8, 16)),
        "plan.launches.5",
        "plan.entries.10000",
        "plan.miss",
        *(f"cuda.plan.{count}" for count in (2, 8, 16)),
        *(f"cuda.plan.{what}.{n}" for what in ("pooled", "cycling") for n in (2, 8, 16)),
        "cuda.plan.launches.5",
        *(f"cuda.graphs.{which}" for which in ("pooled.1", "fresh.1", "jit.1")),
        *(f"cuda.graphs.{which}" for which in ("fresh.5", "fresh.20")),
        *(f"cuda.graphs.{which}" for which in ("cycling.1", "cycling.5", "mixed.5")),
        *(
            f"{device}sizes.{what}.{count}{five}"
            for what in ("new", "same")
            for device in ("", "cuda.")
            for five in ("", ".launches.5")
            for count in (2, 8, 16)
        ),
        *("sizes.class", "cuda.sizes.class", "sizes.memory.10000", "sizes.memory.1000000"),
        *("fallback.empty.1", "fallback.empty.8", "fallback.launch"),
        *("plan.helper", "plan.table", "plan.heuristic"),
        *(f"{device}liger.{name}" for device in ("", "cuda.") for name in LIGER),
        *(f"{device}broadcast.{how}" for device in ("", "cuda.") for how in ("triton", "helion")),
        *(f"{device}helion.{count}" for device in ("", "cuda.") for count in (2, 8, 16)),
        *("compile.pool.32", "compile.pool.start.32", "compile.submit"),
        *("compile.hit.disk", "compile.first", "compile.hit.100000", "compile.memory"),
        "compile.shared.4x40",
        *("choose.miss", "choose.hit"),
        *(
            f"{device}tune.{row}"
            for device in ("", "cuda.")
            for row in (
                *(f"{how}.{name}" for name in TUNED for how in ("choice", "nearest")),
                "matmul",
            )
        ),
        *(
            f"cuda.step.{what}"
            for what in (
                "plain",
                "liger",
                *("hand", "moved", "host", "installed", "guards", "first"),
            )
        ),
        "step.record",
    ]
    targets = {row.id: row.target.at_most for row in ROWS if row.target is not None}
    assert list(targets.values()) == [
        *(1.3, 1.0, 1.5, 2.0, 0.6, 0.25, 2.0),
        *[0.5] * 6,
        *(1.15, 0.05, 1.4, 4096),
        *[0.08] * 3,
        *[0.5] * 3,
        *(1.25, 1.5, 1.8),
        *(*[0.06] * 3, *[0.12] * 3, *[0.15] * 4, *[0.3] * 3, *[0.1] * 2),
        *(*[0.1] * 2, *[0.3] * 3, *[1 / 1.8] * 2),
        *(1.25, 1.4, 1.7, *[0.6e-6] * 3, *[0.5e-6] * 3),
        0.75,
        *[1 / 6] * 3,
        *[1 / 8] * 3,
        *[1 / 6] * 3,
        *(1.1, 1.15, 1e-3),
        *(1.6, 2.2, 2.6),
        *(1.15, 1.5, 1.8),
        *(1.6, 2.2, 2.6),
        1.25,
        *(0.9, 1.15, 0.95, 0.45, 0.35, 0.95, 0.5, 1.0),
        *[1.3] * 12,
        *[1.1] * 12,
        *(1e-3, 1e-3, 20e6, 20e6),
        *(0.3e-6, 1.0, *[0.3e-6] * 3),
        *[1 / 4] * 8,
        *[0.15] * 3,
        *(0.18, 0.13, 0.1),
        *(1 / 1.8, 1 / 1.5, 200e-6, 1.5e-3, 150e-3, 1.2, 400e6, 1.25),
        *(2e-6, 2.0),
        *[*[1 / 0.95, 1 / 0.85] * 3, 1 / 1.6] * 2,
        *(1 / 6, 1 / 6, 1.15, 1.25, 1 / 1.8, 15e-6, 0.118),
        35,
    ]


# -- which rows ------------------------------------------------------------------------------------


def test_the_headline_rows_are_few_and_cover_calls_launches_compiling_and_kernels() -> None:
    for device, ids in HEADLINES.items():
        there = [row for row in ROWS if row.device == device]
        assert [row.id for row in chosen(there, None)] == list(ids)
        assert len(ids) <= 8
    for part in ("plan.torch", "plan.triton", "helion", "launch", "compile", "matmul", "softmax"):
        assert any(part in row_id for row_id in HEADLINES["cpu"]), part
    for part in ("cuda.plan", "cuda.helion", "cuda.launch", "cuda.tune"):
        assert any(part in row_id for row_id in HEADLINES["cuda"]), part


def test_all_runs_every_row() -> None:
    runs = [[row for row in ROWS if row.device == device] for device in ("cpu", "cuda")]
    assert {row.id for rows in runs for row in chosen(rows, None, everything=True)} == {
        row.id for row in ROWS
    }


def test_the_page_on_sizes_has_the_recorded_table() -> None:
    page = text.PAGE.read_text(encoding="utf-8")
    assert len(text.records()) >= 1
    assert text.page(page) == page, "run `python -m bench.text --table`"


def test_the_page_on_scale_has_the_recorded_tables() -> None:
    page = fleet.PAGE.read_text(encoding="utf-8")
    assert fleet.page(page) == page, "run `python -m bench.fleet --table`"


def test_a_simulated_fleet_compiles_each_kernel_once_and_sends_it_to_each_node() -> None:
    plan = simulation.Plan(nodes=20, kernels=10, compile=1.0, workers=2)
    found = simulation.run(plan, seconds=1e-5)
    assert found["compiles"] == 10
    assert found["bytes"] == 10 * 20 * simulation.SIZE  # sent once, fetched by all others
    assert found["requests"] > 10 * 20 * 2 and found["warm"] >= 1.0
    assert simulation.run(plan, seconds=1e-5) == found
    slow = simulation.run(plan, seconds=1e-2)
    assert slow["warm"] > found["warm"]


def test_a_simulated_node_asks_a_store_as_often_as_the_page_says() -> None:
    alone = simulation.Plan(nodes=1, kernels=1, compile=1.0, workers=1)
    found = [simulation.run(alone, 1e-5, store)["requests"] for store in ("redis", "c10d")]
    words = "A kernel that is\nmissing costs its owner {} requests ({} in a c10d store)"
    assert words.format(*found) in fleet.PAGE.read_text(encoding="utf-8")


def test_the_page_on_serving_has_the_recorded_tables() -> None:
    page = serving.PAGE.read_text(encoding="utf-8")
    assert serving.page(page) == page, "run `python -m bench.serving --table`"
    assert shipped.page(page) == page, "run `python -m bench.shipped --table`"


def test_a_bundle_that_was_built_without_a_gpu_compiles_nothing_on_one() -> None:
    found = json.loads(shipped.RECORD.read_text(encoding="utf-8"))
    bundle = found["rows"]["bundle"]
    assert (bundle["compiled"], bundle["requests"]) == (0, 0)
    assert not {"gcc", "clang", "cc", "ptxas"}.intersection(bundle["started"])
    assert found["built"]["python"] != found["versions"]["python"]
