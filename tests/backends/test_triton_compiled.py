"""`compiled` in the place of ``triton.compile``: by the service, with all of Triton's checks."""

from __future__ import annotations

import gc
import linecache
import multiprocessing
import os
import platform
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from tests import warm
from tests.backends import triton_zoo as zoo
from tests.backends.test_triton_faithful import executed
from tzero import events
from tzero.adapters import triton_compile
from tzero.adapters.triton_launch import ASTSource, CompiledKernel, GPUTarget
from tzero.backends import triton as backend
from tzero.backends.triton import load_artifact
from tzero.compile import Artifact, Request, service
from tzero.compile.backend import find
from tzero.compile.request import Malformed

CPU = GPUTarget("cpu", platform.machine(), 1)
ROOT = Path(__file__).parents[2]


def source_of(kernel: Any, **constants: Any) -> ASTSource:
    types = {n: "constexpr" if n in constants else "*fp32" for n in kernel.arg_names}
    return ASTSource(kernel, types, constants)


def hooked(kernel: Any) -> Any:
    """The kernel, compiled by way of the service."""
    kernel.device_caches.clear()
    kernel.device_caches[triton.runtime.driver.active.get_current_device()]
    kernel.compile = backend.compiled
    return kernel


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    return folder


@pytest.fixture
def artifact() -> Artifact:
    asked = backend.request(source_of(zoo.gives_itself_a_name, N=3), CPU)
    assert isinstance(asked, Request)
    return backend.compile(asked)


def test_the_backend_is_found_by_its_name() -> None:
    assert find("triton") is backend.backend
    assert find("triton").runs == "process"


def test_a_kernel_is_compiled_once_and_launched() -> None:
    text = "@triton.jit\ndef kernel(out, N: tl.constexpr):\n    tl.store(out, N + 0.5)\n"
    names = executed(text, "<through the service>")
    out = torch.zeros(1)
    before = service().stats()
    for _ in range(2):
        hooked(names["kernel"])[(1,)](out, N=4)
        assert out.tolist() == [4.5]
    after = service().stats()
    assert sum(after.compiled.values()) - sum(before.compiled.values()) == 1
    assert isinstance(backend.compiled(source_of(names["kernel"], N=4), CPU), CompiledKernel)


def test_what_cannot_travel_is_compiled_here_and_says_so() -> None:
    seen: list[events.Event] = []
    out = torch.zeros(1)
    with events.observe(seen.append):
        hooked(zoo.prints_while_it_compiles)[(1,)](out, N=4)
    assert out.tolist() == [4.0]
    assert any("static_print" in event.reason for event in seen)


def test_errors_are_those_that_triton_raises() -> None:
    text = "@triton.jit\ndef kernel(out):\n    tl.static_assert(False, 'never')\n"
    kernel = executed(text, "<failing>")["kernel"]
    with pytest.raises(triton.compiler.errors.CompileTimeAssertionFailure, match="never"):
        hooked(kernel)[(1,)](torch.zeros(1))
    text = "@triton.jit\ndef kernel(out):\n    tl.store(out, nowhere)\n"
    kernel = executed(text, "<undefined>")["kernel"]
    with pytest.raises(triton.CompilationError, match="nowhere is not defined"):
        hooked(kernel)[(1,)](torch.zeros(1))
    with pytest.raises(triton.CompilationError, match="nowhere is not defined"):
        hooked(kernel)[(1,)](torch.zeros(1))


def test_a_global_that_changes_is_refused_at_the_launch_as_triton_does() -> None:
    text = "K = tl.constexpr(3)\n@triton.jit\ndef kernel(out):\n    tl.store(out, K)\n"
    names = executed(text, "<global>")
    out = torch.zeros(1)
    hooked(names["kernel"])[(1,)](out)
    assert out.tolist() == [3.0]
    names["K"] = tl.constexpr(4)
    with pytest.raises(RuntimeError, match="Global variable K has changed"):
        names["kernel"][(1,)](out)


def test_an_artifact_of_another_kernel_is_not_loaded(artifact: Artifact) -> None:
    with pytest.raises(Malformed, match="kernel gives_itself_a_name"):
        backend.load(artifact, source_of(zoo.takes_mode, MODE=3))
    other = ASTSource(zoo.gives_itself_a_name, {"out": "*fp16", "N": "constexpr"}, {"N": 3})
    with pytest.raises(Malformed, match="signature"):
        backend.load(artifact, other)


