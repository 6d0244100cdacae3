"""Triton's Philox streams, bit for bit, against a numpy Philox-4x32-10 and the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from tests.cpu.cases import Array, array, assert_same, covered, empty, tensor

COUNT = 256
SEEDS = (0, 42, 0xDEADBEEF, 0x0123456789ABCDEF)


def philox(seed: int, counter: list[Array], rounds: int = 10, bits: int = 32) -> list[Array]:
    """Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011): the 4-word Philox."""
    keys, factors = {
        32: ((0x9E3779B9, 0xBB67AE85), (0xD2511F53, 0xCD9E8D57)),
        64: ((0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B), (0xD2E7470EE14C6C93, 0xCA5A826395121157)),
    }[bits]
    limit = (1 << bits) - 1
    key = [seed & limit, (seed >> bits) & limit]
    words = [np.asarray(word).astype(object) & limit for word in counter]
    for _ in range(rounds):
        first, second = words[0] * factors[0], words[2] * factors[1]
        words = [
            (second >> bits) ^ words[1] ^ key[0],
            second & limit,
            (first >> bits) ^ words[3] ^ key[1],
            first & limit,
        ]
        key = [(key[0] + keys[0]) & limit, (key[1] + keys[1]) & limit]
    return [word.astype(f"uint{bits}") for word in words]


def uniform(words: Array) -> Array:
    """Triton's map from 32 random bits to [0, 1), in fp32."""
    signed = words.view(np.int32)
    folded = np.where(signed < 0, ~signed, signed)
    return folded.astype(np.float32) * np.float32(4.6566127342e-10)


def counters(offsets: Array) -> list[Array]:
    zero = np.zeros_like(offsets, dtype=np.uint64)
    wide = offsets.astype(np.int64).astype(np.uint64)
    high = wide >> np.uint64(32) if offsets.dtype.itemsize == 8 else zero
    return [wide & np.uint64(0xFFFFFFFF), high, zero, zero]


@triton.jit
def integers_kernel(o_ptr, y_ptr, seed, N: tl.constexpr, ROUNDS: tl.constexpr):
    at = tl.arange(0, N)
    offsets = tl.load(o_ptr + at)
    a, b, c, d = tl.randint4x(seed, offsets, ROUNDS)
    tl.store(y_ptr + at, a)
    tl.store(y_ptr + N + at, b)
    tl.store(y_ptr + 2 * N + at, c)
    tl.store(y_ptr + 3 * N + at, d)
    tl.store(y_ptr + 4 * N + at, tl.randint(seed, offsets, ROUNDS))


@pytest.mark.parametrize("rounds", [10, 7])
@pytest.mark.parametrize(
    "width",
    [
        pytest.param(w, marks=[pytest.mark.covers(op, w) for op in ("tl.randint", "tl.randint4x")])
        for w in ("int32", "int64")
    ],
)
def test_random_integers_are_philox(width: str, rounds: int) -> None:
    offsets = np.arange(COUNT, dtype=width) * (3 if width == "int32" else (1 << 33) + 5)
    for seed in SEEDS:
        y = empty((5, COUNT), "uint32")
        integers_kernel[(1,)](tensor(offsets, width), y, seed, N=COUNT, ROUNDS=rounds)
        words = philox(seed, counters(offsets), rounds)
        assert_same(array(y), np.stack([*words, words[0]]))


@triton.jit
def floats_kernel(o_ptr, u_ptr, n_ptr, seed, N: tl.constexpr):
    at = tl.arange(0, N)
    offsets = tl.load(o_ptr + at)
    a, b, c, d = tl.rand4x(seed, offsets)
    tl.store(u_ptr + at, a)
    tl.store(u_ptr + N + at, b)
    tl.store(u_ptr + 2 * N + at, c)
    tl.store(u_ptr + 3 * N + at, d)
    tl.store(u_ptr + 4 * N + at, tl.rand(seed, offsets))
    a, b, c, d = tl.randn4x(seed, offsets)
    tl.store(n_ptr + at, a)
    tl.store(n_ptr + N + at, b)
    tl.store(n_ptr + 2 * N + at, c)
    tl.store(n_ptr + 3 * N + at, d)
    tl.store(n_ptr + 4 * N + at, tl.randn(seed, offsets))


def floats(seed: int, offsets: Array) -> tuple[Array, Array]:
    u, n = empty((5, COUNT), "fp32"), empty((5, COUNT), "fp32")
    floats_kernel[(1,)](tensor(offsets, "int32"), u, n, seed, N=COUNT)
    return u.numpy(), n.numpy()


