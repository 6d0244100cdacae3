"""HIP C++ to code objects, by a hipcc that is run for real where there is one."""

from __future__ import annotations

import shutil

import pytest

import tzero
from tzero.backends import hip
from tzero.compile.backend import find

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


def test_a_launch_says_that_there_is_none() -> None:
    with pytest.raises(tzero.ToolchainMissing, match=r"compiles HIP C.., and does not run it yet"):
        hip.kernel(SCALE, arch="gfx90a")[(1,)](None, None, 0, 1.0, block=256)


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