@pytest.mark.parametrize("fact", ["kernel", "hash", "signature", "order", "metadata", "warnings"])
@pytest.mark.parametrize("value", [None, 3, "x", [], {}], ids=str)
def test_an_artifact_with_a_wrong_fact_is_not_loaded(
    artifact: Artifact, fact: str, value: Any
) -> None:
    source = source_of(zoo.gives_itself_a_name, N=3)
    wrong = Artifact(artifact.files, {**artifact.facts, fact: value})
    if fact == "hash" or (fact, value) in (("warnings", []), ("warnings", {})):
        backend.load(wrong, source)  # for people, and as good as any
        return
    with pytest.raises(Malformed):
        backend.load(wrong, source)


def test_an_artifact_that_does_not_fit_is_replaced_by_triton_s(
    monkeypatch: pytest.MonkeyPatch, artifact: Artifact, empty: Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(empty))  # Triton's does not tell files apart

    reloads: list[Any] = []

    class Lying:
        def compile(self, request: Request) -> Artifact:
            return Artifact({}, {})

        def reloaded(self) -> None:
            reloads.append(self)

    monkeypatch.setattr(backend, "service", Lying)
    seen: list[events.Event] = []
    with events.observe(seen.append):
        kernel = backend.compiled(source_of(zoo.gives_itself_a_name, N=3), CPU)
    assert kernel.asm["ttir"] == artifact.files["gives_itself_a_name.ttir"].decode()
    assert [event.kind for event in seen] == ["cache"] and len(reloads) == 1


def test_files_are_private_and_go_with_the_process(empty: Path) -> None:
    script = (
        "import os, sys\n"
        "from tests.backends.test_triton_compiled import *\n"
        "source = source_of(zoo.gives_itself_a_name, N=3)\n"
        "asked = backend.request(source, CPU)\n"
        "made = backend.compile(asked)\n"
        "kernel = backend.load(made, source)\n"
        "mine = load_artifact.directory()\n"
        "assert stat.S_IMODE(os.stat(mine).st_mode) == 0o700\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    assert load_artifact.directory() != mine\n"
        "    assert backend.load(made, source).asm['so'] == kernel.asm['so']\n"
        "    sys.exit()\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert all(os.path.exists(each) for each in kernel.metadata_group.values())\n"
        "made_here = [str(each) for each in Path(os.environ['TMPDIR']).glob('*/*/*')]\n"
        "assert made_here == [mine], made_here\n"
    )
    variables = {**os.environ, "TMPDIR": str(empty)}
    done = warm.run([sys.executable, "-c", script], cwd=ROOT, env=variables)
    assert done.returncode == 0, done.stderr
    assert_nothing_is_left(empty)


def assert_nothing_is_left(folder: Path) -> None:
    """Only the directory that this user's processes share."""
    assert [*folder.rglob("*")] == [folder / f"tzero-{os.getuid()}"]


def _in_a_child(folder: str) -> None:
    assert load_artifact.directory() != folder
    assert stat.S_IMODE(os.stat(load_artifact.directory()).st_mode) == 0o700


def test_children_of_multiprocessing_leave_nothing_behind(
    empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(empty))
    child = multiprocessing.get_context("fork").Process(target=_in_a_child, args=("",))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert_nothing_is_left(empty)


SCRIPT = """
import sys
import torch, triton, triton.language as tl
from tzero.backends.triton import compiled
from tzero.compile import service

SCALE = tl.constexpr(2)

@triton.jit
def helper(x):
    return x * SCALE

@triton.jit
def kernel(x, out):
    tl.store(out, helper(tl.load(x)) + 1)

if __name__ != "__main__":
    sys.exit("a worker must not import this")

kernel.device_caches[triton.runtime.driver.active.get_current_device()]
kernel.compile = compiled
service().warm_pool()
assert service().wait_pool_ready(120)
out = torch.zeros(1)
kernel[(1,)](torch.tensor([4.0]), out)
assert out.tolist() == [9.0], out
print(service().stats().compiled)
"""


