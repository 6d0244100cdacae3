"""The compile service: what workers gain, and what a cache hit and a request cost.

The kernels are compiled for an H100 by Triton's own compiler, which needs no GPU. The rows about
compiling use no cache; the rows about the cache have one of their own.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton

from bench import kernels
from bench.record import Target
from bench.rows.row import Case, Row

__all__ = ["ROWS", "requests"]

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
def requests(count: int = COUNT, directory: str | None = None) -> tuple[Any, ...]:
    """Compile requests for different kernels, whose source is written to a directory. Its path is
    part of their digests."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from tzero.backends import triton as backend

    if directory is None:
        directory = tempfile.mkdtemp(prefix="tzero-bench-")
    path = Path(directory, "tzero_bench_kernels.py")
    part = Path(directory, f"{os.getpid()}.part")  # other processes may read the file already
    part.write_text(_HEAD + "".join(_KERNEL.format(k=k) for k in range(count)), encoding="utf-8")
    part.replace(path)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    target = GPUTarget("cuda", 90, 32)
    made = []
    for k in range(count):
        source = ASTSource(getattr(module, f"kernel_{k}"), signature, {"BLOCK": 1024})
        asked = backend.request(source, target, {})
        assert not isinstance(asked, backend.NotTransportable), asked
        made.append(asked)
    return tuple(made)


class _NoStore:
    """A cache that stores nothing."""

    def get(self, digest: str) -> None:
        return None

    claims = ()

    def publish(
        self, digest: str, payload: bytes, then: Callable[[bool], None], first: bool = True
    ) -> Any:
        from tzero.cache.store import Published

        then(False)
        return Published(payload, False)


_turns = itertools.count()


def _anew() -> list[Any]:
    """The requests under new names, so that each is compiled again."""
    turn = next(_turns)
    return [dataclasses.replace(each, name=f"{each.name} {turn}") for each in requests()]


def _compiler(workers: int) -> tuple[Any, Callable[[], None]]:
    """A service with that many workers, and a function that compiles all requests on it."""
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

    return Case({"pool": pool, "inline": inline}, requests, calls=1, rounds=3)


def _submit() -> Case:
    """Each request has a new name, and is finished before the next one is submitted."""
    from tzero import settings

    service, _ = _compiler(WORKERS)
    request, names, asked = requests()[0], itertools.count(), []

    def check() -> None:
        with settings.override(compile_workers=WORKERS):
            service.wait([service.submit(request) for _ in range(EQUAL)])
        assert sum(service.stats().compiled.values()) == 1, service.stats()

    def submit() -> None:
        asked.append(service.submit(dataclasses.replace(request, name=f"asked {next(names)}")))

    return Case({"submit": submit}, check, calls=1, settle=lambda: service.wait(asked))


def _new_kernel() -> Any:
    """A new Triton function and how it is called, as Triton makes them before it compiles."""
    from tzero.adapters import triton_launch

    x = torch.zeros(1024)
    kernel = triton.jit(kernels.add_kernel.fn)
    return triton_launch.source_of(kernel, (x, x, x, 1024), {"BLOCK": 1024})


def _hit_in(store: Any) -> Callable[[], None]:
    """Load a kernel that is only on the disk: find it, verify it, make it ready to launch."""
    from tzero.backends import triton as backend
    from tzero.compile import AsyncCompile

    def hit() -> None:
        source, target, options = _new_kernel()
        request = backend.request(source, target, options)
        service = AsyncCompile(stores=lambda _: store)
        backend.load(service.compile(request), source)._init_handles()
        if store.missed:
            raise RuntimeError("the kernel was not on the disk")

    return hit


