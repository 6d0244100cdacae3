"""One choice for all processes of a job: one searches, the others use what it has found."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from tests import warm
from tzero.cache.disk import Disk
from tzero.cache.fleet import Fleet
from tzero.config import Config
from tzero.events import Event, observe
from tzero.settings import Settings
from tzero.tune.outcome import Outcome
from tzero.tune.records import MOST_AGREED, Memory, Record

A, B = Config(BLOCK=64), Config(BLOCK=128)


def memories(folder: Path) -> list[Memory]:
    """The memories of two nodes of one fleet."""
    return [
        Memory(Disk(folder / f"node {k}"), Fleet(f"file://{folder}/fleet", "key", 10))
        for k in range(2)
    ]


def test_the_first_record_counts_on_all_nodes(tmp_path: Path) -> None:
    one, other = memories(tmp_path)
    assert one.record("key") is None and one.agree("key") is None
    one.keep("key", {A: Outcome(1.0), B: Outcome(2.0)})
    other.keep("key", {A: Outcome(2.0), B: Outcome(1.0)})
    for memory in (one, other, *memories(tmp_path)):
        record = memory.record("key")
        assert record is not None and record.best() == A
    # Each still remembers its own times, for later jobs.
    alone = Memory(Disk(tmp_path / "node 1")).record("key")
    assert alone is not None and alone.best() == B


def test_records_from_earlier_jobs_are_agreed_on_too(tmp_path: Path) -> None:
    Memory(Disk(tmp_path / "node 0")).keep("key", {A: Outcome(1.0)})
    Memory(Disk(tmp_path / "node 1")).keep("key", {B: Outcome(1.0)})
    one, other = memories(tmp_path)
    assert one.agreed("key") is None
    for memory in (other, one):
        record = memory.agree("key")
        assert record is not None and record.best() == B


def test_of_a_large_record_the_fastest_configs_are_sent() -> None:
    timed = {Config(BLOCK=k): Outcome(float(k)) for k in range(1, MOST_AGREED + 100)}
    record = Record("key", {Config(BLOCK=0): Outcome(problem="wrong"), **timed})
    short = record.shortened()
    assert len(short.outcomes) == MOST_AGREED and short.best() == record.best()
    assert Config(BLOCK=0) not in short.outcomes
    assert Record("key", {A: Outcome(1.0)}).shortened().outcomes == {A: Outcome(1.0)}


def test_a_record_of_another_key_is_not_used(tmp_path: Path) -> None:
    from tzero.tune.records import digest_of

    one, _ = memories(tmp_path)
    fleet = Fleet(f"file://{tmp_path}/fleet", "key", 10)
    fleet.agree(digest_of("key"), Record("another", {A: Outcome(1.0)}).encode())
    seen: list[Event] = []
    with observe(seen.append):
        assert one.record("key") is None
    assert len(seen) == 1 and "'another', and 'key' was asked for" in seen[0].reason


PROGRAM = """
import os, pathlib, sys, time, torch, triton, triton.language as tl, tzero
from tzero.events import observe

@tzero.jit
def scale_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

@tzero.kernel(configs=[tzero.Config(BLOCK=size) for size in (64, 256, 1024)])
def scale(x, config):
    out = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), config.BLOCK),)](x, out, x.numel(), config.BLOCK)
    return out

torch.set_num_threads(1)
x = torch.ones(5000)
ready = pathlib.Path(sys.argv[1])
(ready / str(os.getpid())).touch()
while len(list(ready.iterdir())) < 2:
    time.sleep(0.001)
assert scale(x).sum() == 10000
choice = scale.bind(x).choice
compiled = sum(tzero.compile.service().stats().compiled.values())
print(choice.how, choice.variant.BLOCK, compiled)
"""


def test_of_processes_that_tune_together_one_times_the_configs(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    # They begin at once: a process that comes later may time again what a busy machine disturbed.
    (tmp_path / "ready").mkdir()
    said: list[str] = []

    def run(number: int) -> None:
        names = {f"{each}_CACHE_DIR": str(tmp_path / each) for each in ("TZERO", "TRITON")}
        done = warm.run(
            [sys.executable, str(program), str(tmp_path / "ready")],
            env={**os.environ, **names},
            modules=("statistics",) if number else (),
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    how, blocks, compiles = zip(*(text.split() for text in said), strict=True)
    assert sorted(how) == ["cached", "tuned"], said
    assert len(set(blocks)) == 1
    assert sum(map(int, compiles)) == 3  # one for each config, in both processes together


def test_without_a_place_nothing_is_shared(tmp_path: Path) -> None:
    memory = Memory.of(Settings(cache_dir=str(tmp_path)))
    memory.keep("key", {A: Outcome(1.0)})
    assert memory.agreed("key") is None and memory.agree("key") is None
    assert Memory.of(Settings(cache=False)).record("key") is None