def normals(u1: Array, u2: Array) -> tuple[Array, Array]:
    """Box and Muller's transform of two uniforms: fp32 steps, but exact functions."""
    u1 = np.maximum(np.float32(1.0e-7), u1).astype(np.float64)
    angle = (np.float32(6.283185307179586) * u2).astype(np.float64)
    radius = np.sqrt(-2 * np.log(u1))
    return radius * np.cos(angle), radius * np.sin(angle)


@pytest.mark.parametrize(
    "op",
    [
        pytest.param(
            "floats", marks=[pytest.mark.covers(op, "fp32") for op in ("tl.rand", "tl.rand4x")]
        )
    ],
)
def test_uniform_floats_are_bit_equal(op: str) -> None:
    offsets = np.arange(COUNT, dtype=np.int32) * 17
    for seed in SEEDS:
        got, _ = floats(seed, offsets)
        words = [uniform(word) for word in philox(seed, counters(offsets))]
        want = np.stack([*words, words[0]])
        assert_same(got.view(np.int32), want.view(np.int32))
        assert ((got >= 0) & (got < 1)).all()


@pytest.mark.parametrize(
    "op",
    [
        pytest.param(
            "normals", marks=[pytest.mark.covers(op, "fp32") for op in ("tl.randn", "tl.randn4x")]
        )
    ],
)
def test_normal_floats_follow_box_and_muller(op: str) -> None:
    offsets = np.arange(COUNT, dtype=np.int32) * 17
    for seed in SEEDS:
        _, got = floats(seed, offsets)
        u = [uniform(word) for word in philox(seed, counters(offsets))]
        first, second = normals(u[0], u[1]), normals(u[2], u[3])
        want = np.stack([*first, *second, first[0]])
        np.testing.assert_allclose(got, want, rtol=6 * 2.0**-23, atol=2.0**-40)


@triton.jit
def philox_kernel(c_ptr, y_ptr, seed, N: tl.constexpr):
    at = tl.arange(0, N)
    c = tl.load(c_ptr + at)
    a, b, c, d = tl.philox(seed, c, c + 1, c + 2, c + 3)
    tl.store(y_ptr + at, a)
    tl.store(y_ptr + N + at, b)
    tl.store(y_ptr + 2 * N + at, c)
    tl.store(y_ptr + 3 * N + at, d)


@pytest.mark.parametrize(
    "dtype", [covered("tl.philox", d, args=(d,)) for d in ("uint32", "uint64")]
)
def test_philox_of_both_widths(dtype: str) -> None:
    bits = int(dtype[4:])
    c = np.arange(COUNT, dtype=dtype) * ((1 << (bits - 2)) // 77)
    y = empty((4, COUNT), dtype)
    philox_kernel[(1,)](tensor(c, dtype), y, 12345678901234, N=COUNT)
    # Over 64-bit counters the whole seed is one key word; over 32-bit ones it is two.
    with np.errstate(over="ignore"):
        words = [c, c + c.dtype.type(1), c + c.dtype.type(2), c + c.dtype.type(3)]
    assert_same(array(y), np.stack(philox(12345678901234, words, bits=bits)))


INTERPRETED = """
import sys, numpy as np, torch, triton, triton.language as tl
@triton.jit
def kernel(i_ptr, u_ptr, n_ptr, seed, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(i_ptr + at, tl.randint(seed, at))
    tl.store(u_ptr + at, tl.rand(seed, at))
    tl.store(n_ptr + at, tl.randn(seed, at))
i = torch.zeros(256, dtype=torch.int32)
u, n = torch.zeros(256), torch.zeros(256)
kernel[(1,)](i, u, n, 0x0123456789ABCDEF, N=256)
np.savez(sys.argv[1], i=i.numpy(), u=u.numpy(), n=n.numpy())
"""


def test_the_streams_are_those_of_tritons_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "interpreted.py"
    script.write_text(INTERPRETED)
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run(
        [sys.executable, str(script), str(tmp_path / "out.npz")], check=True, env=environment
    )
    theirs = np.load(tmp_path / "out.npz")
    offsets = np.arange(COUNT, dtype=np.int32)
    integers = torch.zeros((5, COUNT), dtype=torch.int32)
    integers_kernel[(1,)](tensor(offsets, "int32"), integers, SEEDS[3], N=COUNT, ROUNDS=10)
    uniforms, normal = floats(SEEDS[3], offsets)
    assert_same(integers[4].numpy(), theirs["i"])
    assert_same(uniforms[4].view(np.int32), theirs["u"].view(np.int32))
    np.testing.assert_allclose(normal[4], theirs["n"], rtol=1e-6, atol=1e-7)
