"""The compile service: what workers gain, what a cache hit costs, what asking costs.

The kernels are compiled for an H100, which takes no GPU: Triton's own compiler does all of it. No
cache has a part in the rows about compiling; the rows about the cache have one of their own.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.record import Target
from bench.rows.row import Case, Row

__all__ = ["ROWS"]

COUNT = 32
MANY = 100_000
EQUAL = 200
WORKERS = 2

_HEAD = """
import triton
import triton.language as tl
"""

_KERNEL = """

@triton.jit
def kernel_{k}(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + at, mask=at < n, other=0.0)
    b = tl.load(y + at, mask=at < n, other=0.0)
    for _ in range({k} + 2):
        a = tl.exp(a * {k}.5) + b / (tl.abs(a) + 1)
    rows = tl.reshape(a, [BLOCK // 32, 32])
    top = rows - tl.max(rows, axis=1, keep_dims=True)
    shares = tl.exp(top) / tl.sum(tl.exp(top), axis=1, keep_dims=True)
    tl.store(out + at, tl.reshape(shares, [BLOCK]), mask=at < n)
"""


@functools.cache
def _requests() -> tuple[Any, ...]:
    """What 32 kernels, no two alike, ask of a compiler."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from tzero.backends import triton as backend

    directory = tempfile.mkdtemp(prefix="tzero-bench-")
    path = Path(directory, "tzero_bench_kernels.py")
    path.write_text(_HEAD + "".join(_KERNEL.format(k=k) for k in range(COUNT)), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    target = GPUTarget("cuda", 90, 32)
    made = []
    for k in range(COUNT):
        source = ASTSource(getattr(module, f"kernel_{k}"), signature, {"BLOCK": 1024})
        asked = backend.request(source, target, {})
        assert not isinstance(asked, backend.NotTransportable), asked
        made.append(asked)
    return tuple(made)


class _NoStore:
    """A cache that keeps nothing."""

    def get(self, digest: str) -> None:
        return None

    def put(self, digest: str, payload: bytes) -> None:
        return None


_turns = itertools.count()


def _anew() -> list[Any]:
    """The requests under names that nobody has asked for yet, so that all of it is compiled."""
    turn = next(_turns)
    return [dataclasses.replace(each, name=f"{each.name} {turn}") for each in _requests()]


def _compiler(workers: int) -> tuple[Any, Callable[[], None]]:
    """A service with so many workers, and what makes all of the requests on it."""
    from tzero import settings
    from tzero.compile import AsyncCompile

    service = AsyncCompile(stores=lambda _: _NoStore())

    def run() -> None:
        with settings.override(compile_workers=workers):
            service.wait([service.submit(request) for request in _anew()])

    return service, run


def _throughput() -> Case:
    from tzero import settings

    service, pool = _compiler(WORKERS)
    _, inline = _compiler(1)

    def check() -> None:
        with settings.override(compile_workers=WORKERS):
            service.warm_pool()
            assert service.wait_pool_ready(60)
            made = service.wait([service.submit(request) for request in _anew()])
        assert len({bytes(each.files[_binary(each)]) for each in made}) == COUNT
        assert service.stats().compiled["process"] == COUNT

    return Case({"pool": pool, "inline": inline}, check, calls=1, rounds=3)


def _binary(artifact: Any) -> str:
    return next(name for name in artifact.files if name.endswith(".cubin"))


def _started() -> Case:
    _, inline = _compiler(1)

    def pool() -> None:
        service, run = _compiler(WORKERS)
        run()
        service.shutdown()

    return Case({"pool": pool, "inline": inline}, _requests, calls=1, rounds=3)


def _submit() -> Case:
    """What the caller pays for asking, and what compiles is already there to be joined."""
    service, _ = _compiler(WORKERS)
    request = _requests()[0]

    def check() -> None:
        from tzero import settings

        with settings.override(compile_workers=WORKERS):
            futures = [service.submit(request) for _ in range(EQUAL)]
            service.wait(futures)
        stats = service.stats()
        assert sum(stats.compiled.values()) == 1, stats

    names = itertools.count()

    def submit() -> None:
        service.submit(dataclasses.replace(request, name=f"asked {next(names)}"))

    return Case({"submit": submit}, check, calls=1, settle=lambda: time.sleep(0))
