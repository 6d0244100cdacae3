"""What another process compiles of a request is what Triton compiles of the kernel here."""

from __future__ import annotations

import importlib.util
import io
import linecache
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from tests.backends.triton_elsewhere import Elsewhere
from tests.backends.triton_rows import ROWS, Row
from tests.rows import by_row
from tzero.adapters.triton_launch import ASTSource, GPUTarget, JITFunction, compile_here
from tzero.backends import triton as backend
from tzero.cache.digest import parse
from tzero.compile import Artifact, Request

HOPPER = GPUTarget("cuda", 90, 32)
CPU = GPUTarget("cpu", platform.machine(), 1)
LIMIT = 400 << 20

pytestmark = pytest.mark.usefixtures("no_cache")


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    """A process that has neither torch nor the tests."""
    process = Elsewhere()
    yield process
    process.close()


@pytest.fixture
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Triton find nothing that it compiled before."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


class Comparing:
    """Launches kernels on the CPU that were compiled elsewhere, and compares them with Triton's."""

    def __init__(self, elsewhere: Elsewhere) -> None:
        self._elsewhere = elsewhere
        self.compared = 0

    def __call__(self, kernel: Any, grid: Any, /, *args: Any, **options: Any) -> None:
        if not isinstance(kernel, JITFunction):
            kernel = triton.jit(kernel)
        kernel.device_caches.clear()
        kernel.device_caches[triton.runtime.driver.active.get_current_device()]
        kernel.compile = self.compile
        try:
            JITFunction.run(kernel, *args, grid=grid, warmup=False, **options)
        finally:
            kernel.device_caches.clear()

    def compile(self, source: ASTSource, target: GPUTarget, options: Mapping[str, Any]) -> Any:
        for_gpu = {name: options[name] for name in ("debug",) if name in options}
        self.compare(source, HOPPER, for_gpu)
        return self.compare(source, target, options)

    def compare(self, source: ASTSource, target: GPUTarget, options: Mapping[str, Any]) -> Any:
        asked = backend.request(source, target, options)
        assert isinstance(asked, Request), asked
        assert parse(asked.program)["target"] == [target.backend, target.arch, target.warp_size]
        reply = self._elsewhere.compile(asked)
        assert reply.payload is not None, reply.error
        assert not reply.torch
        assert reply.resident < LIMIT
        made = backend.load(Artifact.decode(reply.payload), source)
        own = compile_here(source, target=target, options=dict(options))
        assert list(made.asm) == list(own.asm)
        for stage, text in own.asm.items():
            assert made.asm[stage] == text, stage
        # Triton 3.6 makes its hash of globals in the order of their addresses.
        assert made.metadata._replace(hash="") == own.metadata._replace(hash="")
        assert made.packed_metadata == own.packed_metadata
        assert made.name == own.name
        self.compared += 1
        return made


@pytest.fixture
def launch(elsewhere: Elsewhere) -> Comparing:
    return Comparing(elsewhere)


@by_row(ROWS)
def test_a_kernel_compiled_elsewhere_is_the_same_to_the_last_stage(
    row: Row, launch: Comparing
) -> None:
    row.check(launch)
    assert launch.compared >= 2


ODD_TEXTS = {
    "tabs": "@triton.jit\ndef kernel(x, out):\n\ttl.store(out, tl.load(x)\n\t\t+ 1)\n",
    "unicode names": (
        "größe: tl.constexpr = tl.constexpr(1)\n"
        "@triton.jit\ndef kernel(x, out):\n"
        "    wert_ä = tl.load(x)\n    名 = wert_ä + größe\n    tl.store(out, 名)\n"
    ),
    "a decorator over several lines": (
        "@triton.jit(\n    do_not_specialize=[\n        'out',\n    ],\n    debug=(\n        True\n"
        "    ),\n)\ndef kernel(x, out):  # def kernel(\n    tl.store(out, tl.load(x) + 1)\n"
    ),
    "a docstring with code, quotes and nulls": (
        '@triton.jit\ndef kernel(x, out):\n    r"""def kernel(x):\n\n'
        "@triton.jit\n\\N{oops} \\0 '''   # }\n    \"\"\"\n    tl.store(out, tl.load(x) + 1)\n"
    ),
    "a form feed and comments at the edge": (
        "@triton.jit\n# a comment\n\ndef kernel(x, out):\n    y = tl.load(x)\n# at the edge\n\x0c\n"
        "    tl.store(out, y + 1)\n    # the end\n"
    ),
    "an indented definition": (
        "if True:\n    class Holder:\n        @triton.jit\n        def kernel(x, out):\n"
        "            tl.store(out, tl.load(x) + 1)\n    kernel = Holder.kernel\n"
    ),
    "quotes and other signs in a constant": (
        "@triton.jit\ndef kernel(x, out, NAME: tl.constexpr = '\\\\\"\\u2028😀'):\n"
        "    tl.store(out, tl.load(x) + (1 if NAME == '\\\\\"\\u2028😀' else 2))\n"
    ),
    "annotations that are text or someone's": (
        "from __future__ import annotations\nimport torch\n"
        "@triton.jit\ndef kernel(x: torch.Tensor, out: 'torch.Tensor', N: tl.constexpr = 1):\n"
        "    one: tl.constexpr = N\n    tl.store(out, tl.load(x) + one)\n"
    ),
    "a default that has changed since": (
        "ONE = 1\n@triton.jit\ndef add(x, by=ONE):\n    return x + by\n"
        "@triton.jit\ndef kernel(x, out):\n    tl.store(out, add(tl.load(x)))\n"
    ),
    "names that are local at last": (
        "y = object()\nz = object()\n@triton.jit\ndef kernel(x, out):\n"
        "    for i in range(2):\n        y = tl.load(x) + i\n        z = y\n"
        "        tl.store(out, z)\n"
    ),
}


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)
def test_texts_of_every_kind_travel(text: str, launch: Comparing) -> None:
    kernel = executed(text, f"<cell {len(text)}>")["kernel"]
    x, out = torch.tensor([41.0]), torch.zeros(1)
    launch(kernel, (1,), x, out)
    assert out.tolist() == [42.0]


