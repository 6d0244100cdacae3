"""Forks while other threads of the parent call, record and compile: each child works.

Each test runs a program, because a fork of a process with other tests' threads proves little. Its
children are killed by an alarm if they hang.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.compile.waiting import PYTHONPATH

START = """
import ast, faulthandler, os, signal, sys, threading, time
import torch, triton, triton.language as tl
import tzero
from tests.faults.fork_kernels import new_add
from tests.compile.backends import request
from tests.compile.memory import Memory
from tzero import locks, settings
from tzero.adapters import intercept, triton_compile, triton_entries
from tzero.compile import AsyncCompile

# Until 3.13 CPython counts the depth of the trees that all threads build in one variable.
parse, turn = ast.parse, locks.lock()
def parse_alone(*args, **kwargs):
    with turn:
        return parse(*args, **kwargs)
ast.parse = parse_alone

x = torch.ones(100)
add = new_add()
for _ in range(3):
    assert add(x, x).sum() == 400
stop = threading.Event()
faults, threads = [], []
HANG = 30  # seconds

def repeat(work):
    def run():
        try:
            while not stop.is_set():
                work()
        except BaseException as error:
            faults.append(repr(error))
            raise
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    threads.append(thread)

def in_child(work):
    '''The exit code of a child that does this; it says where it hangs, and ends.'''
    pid = os.fork()
    if pid == 0:
        faulthandler.dump_traceback_later(HANG, exit=True)
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def replays_natively(kernel):
    kernel(x, x)
    frames = []
    sys.setprofile(lambda frame, event, arg: frames.append(frame) if event == "call" else None)
    try:
        kernel(x, x)
    finally:
        sys.setprofile(None)
    return not frames
"""


def run(text: str, **names: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", START + text],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "TZERO_CPU": "1", **names},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stdout + done.stderr[-5000:]


HANGS = {
    "threads call": "repeat(lambda: add(x, x))",
    "threads bind": "repeat(lambda: add(*[torch.ones(random.randrange(1, 5000))] * 2))",
    "threads record": "repeat(lambda: new_add()(x, x))",
    "threads compile themselves": """
ours = AsyncCompile(Memory())
def work():
    with settings.override(compile_workers=1):
        asked = request("echo", str(random.random()), environment={"TZERO_TEST": "of a thread"})
        ours.compile(asked)
repeat(work)""",
    "workers compile": """
ours = AsyncCompile(Memory())
repeat(lambda: ours.submit(request("echo", str(random.random()))).result())""",
    "threads set knobs": """
def work():
    with triton_compile.with_knobs({"compilation.disable_line_info": True}):
        pass
repeat(work)""",
}

CHILD = """
def child():
    assert add(x, x).sum() == 400
    assert replays_natively(add)
    fresh = new_add()
    for _ in range(3):
        assert fresh(x, x).sum() == 400
    assert replays_natively(fresh)
    assert "TZERO_TEST" not in os.environ
    assert not knobs.compilation.disable_line_info
    mine = AsyncCompile(Memory())
    with settings.override(compile_workers=1):
        assert mine.compile(request("echo", "child")).files["out"] == b"child"
"""


@pytest.mark.parametrize("load", HANGS)
def test_a_child_forked_while_other_threads_work_works_too(load: str) -> None:
    run(
        f"""
import random
from triton import knobs
{CHILD}
{HANGS[load]}
{HANGS[load].rpartition(chr(10))[2]}
sys.setswitchinterval(1e-6)
codes = [in_child(child) for _ in range(25)]
sys.setswitchinterval(0.005)
stop.set()
for each in threads:
    each.join()  # a thread that runs C++ code when Python ends would abort the process
assert codes == [0] * 25, codes
assert not faults, faults
print("done")
"""
    )


def test_a_child_forked_while_another_thread_records_replays_natively() -> None:
    run(
        """
recording, end = threading.Event(), threading.Event()
def launched(function, grid, args, kwargs, launch):
    pass
def record():
    with intercept.intercepted(launched):
        recording.set()
        end.wait()
thread = threading.Thread(target=record, daemon=True)
thread.start()
recording.wait()
def child():
    assert intercept.anywhere == 0
    assert replays_natively(add)
assert in_child(child) == 0
def child_that_records():
    assert intercept.anywhere == 1 and intercept.here.recorder is not None
with intercept.intercepted(launched):
    assert in_child(child_that_records) == 0
end.set()
thread.join()
assert intercept.anywhere == 0 and replays_natively(add)
print("done")
"""
    )


def test_a_child_does_not_keep_what_another_thread_had_changed_for_a_while() -> None:
    run(
        """
import logging
from triton import knobs
from triton.runtime.autotuner import Autotuner
from tzero import events
plain, level = Autotuner.run, logging.getLogger("tzero").level
changed, end = threading.Event(), threading.Event()
def change():
    values = {"compilation.disable_line_info": True}
    with (
        settings.applied({"TZERO_TEST": "1", "TZERO_QUIESCE": "7"}),
        triton_compile.with_knobs(values),
        triton_compile.private_cache("/nowhere"),
        triton_entries.every_config(),
        events.hushed(),
    ):
        changed.set()
        end.wait()
thread = threading.Thread(target=change, daemon=True)
thread.start()
changed.wait()
def child():
    assert "TZERO_TEST" not in os.environ and settings.current().quiesce == 60
    assert not knobs.compilation.disable_line_info
    assert "manager_class" not in vars(knobs.cache)
    assert Autotuner.run is plain
    with events.observe(print):
        assert events.watched()
    assert logging.getLogger("tzero").level == level
assert os.environ["TZERO_TEST"] == "1"
assert in_child(child) == 0
def child_inside():
    assert vars(knobs.cache)["manager_class"]
    assert triton_compile._private.directory == "/here"
with triton_compile.private_cache("/here"):
    assert in_child(child_inside) == 0
end.set()
thread.join()
def child_that_applies():
    assert os.environ["TZERO_TEST"] == "2"
with settings.applied({"TZERO_TEST": "2"}):
    assert in_child(child_that_applies) == 0
print("done")
"""
    )
