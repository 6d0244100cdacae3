"""The key of a tuned result: everything that can change which config is fastest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tzero import settings
from tzero.cache import digest
from tzero.tune import facts
from tzero.tune.facts import Facts

CPU = Facts("add", "ab12", "f32[4]", "cpu:x86_64-avx2", "x86_64 2 2")
CUDA = Facts("add", "ab12", "f32[4]", "cuda:sm_90", "NVIDIA H200")


def test_the_compiler_is_in_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = CPU.strict
    other = tmp_path / "other"
    other.write_text('#!/bin/sh\nexec cc "$@"\n')
    other.chmod(0o755)
    with settings.override(cc=(str(other),)):
        assert CPU.strict != before
    monkeypatch.setenv("CPATH", str(tmp_path))
    assert CPU.strict != before
    monkeypatch.delenv("CPATH")
    assert CPU.strict == before


def test_without_a_compiler_there_is_a_key(tmp_path: Path) -> None:
    with settings.override(cc=(str(tmp_path / "missing"),)):
        assert '"compiler":"none"' in CPU.strict


def test_the_assembler_is_in_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = CUDA.strict
    other = tmp_path / "ptxas"
    other.write_text("another assembler")
    monkeypatch.setattr(facts.triton_compile, "ptxas_path", lambda target: str(other))
    assert CUDA.strict != before


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("model name\t: Fast 9000\nflags\t: avx2\n", "model name\t: Slow 10\nflags\t: avx2\n"),
        ("CPU part\t: 0xd40\n", "CPU part\t: 0xd4f\n"),
        ("model name\t: Fast 9000\n", ""),
    ],
)
def test_the_cpu_is_in_the_key(
    one: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = set()
    for text in (one, other, one + one):
        listed = tmp_path / "cpuinfo"
        listed.write_text(text)
        monkeypatch.setattr(digest, "_CPUINFO", str(listed))
        monkeypatch.setattr(facts, "cpu_model", digest.cpu_model.__wrapped__)
        keys.add(CPU.strict)
    assert len(keys) == 2  # the number of cores is in the device


def test_tzeros_version_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = CPU.strict
    monkeypatch.setattr(facts, "TZERO", "99.0")
    assert CPU.strict != before