def executed(text: str, name: str) -> dict[str, Any]:
    """Run text as notebooks do: Python finds its lines, but there is no file and no module."""
    linecache.cache[name] = (len(text), None, io.StringIO(text).readlines(), name)
    names = {"triton": triton, "tl": tl, "__name__": "__main__"}
    exec(compile(text, name, "exec"), names)
    return names


def test_a_cell_that_was_run_again_is_the_newer_one(launch: Comparing) -> None:
    out = torch.zeros(1)
    text = "@triton.jit\ndef kernel(out):\n    tl.store(out, {})\n"
    older = executed(text.format(1), "<cell again>")["kernel"]
    newer = executed(text.format(2), "<cell again>")["kernel"]
    for kernel, answer in ((newer, 2.0), (older, 1.0)):
        launch(kernel, (1,), out)
        assert out.tolist() == [answer]


def test_a_file_with_windows_line_ends_travels(tmp_path: Path, launch: Comparing) -> None:
    text = "import triton\r\nimport triton.language as tl\r\n\r\n\r\n@triton.jit\r\n"
    text += (
        "def kernel(x, out):\r\n    '''Two\r\n    lines.'''\r\n    tl.store(out, tl.load(x))\r\n"
    )
    path = tmp_path / "windows lines.py"
    path.write_bytes(text.encode())
    spec = importlib.util.spec_from_file_location("windows_lines", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    out = torch.zeros(1)
    launch(module.kernel, (1,), torch.tensor([3.0]), out)
    assert out.tolist() == [3.0]


def test_a_text_that_was_replaced_is_what_is_compiled(launch: Comparing) -> None:
    text = "@triton.jit\ndef kernel(out):\n    tl.store(out, 1)\n"
    kernel = executed(text, "<replaced>")["kernel"]
    out = torch.zeros(1)
    launch(kernel, (1,), out)
    kernel._unsafe_update_src(kernel.src.replace("1)", "5)"))
    launch(kernel, (1,), out)
    assert out.tolist() == [5.0]


def test_warnings_of_the_compiler_are_given_here(elsewhere: Elsewhere) -> None:
    text = "@triton.jit\ndef kernel(x, out):\n    a = tl.load(x + tl.arange(0, 4))\n"
    text += "    tl.store(out + tl.arange(0, 4), tl.where((a > 1) and (a < 3), 1, 0))\n"
    kernel = executed(text, "<warning>")["kernel"]
    source = ASTSource(kernel, {"x": "*fp32", "out": "*fp32"})
    asked = backend.request(source, CPU)
    assert isinstance(asked, Request)
    reply = elsewhere.compile(asked)
    assert reply.payload is not None, reply.error
    with pytest.warns(UserWarning, match="Logical operators"):
        backend.load(Artifact.decode(reply.payload), source)


@pytest.mark.parametrize("target", [CPU, HOPPER], ids=["cpu", "cuda"])
def test_errors_are_triton_s(target: GPUTarget, elsewhere: Elsewhere) -> None:
    text = "SIZE = 4\n@triton.jit\ndef kernel(out):\n    tl.store(out, SIZE)\n"
    kernel = executed(text, "<refused>")["kernel"]
    source = ASTSource(kernel, {"out": "*fp32"})
    asked = backend.request(source, target)
    assert isinstance(asked, Request)
    reply = elsewhere.compile(asked)
    with pytest.raises(triton.CompilationError) as own:
        compile_here(source, target=target)
    assert reply.error == f"CompilationError: {own.value}"
    assert "Cannot access global variable SIZE" in reply.error


def test_kernels_for_amd_travel_too(launch: Comparing) -> None:
    text = "@triton.jit\ndef kernel(x, out):\n    tl.store(out, tl.exp(tl.load(x)))\n"
    kernel = executed(text, "<amd>")["kernel"]
    source = ASTSource(kernel, {"x": "*fp32", "out": "*fp32"})
    launch.compare(source, GPUTarget("hip", "gfx942", 64), {})


def test_a_worker_s_own_environment_has_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was started with another: what counts is what the process sees that asks."""
    kernel = executed("@triton.jit\ndef kernel(out):\n    tl.store(out, 1)\n", "<env>")["kernel"]
    source = ASTSource(kernel, {"out": "*fp32"})
    process = Elsewhere(
        TRITON_DISABLE_LINE_INFO="1",
        DISABLE_PTXAS_OPT="1",
        TZERO_CPU_CHECK="1",
        TRITON_STORE_BINARY_ONLY="1",
    )
    try:
        for target in (CPU, HOPPER):
            Comparing(process).compare(source, target, {})
        monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
        Comparing(process).compare(source, HOPPER, {})
    finally:
        process.close()
