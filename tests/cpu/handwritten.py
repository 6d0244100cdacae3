"""Kernels written in C, launched by the real launcher without the compiler's passes.

Enters: the body of a kernel, its signature as Triton writes it, metadata. Leaves: a callable that
takes a grid and arguments.
"""

from __future__ import annotations

import functools
import types
from typing import Any

from tzero.cpu import driver, pool, sealing, toolchain, triton_compat
from tzero.cpu.launcher import Launcher

HEADER = """
#define _GNU_SOURCE
#include "launch.h"
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#define EACH_PROGRAM for (int64_t p = first; p < last; p++)
static int64_t thread(void) { return syscall(SYS_gettid); }
"""
BODY = "void tz_kernel(const tz_launch *launch, int64_t first, int64_t last, void *scratch) {"

# Counts each program, and records which thread ran it.
COUNT = """
    struct { int32_t *count; int64_t *thread; } const *a = launch->args;
    EACH_PROGRAM { __atomic_fetch_add(&a->count[p], 1, __ATOMIC_RELAXED); a->thread[p] = thread(); }
"""
# A program ends only when all have begun, so they must be on different threads.
MEET = """
    struct { int32_t *arrived; int64_t *thread; } const *a = launch->args;
    int64_t all = (int64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    EACH_PROGRAM {
        a->thread[p] = thread();
        __atomic_fetch_add(a->arrived, 1, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(a->arrived, __ATOMIC_SEQ_CST) < all) sched_yield();
    }
"""
# Signals that it has begun, then runs until it is released.
WAIT = """
    struct { int32_t *begun, *release; } const *a = launch->args;
    EACH_PROGRAM {
        __atomic_fetch_add(a->begun, 1, __ATOMIC_SEQ_CST);
        while (!__atomic_load_n(a->release, __ATOMIC_SEQ_CST)) sched_yield();
    }
"""
# Fails in one program, and counts those that ran.
RAISE = """
    struct { int32_t *count; int64_t at, site; } const *a = launch->args;
    EACH_PROGRAM {
        if (__atomic_load_n(&launch->status->raised, __ATOMIC_RELAXED)) return;
        __atomic_fetch_add(a->count, 1, __ATOMIC_RELAXED);
        if (p < a->at) continue;
        if (__atomic_exchange_n(&launch->status->raised, 1, __ATOMIC_SEQ_CST)) continue;
        int32_t x = launch->grid[0], y = launch->grid[1];
        launch->status->site = (int32_t)a->site;
        launch->status->pid[0] = (int32_t)(p % x);
        launch->status->pid[1] = (int32_t)(p / x % y);
        launch->status->pid[2] = (int32_t)(p / x / y);
        launch->status->offset = 1000;
    }
"""
# Fills its scratch, lets others run, and checks that it is unchanged.
SCRATCH = """
    struct { int64_t *where, size; } const *a = launch->args;
    EACH_PROGRAM {
        a->where[p] = (int64_t)(uintptr_t)scratch;
        memset(scratch, (int)p, (size_t)a->size);
        for (int turn = 0; turn < 3; turn++) sched_yield();
        for (int64_t i = 0; i < a->size; i += 63)
            if (((unsigned char *)scratch)[i] != (unsigned char)p) a->where[p] = 1;
    }
"""
MUCH = 1 << 30  # work per program that is always worth a thread


@functools.cache
def binary_of(body: str) -> bytes:
    source = HEADER + BODY + body + "}\n"
    return toolchain.find().build(source, "test", [pool.RUNTIME], optimization=1)


class Kernel:
    """A hand-written kernel behind a Launcher, called as Triton calls it."""

    def __init__(self, body: str, signature: dict[str, Any], **metadata: Any) -> None:
        facts: dict[str, Any] = {
            "name": "test_kernel",
            "cpu_scratch": 0,
            "cpu_work": MUCH,
            "cpu_sites": [],
            "cpu_check": False,
            "launch_cooperative_grid": False,
        }
        source = types.SimpleNamespace(signature=signature)
        if "cpu_params" not in metadata:
            metadata["cpu_params"] = [tag_of(p.type) for p in triton_compat.parameters(source)]
        facts |= metadata
        binary = binary_of(body)
        sealing.seal(facts, binary, triton_compat.cache_directory())
        self.launcher = Launcher(source, types.SimpleNamespace(**facts))
        utils = driver.CPUDriver().utils
        self.library, self.function, *_ = utils.load_binary("test_kernel", binary, 0, "cpu")

    def __call__(self, grid: tuple[int, int, int], *args: Any, **hooks: Any) -> None:
        self.launcher(
            *grid, 0, self.function, None, "facts", hooks.get("enter"), hooks.get("exit"), *args
        )


def tag_of(type_: str) -> str:
    if type_.startswith("*"):
        return "ptr"
    return {"fp16": "f16", "fp32": "f32", "fp64": "f64"}.get(type_, type_.replace("u", "i"))


COUNTERS = {"count": "*i32", "thread": "*i64"}
FLAGS = {"begun": "*i32", "release": "*i32"}
RAISING = {"count": "*i32", "at": "i64", "site": "i64"}
SITES = [
    ["assert", "index < size", "model.py", 12, None],
    ["bounds", "", "model.py", 13, "x_ptr"],
]
