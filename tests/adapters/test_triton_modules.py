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
from tzero.adapters import triton_driver, triton_modules
from tzero.events import Event, observe

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


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`replace`, in a driver that compiles nothing: what it was told of, and what it compiled."""
    made: list[tuple[str, str]] = []
    compiled: list[str] = []

    def compile_plainly(src: str, name: str) -> Any:
        compiled.append(name)
        return ctypes  # has a file

    ready = {"cuda_utils": b"an object", "broken": b"no object"}
    monkeypatch.setattr(nvidia, "compile_module_from_src", None)
    monkeypatch.setattr(nvidia, "make_launcher", _make_launcher)
    monkeypatch.setattr(triton_modules, "_compile", compile_plainly)
    monkeypatch.setattr(
        triton_modules, "_loaded", lambda name, binary: _import(binary == b"an object")
    )
    asked = SimpleNamespace(ready=ready, made=made, compiled=compiled, reason="")
    triton_modules.replace(
        lambda name, source: ready.get(name),
        lambda *each: made.append(each[:2]),
        lambda: asked.reason,
    )
    return asked


_make_launcher = getattr(nvidia, "make_launcher", None)


def test_a_module_that_is_ready_is_not_compiled(replaced: Any) -> None:
    for name in ("cuda_utils", "broken", "new"):
        nvidia.compile_module_from_src("text", name)
    assert replaced.compiled == ["broken", "new"]
    assert replaced.made == [("broken", "text"), ("new", "text")]


def test_what_shall_not_be_compiled_is_done_in_python(replaced: Any) -> None:
    replaced.ready.clear()
    replaced.reason = "no bundle has it"
    seen: list[Event] = []
    with observe(seen.append):
        functions = nvidia.compile_module_from_src("text", "cuda_utils")
        launcher = nvidia.compile_module_from_src(_text(), "__triton_launcher")
        nvidia.compile_module_from_src("text", "another")  # a module that nothing stands in for
    assert functions.PyCUtensorMap is triton_driver.TensorMap and callable(launcher.launch)
    assert replaced.compiled == ["another"]
    assert [each.kernel for each in seen] == ["cuda_utils", "__triton_launcher"]
    assert all("no bundle has it" in each.reason for each in seen)


def test_without_a_compiler_it_is_done_in_python(
    replaced: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(triton_modules, "_compile", lambda *args, **kwargs: _no_compiler())
    with pytest.raises(RuntimeError, match="the compiler"):  # there is one, and it failed
        nvidia.compile_module_from_src(_text(), "__triton_launcher")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert callable(nvidia.compile_module_from_src(_text(), "__triton_launcher").launch)
    with pytest.raises(RuntimeError, match="the compiler"):  # nothing stands in for it
        nvidia.compile_module_from_src("text", "another")


def test_descriptors_are_made_and_read_by_the_same(
    replaced: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = [{"fp4_padded": False}]
    replaced.reason = "no bundle has it"
    monkeypatch.setattr(nvidia, "PyCUtensorMap", int, raising=False)  # a module made the functions
    nvidia.compile_module_from_src(_text(described), "__triton_launcher")
    assert replaced.compiled == ["__triton_launcher"]
    monkeypatch.setattr(nvidia, "PyCUtensorMap", triton_driver.TensorMap)
    replaced.ready["__triton_launcher"] = b"an object"  # which would read other memory
    assert callable(nvidia.compile_module_from_src(_text(described), "__triton_launcher").launch)


def _text(descriptors: Any = None) -> str:
    types = ["*fp32", "i32"] if descriptors is None else ["tensordesc<fp16[64, 32]>"]
    text: str = nvidia.make_launcher({}, dict(enumerate(types)), descriptors)
    return text


def _no_compiler() -> Any:
    raise RuntimeError("the compiler cannot do it")


def _import(works: bool) -> Any:
    if not works:
        raise ImportError("not an object")
    return ctypes
