"""Markers, and who is skipped where: a test that cannot run here says why."""

from __future__ import annotations

import ast
import collections
import gc
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A slow machine exceeds Hypothesis's limits on time.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

pytest.register_assert_rewrite("tests.plans.tiers")  # before any other conftest imports it

# Before torch is imported. Its threads would spin on cores that other test processes need.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

MARKERS = (
    "gpu: needs a CUDA device; skipped without one (run with `make test-gpu`)",
    "soak: takes minutes; skipped unless asked for with `-m soak` (run with `make soak`)",
)


SLOWEST = (
    "tests/integrations/helion/test_calls.py",
    "tests/hostile/test_search.py",
    "tests/unit/test_wheels.py",
    "tests/tune/test_isolated.py",
    "tests/corpus/test_sizes.py",
    "tests/calls/test_compare.py",
    "tests/integrations/torch/test_compile.py",
    "tests/integrations/torch/test_processes.py",
    "tests/tune/test_judge.py",
    "tests/unit/test_docs.py",
    "tests/tune/test_autotune.py",
    "tests/tune/test_size_hints.py",
    "tests/backends/test_triton_compiled.py",
    "tests/cpu/test_runtime.py",
    "tests/launches/test_mutations.py",
    "tests/launches/test_processes.py",
    "tests/launches/test_leaks.py",
    "tests/backends/test_triton_faithful.py",
    "tests/backends/test_halide.py",
    "tests/tune/test_kernel_search.py",
    "tests/arguments/test_extract.py",
    "tests/unit/test_locks.py",
    "tests/tune/test_shipping.py",
    "tests/cache/test_disk_processes.py",
    "tests/cpu/test_zig.py",
    "tests/cpu/test_launching.py",
    "tests/cpu/test_driver.py",
)
"""The slowest files, the longest first. Those with many tests are not listed: they come next."""


TOGETHER = {
    "tests/integrations/helion/test_rows.py": "tests/integrations/helion/test_calls.py",
}
"""Files that run in the process of another one. Helion compiles a kernel object for a second, and
keeps the result in it; both files call the same objects."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--native",
        type=Path,
        metavar="FILE",
        help="this build of tzero._native instead of the installed one (see `make sanitize`)",
    )
    parser.addoption(
        "--symbolic",
        action="store_true",
        help="plans leave all sizes open from the first call on, unless a kernel says otherwise",
    )

    parser.addoption(
        "--cuda",
        action="store_true",
        help="tensors that name no device are on the GPU (see `make test-graphs`)",
    )


def _start_on_cuda() -> None:
    """Make tensors on the GPU. A default device would be a function mode, under which nothing is
    replayed."""
    import torch

    torch.set_default_tensor_type(torch.cuda.FloatTensor)  # type: ignore[no-untyped-call]


def _start_symbolic() -> None:
    """Let kernels without `static_shapes` start with plans over sizes. Their keys stay exact."""
    from tzero.api import decorators

    decorators._FREE = {**decorators._FREE, None: "everything"}


def _parse_one_at_a_time() -> None:
    """Let threads compile together in spite of Hypothesis.

    Until 3.13 CPython counts the depth of the tree that ast.parse builds for all threads at once,
    and raises SystemError when another thread parses meanwhile. That takes Python code run by the
    collector in the middle of it: Hypothesis's callback, which measures collections.

    A fork waits for its turn too: the lock would stay locked in the child, and collections off.
    Calls that are followed may compile: to them it is a function of `ast`, as the original.
    """
    parse, turn, collector = ast.parse, threading.RLock(), gc
    os.register_at_fork(
        before=turn.acquire, after_in_parent=turn.release, after_in_child=turn.release
    )

    def parse_undisturbed(*args, **kwargs):
        with turn:
            collecting = collector.isenabled()
            collector.disable()
            try:
                return parse(*args, **kwargs)
            finally:
                if collecting:
                    collector.enable()

    code, closure = parse_undisturbed.__code__, parse_undisturbed.__closure__
    ast.parse = FunctionType(code, vars(ast), "parse", None, closure)


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a shell has put back
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.version_info < (3, 13):
        _parse_one_at_a_time()
    # Not the user's own; what is in them is found by what it was made of, so they may be old ones.
    for name, folder in (("TZERO_CACHE_DIR", "test-cache"), ("TRITON_CACHE_DIR", "test-triton")):
        os.environ.setdefault(name, str(config.rootpath / "build" / folder))
    # Else which config a call gets depends on when a search in the background ends.
    os.environ.setdefault("TZERO_TUNE_WHEN", "call")
    # Tests count workers, and other processes of this user may have all that one per core allows.
    os.environ.setdefault("TZERO_MACHINE_WORKERS", "1000")
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    path = config.getoption("native")
    if path is not None:
        spec = importlib.util.spec_from_file_location("tzero._native", path)
        assert spec is not None and spec.loader is not None, f"{path} is no extension module"
        sys.modules["tzero._native"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["tzero._native"])
    if config.getoption("symbolic"):
        _start_symbolic()
    if config.getoption("cuda"):
        _start_on_cuda()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """With ``--dist loadfile``, keep the files of `TOGETHER` in one process."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return TOGETHER.get(file, file)

    return Together(config, log)


def _longest_first(items: list[pytest.Item]) -> None:
    """Order files by how long they take, so that none of the long ones is left for the end, when
    other processes have no more to do: the slowest, then those with the most tests."""
    rank = {name: place for place, name in enumerate(SLOWEST)}
    counts = collections.Counter(item.location[0] for item in items)

    def key(item: pytest.Item) -> tuple[int, int, str]:
        file = item.location[0]
        return rank.get(file, len(rank)), -counts[file], file

    items.sort(key=key)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        _longest_first(items)
    asked_for_soak = "soak" in config.getoption("markexpr")
    for item in items:
        if "soak" in item.keywords and not asked_for_soak:
            item.add_marker(pytest.mark.skip(reason="a soak test: run it with `make soak`"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave out of garbage collections what imports and pytest's own collection made: about a
    million objects that stay to the end, and that each `gc.collect()` of a test would visit."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # the bindings of Triton's newest release report what is not collected at exit


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # Asked when a gpu test is about to run, so that other runs need not import torch.
    if item.get_closest_marker("gpu") is None:
        return
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and torch.cuda finds none")
