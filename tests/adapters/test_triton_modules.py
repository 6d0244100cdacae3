"""The C modules of Triton's CUDA driver: the same text as Triton's, built without CUDA, loaded."""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from triton.backends.nvidia import driver as nvidia

from tests import warm
from tzero.adapters import triton_modules

pytestmark = pytest.mark.skipif(
    not triton_modules.needed(), reason="this Triton compiles no modules for CUDA"
)

TYPES = ["*fp32", "i32", "constexpr", "fp16", ("i64", ("*fp32", "constexpr")), "u1"]


def test_the_text_is_what_triton_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def compile_module(src: str, name: str, **rest: Any) -> Any:
        asked.append((name, src))
        names = ("launch", "PyCUtensorMap", "load_binary", "get_device_properties")
        more = ("cuOccupancyMaxActiveClusters", "set_printf_fifo_size", "fill_tma_descriptor")
        return SimpleNamespace(**dict.fromkeys((*names, *more)))

    monkeypatch.setattr(nvidia, "compile_module_from_src", compile_module)
    monkeypatch.setattr(nvidia, "library_dirs", list)
    source = SimpleNamespace(
        fn=None, constants={(2,): 64}, signature=dict(zip("abcdef", TYPES, strict=True))
    )
    zero = ("global_scratch_size", "global_scratch_align", "profile_scratch_size")
    more = ("profile_scratch_align", "launch_cooperative_grid", "launch_pdl")
    nvidia.CudaUtils.__init__(object.__new__(nvidia.CudaUtils))
    nvidia.CudaLauncher(source, SimpleNamespace(**dict.fromkeys((*zero, *more), 0)))
    assert asked == triton_modules.sources(TYPES)


LOAD = """
import ctypes, sys
ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)  # has the name of libcuda
from pathlib import Path
from tzero.adapters import triton_modules
for path in sys.argv[2:]:
    module = triton_modules._loaded(Path(path).stem, Path(path).read_bytes())
    print(module.__name__, hasattr(module, "launch"), hasattr(module, "load_binary"))
"""


def test_modules_are_built_without_cuda_and_ask_for_libcuda(tmp_path: Path) -> None:
    paths, names = [], set()
    for name, source in triton_modules.sources(TYPES):
        binary = triton_modules.build(name, source)
        assert b"libcuda.so.1\0" in binary
        paths.append(tmp_path / f"{name}.module")
        paths[-1].write_bytes(binary)
        names |= set(re.findall(r"\b(cu[A-Z]\w*)\s*\(", source))
    library = tmp_path / "libcuda.so.1"
    text = "".join(f"void {each}(void) {{}}\n" for each in names)
    library.write_bytes(_shared(text, "libcuda.so.1"))
    done = warm.run([sys.executable, "-c", LOAD, str(library), *map(str, paths)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == [
        "cuda_utils False True",
        "__triton_launcher True False",
    ]


def _shared(source: str, name: str) -> bytes:
    from tzero.cpu import toolchain

    return toolchain.find().build(source, name, extra_flags=[f"-Wl,-soname,{name}"])


def test_a_module_that_is_ready_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, str]] = []
    compiled: list[str] = []

    def compile_plainly(src: str, name: str) -> Any:
        compiled.append(name)
        return ctypes  # has a file

    monkeypatch.setattr(nvidia, "compile_module_from_src", None)
    monkeypatch.setattr(triton_modules, "_compile", compile_plainly)
    ready = {"cuda_utils": b"an object", "broken": b"no object"}
    monkeypatch.setattr(
        triton_modules, "_loaded", lambda name, binary: _import(binary == b"an object")
    )
    triton_modules.replace(
        lambda name, source: ready.get(name), lambda *each: made.append(each[:2])
    )
    for name in ("cuda_utils", "broken", "new"):
        nvidia.compile_module_from_src("text", name)
    assert compiled == ["broken", "new"] and made == [("broken", "text"), ("new", "text")]


def _import(works: bool) -> Any:
    if not works:
        raise ImportError("not an object")
    return ctypes