@pytest.mark.parametrize("way", ["script", "standard input"])
def test_kernels_of_the_main_module_compile_in_workers(way: str, tmp_path: Path) -> None:
    path = tmp_path / "a script.py"
    path.write_text(SCRIPT)
    text = f"import linecache\nlinecache.cache['<stdin>'] = (1, None, {SCRIPT!r}.splitlines(True),"
    text += f" '<stdin>')\nexec(compile({SCRIPT!r}, '<stdin>', 'exec'))\n"
    variables = {
        **os.environ,
        "TZERO_COMPILE_WORKERS": "2",
        "TZERO_CACHE_DIR": str(tmp_path / "cache"),
    }
    if way == "script":
        done = warm.run([sys.executable, str(path)], cwd=tmp_path, env=variables)
    else:
        command = [sys.executable, "-"]
        done = subprocess.run(
            command, input=text, cwd=tmp_path, env=variables, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    assert "'process': 1" in done.stdout


def test_compiling_in_this_process_leaves_it_as_it_was(artifact: Artifact) -> None:
    """Where there are no workers, kernels are made again beside the user's own."""
    registry = dict(triton_compile._registry)
    lines, state = dict(linecache.cache), triton_compile.knob_state()
    variables = dict(os.environ)
    asked = backend.request(source_of(zoo.nested_calls, n=3, BLOCK=4), CPU)
    assert isinstance(asked, Request)
    backend.compile(asked)
    assert triton_compile._registry == registry
    assert (linecache.cache.keys() - lines.keys(), triton_compile.knob_state()) == (set(), state)
    assert dict(os.environ) == variables


def test_a_kernels_files_go_with_it() -> None:
    signature = {"x": "*fp32", "out": "*fp32", "BLOCK": "constexpr"}
    source = ASTSource(zoo.uses_constants, signature, {"BLOCK": 4})
    asked = backend.request(source, GPUTarget("cuda", 90, 32))
    assert isinstance(asked, Request)
    kernel = backend.load(service().compile(asked), source)
    folder = Path(next(iter(kernel.metadata_group.values()))).parent
    assert folder.is_dir()
    del kernel
    gc.collect()
    assert not folder.exists()


@pytest.mark.parametrize("target", [CPU, GPUTarget("cuda", 90, 32)], ids=["cpu", "cuda"])
def test_a_loaded_kernel_is_what_triton_makes_from_its_files(target: GPUTarget) -> None:
    source = source_of(zoo.gives_itself_a_name, N=3)
    asked = backend.request(source, target)
    assert isinstance(asked, Request)
    ours = backend.load(service().compile(asked), source)
    theirs = CompiledKernel(source, dict(ours.metadata_group), ours.hash)
    assert type(ours) is CompiledKernel and vars(ours).keys() == vars(theirs).keys()
    for name, value in vars(theirs).items():
        found = vars(ours)[name]
        if name == "metadata_group":
            found = dict(found)
        elif name == "metadata":
            assert found._fields == value._fields
        assert found == value, name
    assert type(ours.asm) is type(theirs.asm) and list(ours.asm) == list(theirs.asm)


def test_files_are_written_when_someone_asks_for_their_paths(
    empty: Path, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_artifact.directory()
    monkeypatch.setattr(load_artifact, "directory", lambda: str(empty))
    kernel = backend.load(artifact, source_of(zoo.gives_itself_a_name, N=3))
    kernel._init_handles()
    assert "made_up.so" not in kernel.metadata_group
    assert len(kernel.metadata_group) == len(artifact.files) + 1  # the metadata
    assert list(empty.iterdir()) == []
    (folder,) = {os.path.dirname(path) for path in kernel.metadata_group.values()}
    assert sorted(os.listdir(folder)) == sorted(kernel.metadata_group)
    (name,) = (each for each in kernel.metadata_group if each.endswith(".so"))
    assert Path(kernel.metadata_group[name]).read_bytes() == kernel.asm["so"]


def test_a_file_name_that_leaves_the_directory_is_refused(artifact: Artifact, empty: Path) -> None:
    source = source_of(zoo.gives_itself_a_name, N=3)
    for about in (f"{empty}/out.json", "../out.json", "..\\out.json", "a/../../out.json"):
        order = [about if each.endswith(".json") else each for each in artifact.facts["order"]]
        forged = Artifact(artifact.files, {**artifact.facts, "order": order})
        with pytest.raises(Malformed, match="not a valid file name"):
            list(backend.load(forged, source).metadata_group.values())
    assert list(empty.iterdir()) == []


def test_an_artifact_with_two_objects_is_refused(artifact: Artifact) -> None:
    source = source_of(zoo.gives_itself_a_name, N=3)
    files = {**artifact.files, "other.so": b"code"}
    forged = Artifact(files, {**artifact.facts, "order": [*artifact.facts["order"], "other.so"]})
    with pytest.raises(Malformed, match="2 files of its so"):
        backend.load(forged, source)
