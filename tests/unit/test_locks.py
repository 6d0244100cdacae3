"""Every lock of tzero is known to the reset in forked children."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import pkgutil
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import tzero
from tests.compile.waiting import PYTHONPATH
from tzero import locks

LOCKS = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Semaphore)
OPTIONAL = ("cutlass", "helion", "halide")  # packages whose modules of ours need them

# What a program uses, so that its objects are there when the locks are looked for.
PROGRAM = """
import torch, triton, triton.language as tl
import tzero
from tests.unit.test_locks import Kernels, import_all, unknown_locks
from tests.compile.backends import request
from tests.compile.memory import Memory
from tzero.cache.remote import Remote
from tzero.compile import AsyncCompile, service
import tzero.backends

import_all()
add = Kernels().add
x = torch.ones(100)
assert add(x, x).sum() == 200 and add(x, x).sum() == 200
ours = AsyncCompile(Memory())
future = ours.submit(request("echo", "text"))
assert future.result().files["out"] == b"text"
remote = Remote("memory://somewhere", None)
remote.get("0" * 64)
found = list(unknown_locks({"program": globals()}))
ours.shutdown()
print(*found, sep="\\n")
"""


class Kernels:
    """Kernels whose source has a file, as plans need."""

    def __init__(self) -> None:
        import torch
        import triton
        import triton.language as tl

        @tzero.jit
        def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
            at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), at < n)

        @tzero.kernel
        def add(x, y):
            out = torch.empty_like(x)
            add_kernel[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), 64)
            return out

        self.add = add


def import_all() -> None:
    """Import every module of tzero whose packages are installed."""
    for module in pkgutil.walk_packages(tzero.__path__, "tzero."):
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in OPTIONAL:
                raise


def unknown_locks(roots: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Where a lock is that a forked child would not reset: in globals of tzero's modules, in its
    classes, and in objects of its classes that these, containers or closures refer to."""
    modules = {name: vars(m) for name, m in list(sys.modules.items()) if is_ours(name)}
    waiting: list[tuple[str, Any]] = [(name, space) for name, space in (modules | roots).items()]
    seen: dict[int, Any] = {}
    while waiting:
        path, thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if isinstance(thing, LOCKS):
            # Triton's lock of a kernel: a fork waits until nobody hashes (`triton_launch`).
            if not locks.known(thing) and not path.endswith("._hash_lock"):
                yield f"{path}: {type(thing).__name__}"
            continue
        waiting += [(f"{path}.{name}", each) for name, each in parts(thing)]


def is_ours(name: object) -> bool:
    return isinstance(name, str) and (name == "tzero" or name.startswith("tzero."))


def parts(thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, dict):
        yield from ((str(name)[:40], each) for name, each in list(thing.items()))
    elif isinstance(thing, (list, tuple, set, frozenset, weakref.WeakSet)):
        yield from ((str(k), each) for k, each in enumerate(list(thing)))
    elif isinstance(thing, (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)):
        yield from ((str(k), each) for k, each in enumerate([*thing.keys(), *thing.values()]))
    elif isinstance(thing, types.FunctionType):
        if is_ours(thing.__module__):
            yield from ((f"cell{k}", each) for k, each in enumerate(thing.__closure__ or ()))
            yield "__wrapped__", getattr(thing, "__wrapped__", None)
    elif isinstance(thing, types.CellType):
        yield from (("contents", each) for each in gc.get_referents(thing))
    elif isinstance(thing, type):
        if is_ours(thing.__module__):
            yield from list(vars(thing).items())
    elif isinstance(thing, functools.cached_property):
        yield from vars(thing).items()  # until Python 3.12 it has a lock
    elif isinstance(thing, property):
        yield from (("get", thing.fget), ("set", thing.fset))
    elif is_ours(type(thing).__module__) or any(is_ours(k.__module__) for k in type(thing).mro()):
        yield from list(getattr(thing, "__dict__", {}).items())
        for name in (name for kind in type(thing).mro() for name in slots_of(kind)):
            if hasattr(thing, name):
                yield name, getattr(thing, name)


def slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def test_a_forked_child_resets_every_lock_of_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": PYTHONPATH, "TZERO_CPU": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.stdout.strip(), done.returncode) == ("", 0), done.stdout + done.stderr


class Holder:
    __slots__ = ("lock",)
    __module__ = "tzero.example"

    def __init__(self, lock: object) -> None:
        self.lock = lock


@pytest.mark.parametrize(
    "thing",
    [
        threading.Lock(),
        threading.Condition(),
        threading.BoundedSemaphore(2),
        {"a": [threading.RLock()]},
        Holder(threading.Lock()),
        type("Kind", (), {"__module__": "tzero.example", "lock": threading.Lock()}),
        pytest.param(
            functools.cached_property(id),
            marks=pytest.mark.skipif(sys.version_info >= (3, 12), reason="it has no lock"),
        ),
    ],
    ids=["lock", "condition", "semaphore", "containers", "slots", "class", "cached property"],
)
def test_a_lock_made_elsewhere_is_found(thing: object) -> None:
    found = [path for path in unknown_locks({"here": {"thing": thing}}) if path.startswith("here")]
    assert len(found) == 1, found


def test_a_lock_that_is_registered_is_known() -> None:
    made = [locks.lock(), locks.condition(), locks.register(threading.BoundedSemaphore(1))]
    assert all(map(locks.known, made))
    assert not locks.known(threading.Lock())


def test_locks_of_libraries_that_calls_take_are_known() -> None:
    from torch._ops import OpOverload
    from triton.runtime import autotuner, jit

    import tzero.adapters.torch_internals
    import tzero.adapters.triton_launch  # noqa: F401

    kinds = [
        each
        for module in (jit, autotuner)
        for each in vars(module).values()
        if isinstance(each, type) and each.__module__ == module.__name__
    ]
    made = [
        getattr(each, "lock", None)
        for kind in [*kinds, OpOverload]
        for each in vars(kind).values()
        if isinstance(each, functools.cached_property)
    ]
    assert len(made) >= 6
    assert all(each is None or locks.known(each) for each in made)


def forked(child: Any) -> int:
    """The exit code of a child that does this and then ends; None hangs for at most a minute."""
    pid = os.fork()
    if pid == 0:
        import signal

        signal.alarm(60)  # a child that hangs is killed
        os._exit(0 if child() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_can_take_locks_that_other_threads_held_at_the_fork() -> None:
    semaphore = locks.register(threading.BoundedSemaphore(1))
    made: list[Any] = [locks.lock(), locks.condition(), locks.register(threading.Lock())]
    made.append(semaphore._cond)  # type: ignore[attr-defined]
    ready, done = threading.Event(), threading.Event()

    def hold() -> None:
        with made[0], made[1], made[2], made[3]:
            ready.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    try:
        assert forked(lambda: all(each.acquire(timeout=30) for each in made)) == 0
        assert forked(lambda: semaphore.acquire(timeout=30)) == 0
    finally:
        done.set()
        thread.join()


def test_a_lock_that_the_forking_thread_holds_stays_held() -> None:
    made = locks.lock()

    def child() -> bool:
        was_held = locks.owned(made)
        made.release()
        return was_held and not locks.owned(made)

    with made:
        assert forked(child) == 0


def test_a_fork_that_cannot_have_a_lock_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE", 0.01)
    ready, done = threading.Event(), threading.Event()

    def hold() -> None:
        with locks.no_fork:
            ready.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    try:
        assert forked(lambda: locks.no_fork.acquire(timeout=30)) == 0
        with locks.importing():
            assert not locks.owned(locks.no_fork)
    finally:
        done.set()
        thread.join()
    with locks.importing():
        assert locks.owned(locks.no_fork)
    assert not locks.owned(locks.no_fork)


def test_a_fork_waits_for_a_lock_that_is_made_to_be_waited_for() -> None:
    made = locks.lock(fork_waits=True)
    state = [0, 0]
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            with made:
                state[0] += 1
                state[1] += 1

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=change)
    thread.start()
    try:
        codes = [forked(lambda: state[0] == state[1]) for _ in range(50)]
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)
        locks._waited_for.remove(made)
    assert codes == [0] * 50
