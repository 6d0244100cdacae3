"""Rows about what goes on around launches: threads, tracing, allocators, failures."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import triton
from triton import knobs
from triton.runtime import _allocation

from tests.launches import kernels
from tests.launches.looking import warm
from tests.launches.row import table
from tests.launches.rows_arguments import GRID, Mine, integers

ROWS = table()
row = ROWS.add

THREADS = 8


@row()
def threads_that_mix_alignments_and_integers_each_get_their_answer(make, device):
    kernel = make(kernels.fill)
    out = integers(device, 33)
    warm(kernel, lambda: kernel[GRID](out, 7, 32, BLOCK=32))
    start = threading.Barrier(THREADS)

    def work(thread):
        mine = integers(device, 33)
        start.wait()
        for k in range(60):
            offset = (thread + k) % 2
            value = (1, 16, 7, 2**40, 2.0)[(thread + k) % 5]
            mine.zero_()
            kernel[GRID](mine[offset:], value, 32, BLOCK=32)
            if mine.tolist() != [0] * offset + [int(value)] * 32 + [0] * (1 - offset):
                return (thread, k)
        return None

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(work, range(THREADS))) == [None] * THREADS


@row()
def threads_may_start_a_kernel_together(make, device):
    for _ in range(5):
        kernel = make(kernels.put)
        start = threading.Barrier(THREADS)

        def work(value, kernel=kernel, start=start):
            out = integers(device)
            start.wait()
            for _ in range(3):
                kernel[GRID](out, value)
            return out[0].item()

        with ThreadPoolExecutor(THREADS) as pool:
            assert list(pool.map(work, range(THREADS))) == list(range(THREADS))


@row("launch_hooks")
def each_launch_of_many_threads_is_told_to_a_hook(make, device):
    kernel = make(kernels.put)
    out = integers(device)
    warm(kernel, lambda: kernel[GRID](out, 7))
    seen = []
    knobs.runtime.launch_enter_hook.add(lambda metadata: seen.append(metadata.get()["name"]))

    def work(value):
        mine = integers(device)
        for _ in range(20):
            kernel[GRID](mine, value)
        return mine[0].item()

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(work, range(THREADS))) == list(range(THREADS))
    assert seen == ["put"] * 20 * THREADS


@row()
def torch_compile_traces_a_launch(make, device):
    kernel = make(kernels.double)
    x = torch.ones(8, device=device)
    warm(kernel, lambda: kernel[GRID](x, 8))

    def function(x):
        y = x + 1
        kernel[GRID](y, 8, BLOCK=8)
        return 2 * y

    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend=backend, fullgraph=True)
        for value in (1.0, 2.0):
            x.fill_(value)
            assert compiled(x).tolist() == [4 * (value + 1)] * 8
            assert function(x).tolist() == [4 * (value + 1)] * 8
    torch._dynamo.reset()


@row()
def a_compile_that_fails_is_heard_and_leaves_the_kernel_usable(make, device):
    kernel, out = make(kernels.put), integers(device)
    binary = warm(kernel, lambda: kernel[GRID](out, 7))
    for _ in range(2):
        with pytest.raises(triton.CompilationError, match="cannot convert None"):
            kernel[GRID](out, None)
    assert kernel[GRID](out, 9) is binary and out[0].item() == 9


@row()
def what_an_argument_raises_is_heard(make, device):
    class Broken:
        dtype = torch.int64

        def data_ptr(self):
            raise LookupError("no memory today")

    kernel, out = make(kernels.put), integers(device)
    warm(kernel, lambda: kernel[GRID](out, 7))
    for _ in range(2):
        with pytest.raises(LookupError, match="no memory today"):
            kernel[GRID](Broken(), 7)
    kernel[GRID](out, 9)
    assert out[0].item() == 9


@row()
def an_allocator_that_is_set_is_there_at_the_launch(make, device):
    if device.type == "cpu":
        return  # no kernel on the CPU asks for memory
    kernel, out = make(kernels.put), integers(device)
    warm(kernel, lambda: kernel[GRID](out, 7))
    before = _allocation._allocator.get()
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, device=device))
    try:
        kernel[GRID](out, 9)
    finally:
        triton.set_allocator(before)
    assert out[0].item() == 9


@row()
def a_launcher_keeps_its_kernel(make, device):
    out = integers(device)
    launch = make(kernels.put)[GRID]  # nothing else has the kernel
    for value in (7, 9, 11, 16):
        launch(out, value)
        gc.collect()
        assert out[0].item() == value


@row()
def arguments_are_not_kept(make, device):
    kernel, out = make(kernels.put), integers(device)
    warm(kernel, lambda: kernel[GRID](out, 7))
    for wrap in (torch.Tensor.detach, torch.nn.Parameter, lambda t: t.as_subclass(Mine)):
        tensor = wrap(torch.zeros(8, device=device))
        for _ in range(3):
            kernel[GRID](tensor, 7)
        gone = weakref.ref(tensor)
        del tensor
        assert gone() is None
