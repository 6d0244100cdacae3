"""Compiling for CUDA without a GPU works while the CPU backend is active."""

from __future__ import annotations

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from bench import kernels

HOPPER = GPUTarget("cuda", 90, 32)


def compile_for_hopper(kernel: object, signature: dict[str, str], constants: dict[str, object]):
    whole = {**signature, **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(fn=kernel, signature=whole, constexprs=constants)
    return triton.compile(source, target=HOPPER, options={"num_warps": 4})


@pytest.mark.parametrize(
    ("kernel", "signature", "constants"),
    [
        (
            kernels.add_kernel,
            {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": "i32"},
            {"BLOCK": 1024},
        ),
        (
            kernels.matmul_kernel,
            {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp16"}
            | dict.fromkeys(["M", "N", "K"], "i32")
            | dict.fromkeys(["stride_am", "stride_ak", "stride_bk"], "i32")
            | dict.fromkeys(["stride_bn", "stride_cm", "stride_cn"], "i32"),
            {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP": 4, "ACTIVATION": kernels.relu},
        ),
    ],
    ids=["add", "matmul"],
)
def test_compile_only_for_cuda_gives_a_cubin(
    kernel: object, signature: dict[str, str], constants: dict[str, object]
) -> None:
    compiled = compile_for_hopper(kernel, signature, constants)
    assert compiled.asm["cubin"][:4] == b"\x7fELF"
    assert ".target sm_90" in compiled.asm["ptx"]
    assert compiled.metadata.target.backend == "cuda"


def test_the_cpu_stays_the_active_device_afterwards() -> None:
    assert triton.runtime.driver.active.get_current_target().backend == "cpu"
    assert {"cpu", "nvidia"} <= set(triton.backends.backends)
