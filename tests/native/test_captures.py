# mypy: allow-untyped-decorators
"""What launches the CUDA graphs of parts of plans, on a stand-in for CUDA's driver, also when that
fails.

tests/plans/test_parts.py has the parts, tests/gpu/test_steps.py the real driver.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from torch import Tensor

from tests.native import standin
from tests.native.standin import Driver, driver, kernel_of, on_cuda
from tests.native.test_graphs import N, add
from tzero import settings
from tzero.adapters.cuda_graphs import KernelParams
from tzero.plans import captures
from tzero.plans.captures import GraphDescription, NodeDescription
from tzero.plans.planner import Planner

LAUNCH = "cuGraphLaunch stream 0"
SET = "cuGraphExecKernelNodeSetParams"
PLAIN = "cuLaunchKernelEx stream 0 grid 2"
STREAM = 5


def step(x: Tensor, y: Tensor) -> Tensor:
    """Changes its input: what is done twice shows."""
    out, n = torch.empty_like(x), x.numel()
    grid = (triton.cdiv(n, 128),)
    add[grid](x, y, x, n, BLOCK=128)
    add[grid](x, y, out, n, BLOCK=128)
    return out


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("count", c_uint),
    )


class Captured:
    """A graph of the stand-in's, with a node for each launch."""

    def __init__(self, library: Driver, launches: list[tuple[int, ...]], n: int) -> None:
        self._library = library.library
        self._grid = (c_uint * 3)(triton.cdiv(n, 128), 1, 1)
        self._add = library.address("standin_add")
        self.handle = c_void_p()
        self._library.cuStreamBeginCapture_v2(c_void_p(STREAM), 1)
        self.nodes = [self._captured(addresses, n) for addresses in launches]
        self._library.cuStreamEndCapture(c_void_p(STREAM), byref(self.handle))

    def _captured(self, addresses: tuple[int, ...], n: int) -> tuple[int, tuple[bytes, ...], bytes]:
        """A launch: its node, the values of its parameters, and its description."""
        values = (c_uint64 * 6)(*addresses, n, 0, 0)
        params = (c_void_p * 6)(*(ctypes.addressof(values) + 8 * k for k in range(6)))
        config = Config(grid=self._grid, stream=STREAM)
        self._library.cuLaunchKernelEx(byref(config), c_void_p(self._add), params, None)
        status, number, of = c_int(), c_uint64(), c_void_p()
        latest, edges, count = ctypes.POINTER(c_void_p)(), c_void_p(), c_size_t()
        self._library.cuStreamGetCaptureInfo_v3(
            c_void_p(STREAM), *map(byref, (status, number, of, latest, edges, count))
        )
        described = KernelParams(function=self._add, grid=self._grid)
        blocks = tuple(value.to_bytes(8, "little") for value in values)
        return latest[0] or 0, blocks, bytes(described)

    def __del__(self) -> None:
        self._library.cuGraphDestroy(self.handle)


def captured(library: Driver, tensors: tuple[Tensor, ...]) -> GraphDescription:
    """The graph of `step`, with the addresses of all its tensors set in each call."""
    addresses = tuple(each.data_ptr() for each in tensors)
    x, y, out = addresses
    graph = Captured(library, [(x, y, x), (x, y, out)], tensors[0].numel())
    inputs = ((0, 1, 0), (0, 1, 2))
    nodes = tuple(
        NodeDescription(0, handle, params, blocks, tuple((k, b, 0, 0) for b, k in enumerate(which)))
        for (handle, blocks, params), which in zip(graph.nodes, inputs, strict=True)
    )
    return GraphDescription(graph.handle.value or 0, graph, (), (), (), nodes, addresses)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    found = driver()
    on_cuda()
    monkeypatch.setattr(Planner, "graphed_on", "cpu")
    monkeypatch.setattr(captures._Graphs, "make", lambda _, tensors: captured(found, tensors))
    found.use_stream(0)
    found.capture(0)
    with settings.override(tier=2), torch.no_grad():
        yield found
    gc.collect()
    assert found.alive() == 0


def warm(kernel: Any, cuda: Driver) -> None:
    """Call until the next call launches a graph: the first call records."""
    for _ in range(3):
        kernel(full(1.0), full(1.0))
    cuda.calls()


def full(value: float) -> Tensor:
    return torch.full((N,), value)


def check(kernel: Any) -> None:
    """A call with other tensors than the ones before."""
    x, y = full(3.0), full(2.0)
    _held.append((x, y))
    assert torch.equal(kernel(x, y), full(7.0))
    assert torch.equal(x, full(5.0))


_held: list[tuple[Tensor, Tensor]] = []


def test_a_part_is_launched_as_a_graph(cuda: Driver) -> None:
    kernel = kernel_of(step, graph=True)
    warm(kernel, cuda)
    x, y = full(3.0), full(2.0)
    kernel(x, y)
    cuda.calls()
    check(kernel)
    calls = cuda.calls()
    assert calls[:2] == [f"{SET} 0", f"{SET} 1"]
    assert calls[2:] == ["cuStreamWaitEvent", LAUNCH, "cuEventRecord"]


