"""HIP C++ to code objects, by a hipcc that is run for real where there is one."""

from __future__ import annotations

import ctypes
import ctypes.util
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tzero
from tzero.backends import hip
from tzero.compile.backend import find
from tzero.compile.request import Artifact
from tzero.cpu import toolchain

SCALE = """
#include <hip/hip_runtime.h>
extern "C" __global__ void scale(const float *x, float *out, int64_t n, float by) {
    int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
    if (i < n) out[i] = by * x[i];
}
"""

needs_hipcc = pytest.mark.skipif(
    all(shutil.which(place) is None for place in hip._PLACES),
    reason="hipcc is not installed (Debian: apt-get install hipcc)",
)


@needs_hipcc
@pytest.mark.parametrize("arch", ["gfx906", "gfx90a"])
def test_a_kernel_compiles_for_an_architecture(arch: str) -> None:
    artifact = hip.kernel(SCALE, arch=arch).precompile().result()
    assert arch.encode() in artifact.files["kernel.hsaco"]
    assert b"scale" in artifact.files["kernel.hsaco"]
    assert artifact.facts["arch"] == arch


@needs_hipcc
def test_the_compilers_words_name_the_kernel_and_its_own_lines() -> None:
    wrong = hip.kernel(SCALE.replace("by *", "undefined_name *"), arch="gfx90a")
    with pytest.raises(tzero.CompileFailed) as caught:
        wrong.precompile().result()
    assert caught.value.kernel == "scale"
    assert "scale.hip:5" in caught.value.problem and "undefined_name" in caught.value.problem


def test_a_missing_hipcc_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hip, "_PLACES", ("no-such-hipcc",))
    monkeypatch.setattr(hip, "_find", hip._find.__wrapped__)
    with pytest.raises(tzero.ToolchainMissing, match=r"hip backend.*apt-get install hipcc"):
        hip.kernel(SCALE, arch="gfx90a").request()


# -- launching: on a library that stands in for AMD's ----------------------------------------------

MANY = """
#include <hip/hip_runtime.h>
extern "C" __global__ void many(const float *x, int n, int64_t m, double d, float f, uint8_t b,
                                bool yes, short s) {}
"""


class Tensor:
    """What launchers read of a tensor."""

    device = None

    def data_ptr(self) -> int:
        return 0x1122334455667788


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("hip") / "libamdhip64.so"
    text = Path(__file__).with_name("libamdhip64.c").read_text()
    path.write_bytes(toolchain.find().build(text, path.name))
    found = ctypes.CDLL(str(path))
    found.heard.restype = ctypes.c_char_p
    return found