class _Watched:
    """A store that remembers whether the last lookup missed."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.missed = False

    def get(self, digest: str) -> Any:
        found = self.store.get(digest)
        self.missed = found is None
        return found

    claims = ()

    def publish(
        self, digest: str, payload: bytes, then: Callable[[bool], None], first: bool = True
    ) -> Any:
        return self.store.publish(digest, payload, then, first=first)


def _filled(entries: int) -> Any:
    """A store on the disk with that many entries, deleted when the process ends."""
    from tzero import settings
    from tzero.cache import stores

    directory = tempfile.TemporaryDirectory(prefix="tzero-bench-")
    atexit.register(directory.cleanup)
    with settings.override(cache_dir=f"{directory.name}/kernels", cache_limit=1 << 20):
        store = stores(settings.now())
    for k in range(entries):
        store.put(hashlib.sha256(str(k).encode()).hexdigest(), b"an entry")
    return _Watched(store)


def _warm(hit: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the first call misses and compiles
        hit()
    hit()


def _hit() -> Case:
    hit = _hit_in(_filled(0))
    return Case({"disk": hit, "function": _new_kernel}, lambda: _warm(hit), calls=4)


def _hit_among_many() -> Case:
    hits = {"100,000": _hit_in(_filled(MANY)), "one": _hit_in(_filled(0))}

    def check() -> None:
        for hit in hits.values():
            _warm(hit)

    return Case(hits, check, calls=4)


_IMPORTS = """\
import torch
import triton
import triton.language as tl
"""

_FIRST = f"""\
{_IMPORTS}
import tzero

@tzero.jit
@triton.jit
def add_one(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

x = torch.zeros(1000)
add_one[(1,)](x, 1000, BLOCK=1024)
assert x.eq(1).all()
"""


def _first() -> Case:
    """Whole processes: one that launches a kernel from the disk cache, one that only imports."""
    directory = tempfile.TemporaryDirectory(prefix="tzero-bench-")
    atexit.register(directory.cleanup)
    folder = Path(directory.name)
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        "TZERO_CPU": "1",
        "TZERO_CACHE_DIR": str(folder / "kernels"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }
    if variables.pop("PYTHONDONTWRITEBYTECODE", None):
        variables["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")  # as in an installed package

    def process(name: str, text: str) -> Callable[[], None]:
        path = folder / f"{name}.py"
        path.write_text(text)

        def run() -> None:
            subprocess.run([sys.executable, str(path)], env=variables, check=True)

        return run

    contenders = {"launch": process("launch", _FIRST), "imports": process("imports", _IMPORTS)}

    def check() -> None:
        for _ in range(2):  # the first compiles
            for run in contenders.values():
                run()

    return Case(contenders, check, calls=1, rounds=9)


def _memory() -> Case:
    """The resident memory of workers that have compiled all of the kernels."""
    import psutil

    from tzero import events

    _, run = _compiler(WORKERS)
    pids: set[int] = set()

    def note(event: events.Event) -> None:
        if event.kind == "compile":
            pids.add(event.facts["pid"])

    def check() -> None:
        with events.observe(note):
            run()
        assert pids and os.getpid() not in pids

    def largest() -> int:
        return max(psutil.Process(pid).memory_info().rss for pid in pids)

    return Case({"worker": largest}, check, rounds=1)


def _row(name: str, title: str, case: Callable[[], Case], **facts: Any) -> Row:
    return Row(name, title, case, **{"interpreted": False, **facts})


ROWS = (
    _row(
        *("compile.pool.32", "Compile 32 kernels with 2 workers", _throughput),
        subject="pool",
        baseline="inline",
        target=Target("ratio", 1 / 1.8),
        seconds=35.0,
    ),
    _row(
        *("compile.pool.start.32", "The same, starting the workers too", _started),
        subject="pool",
        baseline="inline",
        target=Target("ratio", 1 / 1.5),
        seconds=30.0,
    ),
    _row(
        *("compile.submit", "Submit a compile request", _submit),
        subject="submit",
        baseline=None,
        unit="us",
        target=Target("value", 200e-6),
    ),
    _row(
        *("compile.hit.disk", "Load a kernel from the disk cache", _hit),
        subject="disk",
        baseline=None,
        floor="function",
        target=Target("value", 1.5e-3),
    ),
    _row(
        *("compile.first", "A process's first launch, from the disk cache", _first),
        subject="launch",
        baseline=None,
        floor="imports",
        target=Target("value", 150e-3),
        seconds=45.0,
    ),
    _row(
        *("compile.hit.100000", "The same with 100,000 entries", _hit_among_many),
        subject="100,000",
        baseline="one",
        target=Target("ratio", 1.2),
        seconds=40.0,
    ),
    _row(
        *("compile.memory", "Memory of a compile worker", _memory),
        subject="worker",
        baseline=None,
        unit="bytes",
        target=Target("value", 400e6),
    ),
)