def test_a_graph_that_cannot_be_instantiated_leaves_plain_launches(
    cuda: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = kernel_of(step, graph=True)
    check(kernel)
    cuda.fail("cuGraphInstantiate", 2)
    for _ in range(3):
        check(kernel)
    assert PLAIN in cuda.calls()
    assert "CUDA refused it (CUDA_ERROR_OUT_OF_MEMORY)" in caplog.text


@pytest.mark.parametrize("name", [SET, "cuStreamWaitEvent", "cuGraphLaunch"])
def test_what_the_driver_refuses_is_launched_plainly(cuda: Driver, name: str) -> None:
    kernel = kernel_of(step, graph=True)
    warm(kernel, cuda)
    cuda.fail(name)
    check(kernel)
    assert PLAIN in cuda.calls()
    check(kernel)


def test_a_graph_that_was_launched_is_not_made_again_by_its_steps(cuda: Driver) -> None:
    kernel = kernel_of(step, graph=True)
    warm(kernel, cuda)
    x, y = full(3.0), full(2.0)
    cuda.fail("cuEventRecord")
    with pytest.raises(RuntimeError, match="CUDA_ERROR_STANDIN"):
        kernel(x, y)
    assert torch.equal(x, full(5.0))
    check(kernel)


def test_a_thread_that_waits_for_a_graph_does_not_launch_what_another_spoiled(
    cuda: Driver,
) -> None:
    """The first node was to get the address of `x`, and did not: both calls have the same `x`."""
    kernel = kernel_of(step, graph=True)
    before, x, y = full(1.0), full(3.0), full(2.0)
    warm(kernel, cuda)
    kernel(before, y)
    was = before.clone()
    cuda.slow(SET, 0.2)
    cuda.fail(SET)

    def call() -> None:
        with torch.no_grad():
            kernel(x, y)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for each in threads:
        each.start()
        time.sleep(0.05)
    for each in threads:
        each.join()
    assert torch.equal(before, was)
    assert torch.equal(x, full(7.0))


def test_one_thread_captures_and_the_others_go_on(
    cuda: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a graph copies inputs into is remembered between its captures."""
    monkeypatch.undo()
    monkeypatch.setattr(Planner, "graphed_on", "cpu")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    open_ = most = 0

    def made(_: Any, tensors: tuple[Tensor, ...]) -> GraphDescription:
        nonlocal open_, most
        open_ += 1
        most = max(most, open_)
        time.sleep(0.1)
        open_ -= 1
        return captured(cuda, tensors)

    monkeypatch.setattr(captures._Graphs, "_made", made)
    kernel = kernel_of(step, graph=True)
    check(kernel)

    made_by: list[Tensor] = []

    def call() -> None:
        with torch.no_grad():
            made_by.append(kernel(full(3.0), full(2.0)))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    check(kernel)
    assert all(torch.equal(each, full(7.0)) for each in made_by) and len(made_by) == 4
    assert most == 1
    assert LAUNCH in cuda.calls()


def test_what_is_dropped_is_destroyed_once_it_has_ended(cuda: Driver) -> None:
    kernel = kernel_of(step, graph=True)
    warm(kernel, cuda)
    assert cuda.alive() == 2
    kernel.reset()
    calls = cuda.calls()
    assert calls[:2] == ["cuEventSynchronize", "cuGraphExecDestroy"]
    assert cuda.alive() == 0


def test_captures_of_other_threads_are_left_alone(cuda: Driver) -> None:
    before = cuda.disturbing()
    kernel = kernel_of(step, graph=True)
    warm(kernel, cuda)
    kernel.reset()
    assert cuda.disturbing() == before


def test_a_forked_child_does_not_call_the_driver(cuda: Driver) -> None:
    kernel = kernel_of(step, graph=True)
    warm(kernel, cuda)
    child = os.fork()
    if child == 0:
        kernel._forget(None)
        os._exit(sum("Exec" in call or "Event" in call for call in cuda.calls()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    check(kernel)


def test_a_forked_child_does_not_wait_for_threads_of_its_parent(cuda: Driver) -> None:
    kernel, other = (kernel_of(step, graph=True) for _ in range(2))
    warm(kernel, cuda)
    warm(other, cuda)
    cuda.slow("cuGraphLaunch", 0.5)

    def call() -> None:
        with torch.no_grad():
            check(other)

    thread = threading.Thread(target=call)
    thread.start()
    time.sleep(0.1)
    child = os.fork()
    if child == 0:
        kernel._forget(None)
        os._exit(0)
    thread.join()
    end = time.monotonic() + 10
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        time.sleep(0.01)
    if done == (0, 0):
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert done != (0, 0), "the child waits for a lock of its parent"


def test_what_was_made_before_a_reset_of_the_device_is_left_alone(cuda: Driver) -> None:
    kernel = kernel_of(step, graph=True)
    warm(kernel, cuda)
    cuda.reset()
    kernel.reset()
    assert not [call for call in cuda.calls() if "Exec" in call or "Event" in call]
    warm(kernel, cuda)
    check(kernel)
    assert LAUNCH in cuda.calls()


def test_an_old_driver_leaves_plain_launches(tmp_path: Path) -> None:
    """In a process of its own: its driver lacks a function."""
    source = tmp_path / "older.c"
    text = standin.SOURCE.read_text(encoding="utf-8")
    source.write_text(text.replace("cuStreamWaitEvent(", "not_there("), encoding="utf-8")
    program = f"""
import logging, pathlib, torch
from tests.native import standin
standin.SOURCE = pathlib.Path({str(source)!r})
from tests.native.test_captures import captured, check, step
from tzero import settings
from tzero.plans.captures import _Graphs
from tzero.plans.planner import Planner
Planner.graphed_on = "cpu"
_Graphs.make = lambda _, tensors: captured(standin.driver(), tensors)
with settings.override(tier=2), torch.no_grad():
    kernel = standin.kernel_of(step, graph=True)
    for _ in range(4):
        check(kernel)
"""
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "TZERO_CPU": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert "not as a CUDA graph: CUDA's driver has no cuStreamWaitEvent" in done.stderr