@pytest.fixture
def heard(library: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """What the library was asked since the last look; torch says that it was built for ROCm."""
    made = hip._Driver(library)
    monkeypatch.setattr(hip, "_driver", lambda: made)
    monkeypatch.setattr(torch.version, "hip", "6.2")
    library.hipSetDevice(0)
    library.forget()

    def found() -> str:
        said: str = library.heard().decode()
        library.forget()
        return said

    return found


def launched(made: Any, library: Any, grid: tuple[int, int, int], *args: Any, **given: Any) -> Any:
    sizes = {"*": 8, "i1": 1, "fp32": 4, "fp64": 8}
    held = [sizes.get(t) or sizes.get(t[0]) or int(t[1:]) // 8 for t in made_types(made)] + [0]
    library.take_sizes((ctypes.c_int * len(held))(*held), len(held))
    options = made.options(given)
    artifact = Artifact({"kernel.hsaco": b"a code object"}, {"arch": "gfx90a"})
    loaded = made.load(artifact, 0, options)
    loaded.run(*grid, 0x77, loaded.function, None, None, None, None, *args)
    return loaded


def made_types(made: Any) -> list[str]:
    return [each.declared.type for each in made.params]


def test_a_launch_is_packed_as_the_parameters_are_declared(
    heard: Callable[[], str], library: Any
) -> None:
    made = hip.kernel(MANY, arch="gfx90a")
    args = (Tensor(), -2, 2**40, 0.5, 1.5, 200, True, -3)
    loaded = launched(made, library, (5, 6, 7), *args, block=(64, 2), shared=4096)
    packed = struct.pack("<Q", Tensor().data_ptr()), struct.pack("<i", -2), struct.pack("<q", 2**40)
    packed += struct.pack("<d", 0.5), struct.pack("<f", 1.5), b"\xc8", b"\x01"
    packed += (struct.pack("<h", -3),)
    assert heard() == (
        "load a code object; find many in 0x2000; launch 0x3000 grid 5 6 7 block 64 2 1 "
        f"shared 4096 stream 0x77 extra 0 params {' '.join(each.hex() for each in packed)}; "
    )
    assert loaded.metadata.target.backend == "hip" and loaded.metadata.num_warps == 2


def test_null_pointers_empty_grids_and_much_shared_memory(
    heard: Callable[[], str], library: Any
) -> None:
    made = hip.kernel(SCALE, arch="gfx1100", block=256, shared=60_000)
    launched(made, library, (0, 1, 1), None, None, 0, 1.0)
    assert heard() == "load a code object; find scale in 0x2000; set 8 of 0x3000 to 60000; "
    launched(made, library, (1, 1, 1), None, None, 0, 1.0)
    said = heard()  # it is loaded once
    assert said.startswith("launch 0x3000 grid 1 1 1 block 256 1 1 shared 60000")
    assert f"params {'00' * 8} {'00' * 8} {'00' * 8} 0000803f" in said


def test_another_device_is_entered(heard: Callable[[], str], library: Any) -> None:
    made = hip.kernel(SCALE, arch="gfx90a", block=64)
    made.load(Artifact({"kernel.hsaco": b"code"}, {"arch": "gfx90a"}), 3, made.options({}))
    assert heard().startswith("device 3; load code")


def test_a_launch_that_fails_names_it(heard: Callable[[], str], library: Any) -> None:
    made = hip.kernel(SCALE, arch="gfx90a", block=64)
    with pytest.raises(tzero.LaunchFailed, match="hipErrorLaunchFailure"):
        launched(made, library, (13, 1, 1), None, None, 0, 1.0)
    other = Artifact({"kernel.hsaco": b"another GPU's"}, {"arch": "gfx906"})
    fresh = hip.kernel(SCALE, arch="gfx906", block=64)
    with pytest.raises(RuntimeError, match=r"HIP does not load it: hipErrorNoBinaryForGpu"):
        fresh.load(other, 0, fresh.options({}))


def test_hooks_are_called_around_a_launch(heard: Callable[[], str], library: Any) -> None:
    made, seen = hip.kernel(SCALE, arch="gfx90a", block=64), []
    loaded = launched(made, library, (1, 1, 1), None, None, 0, 1.0)
    heard()
    hooks = (lambda each: seen.append((each, heard())), lambda each: seen.append((each, heard())))
    loaded.run(1, 1, 1, 0, loaded.function, None, "about", *hooks, None, None, 0, 1.0)
    assert seen[0] == ("about", "") and seen[1][1].startswith("launch 0x3000")


def test_a_launch_without_rocm_says_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = hip.kernel(SCALE, arch="gfx90a", block=64)
    with pytest.raises(tzero.ToolchainMissing, match="a torch that was built for ROCm"):
        made[(1,)](None, None, 0, 1.0)
    with pytest.raises(tzero.InvalidKernel, match="no ROCm device to ask"):
        hip.kernel(SCALE)._current_arch()
    monkeypatch.setattr(torch.version, "hip", "6.2")
    monkeypatch.setattr(hip, "_driver", hip._driver.__wrapped__)
    monkeypatch.setattr(hip, "_loaded_by_torch", str)
    if ctypes.util.find_library("amdhip64") is None:
        with pytest.raises(tzero.ToolchainMissing, match=r"libamdhip64\.so"):
            made[(1,)](None, None, 0, 1.0)


def test_the_library_is_the_one_that_torch_has_loaded(library: Any, tmp_path: Path) -> None:
    assert hip._loaded_by_torch() == library._name
    nothing = tmp_path / "maps"
    nothing.write_text("7f00-7f01 r-xp 00000000 00:00 0 \n")
    assert hip._loaded_by_torch(str(nothing)) == ""


def test_a_launch_needs_a_block() -> None:
    with pytest.raises(tzero.InvalidArgument, match="threads of a block are not given"):
        hip.kernel(SCALE, arch="gfx90a").options({})


@pytest.mark.parametrize(
    ("source", "arch", "words"),
    [
        (SCALE, "sm_90", "arch is 'sm_90'"),
        ("__global__ void f() {}", "gfx90a", 'extern "C" __global__'),
    ],
)
def test_what_cannot_be_a_kernel_is_refused_when_it_is_made(
    source: str, arch: str, words: str
) -> None:
    with pytest.raises(tzero.InvalidKernel, match=words):
        hip.kernel(source, arch=arch)


def test_the_backend_is_found_by_its_name() -> None:
    assert find("hip") is hip.backend
