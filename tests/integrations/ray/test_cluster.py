"""A real Ray cluster on this machine, a head and two nodes: compiles, searches, and losses."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import tzero
from tests.compile.backends import request
from tests.compile.memory import Memory
from tests.compile.waiting import PYTHONPATH, is_gone, paused_at, until
from tests.integrations.ray import kernels
from tzero import settings
from tzero.compile import AsyncCompile, on
from tzero.events import Event, observe
from tzero.integrations.ray.cluster import Cluster

if importlib.util.find_spec("ray") is None:
    pytest.skip("ray is not installed (pip install 'tzero-runtime[ray]')", allow_module_level=True)

HANG = 100.0
MEMORY = 80 << 20
KIND = "T1"
HAS = {f"accelerator_type:{KIND}": 1}


@pytest.fixture(scope="module")
def pauses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pauses")


@pytest.fixture(scope="module")
def nodes(pauses: Path) -> Iterator[Any]:
    """A cluster whose head runs nothing, and with two nodes that run one call at a time."""
    from ray.cluster_utils import Cluster as Nodes

    variables = {
        "PYTHONPATH": PYTHONPATH,
        "TZERO_CACHE": "0",
        "TZERO_COMPILE_WORKERS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        kernels.VARIABLE: str(pauses),
    }
    with settings.applied(variables):
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": MEMORY}
        made = Nodes(initialize_head=True, head_node_args=head)
        try:
            for _ in range(2):
                made.add_node(num_cpus=1, resources=HAS, object_store_memory=MEMORY, wait=False)
            made.wait_for_nodes()
            yield made
        finally:
            made.shutdown()


@pytest.fixture(scope="module")
def cluster(nodes: Any) -> Iterator[Cluster]:
    with tzero.ray.executor(nodes.address, accelerator_type=KIND) as made:
        yield made


@pytest.fixture
def service() -> Iterator[AsyncCompile]:
    with settings.override(compile_workers=2):
        made = AsyncCompile(Memory())
        yield made
        made.shutdown()


@pytest.fixture
def seen() -> Iterator[list[Event]]:
    found: list[Event] = []
    with observe(found.append):
        yield found


def reasons(seen: list[Event]) -> list[str]:
    return [each.reason for each in seen if each.kind == "fallback"]


def node_of(nodes: Any, pid: int) -> Any:
    """The node that runs a process."""
    above = {each.pid for each in psutil.Process(pid).parents()}
    (found,) = [
        node for node in nodes.worker_nodes if node.all_processes["raylet"][0].process.pid in above
    ]
    return found


def test_any_node_compiles_and_nothing_compiles_here(
    cluster: Cluster, service: AsyncCompile, seen: list[Event]
) -> None:
    with on(cluster):
        made = [service.submit(request("slow_echo", str(each))) for each in range(8)]
        pids = {future.result(HANG).facts["pid"] for future in made}
    assert len(pids) == 2 and os.getpid() not in pids
    assert service.workers() == [] and service.stats().compiled["executor"] == 8
    assert reasons(seen) == []


def test_a_call_whose_process_is_killed_is_made_by_another(
    cluster: Cluster, service: AsyncCompile, tmp_path: Path
) -> None:
    place = tmp_path / "pause"
    with on(cluster):
        future = service.submit(request("pauses", str(place)))
        first = paused_at(place)
        place.unlink()
        os.kill(first, signal.SIGKILL)
        if not future.done():
            until(lambda: place.exists() or future.done(), "another process")
        place.unlink(missing_ok=True)
        assert future.result(HANG).facts["pid"] != os.getpid()
    assert service.workers() == []


def test_a_node_that_is_killed_while_it_times_loses_nothing(
    nodes: Any, cluster: Cluster, pauses: Path, seen: list[Event]
) -> None:
    armed = pauses / "armed"
    armed.touch()
    kernel, x = kernels.kernel(), torch.ones(1000)
    results: list[Any] = []

    def call() -> None:
        with on(cluster), settings.override(cache=False):
            results.append(kernel(x))

    calling = threading.Thread(target=call)
    with settings.applied({kernels.VARIABLE: str(pauses)}):
        calling.start()
        until(lambda: list(pauses.glob("paused-*")), "timing on a node")
        pid = int(next(pauses.glob("paused-*")).name.partition("-")[2])
        assert pid != os.getpid()
        nodes.remove_node(node_of(nodes, pid), allow_graceful=False)
        until(lambda: is_gone(pid), "the end of the process that timed")
        armed.unlink()
        calling.join(HANG)
    assert torch.equal(results[0], x)
    choice = kernel.bind(x).choice
    assert choice.how == "tuned" and choice.variant == tzero.Config(TIMES=1)
    elsewhere = [each.reason for each in seen if each.reason.startswith("timed elsewhere")]
    assert len(elsewhere) == 1 and f"process {pid}" not in elsewhere[0]
    assert not any("this process times it" in each.reason for each in seen)


def test_nothing_is_timed_where_no_node_has_the_accelerator(nodes: Any) -> None:
    with tzero.ray.executor(nodes.address) as plain:
        assert plain.measuring("cpu:x86_64-avx2") is None
    with tzero.ray.executor(nodes.address, accelerator_type="none-has-it", patience=1) as made:
        measuring = made.measuring("cpu:x86_64-avx2")
        assert measuring is not None
        future = measuring.submit(max, 1, 2)
        error = future.exception(HANG)
    assert "no node of the cluster has accelerator_type:none-has-it" in str(error)


def test_another_class_of_device_is_refused(cluster: Cluster, seen: list[Event]) -> None:
    from tzero.tune import elsewhere

    class Otherwise(Executor):
        """Says of its nodes that their device is another one."""

        def measuring(self, hardware: str) -> Executor | None:
            return self

        def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            task = elsewhere.pickle.loads(args[2])
            other = elsewhere.dataclasses.replace(task, hardware=("cuda:sm_90", "NVIDIA H200"))
            made = cluster.measuring("cpu")
            assert made is not None
            return made.submit(function, *args[:2], elsewhere.cloudpickle.dumps(other))

    kernel, x = kernels.kernel(), torch.ones(2000)
    with on(Otherwise()), settings.override(cache=False):
        assert torch.equal(kernel(x), x)
    assert any("and not ('cuda:sm_90', 'NVIDIA H200')" in each.reason for each in seen)
    assert any("this process times it" in each.reason for each in seen)


def test_an_address_where_nobody_listens_means_this_machine(
    service: AsyncCompile, seen: list[Event]
) -> None:
    with tzero.ray.executor("127.0.0.1:1") as made, on(made):
        assert service.submit(request("echo")).result(HANG).facts["pid"] in service.workers()
    assert "ConnectionRefusedError" in reasons(seen)[-1]


def test_a_lost_cluster_means_this_machine(
    nodes: Any, cluster: Cluster, service: AsyncCompile, seen: list[Event]
) -> None:
    nodes.remove_node(nodes.head_node, allow_graceful=False)
    with on(cluster):
        made = [service.submit(request("echo", str(each))) for each in range(3)]
        pids = {future.result(HANG).facts["pid"] for future in made}
    assert pids <= set(service.workers()) and service.stats().failed == 0
    assert len(reasons(seen)) >= 3 and "Ray at" in reasons(seen)[-1]
    with pytest.raises(Exception, match="Ray at"):
        cluster.submit(max, 1, 2)


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(tzero.ToolchainMissing, match=r"tzero-runtime\[ray\]"):
        tzero.ray.executor()
