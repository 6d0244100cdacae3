"""Which changes of the source change a digest, and which do not."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tzero.tune.source import digest

BASE = """
import triton, triton.language as tl, tzero
SCALE = 2
SIZES, LIMIT = (1, frozenset("ab")), 4
@triton.jit
def helper(x):
    return x * 2
@triton.jit
def kernel(x, n, B: tl.constexpr):
    tl.store(x, helper(tl.load(x)))
def blocks(n, limit=LIMIT):
    return n // 2 + len(SIZES)
@tzero.kernel(configs=[tzero.Config(B=16), tzero.Config(B=32)])
def host(x, config):
    # launches
    kernel[(blocks(x.numel()),)](x, SCALE, **config)
    return x
"""


CHANGES = [
    ("B=32", "B=64", True),
    ("# launches", "# launches it", True),
    ("SCALE = 2\n", "SCALE = 2\n\n\n", True),
    ("return x * 2", "return x * 3", False),
    ("tl.store(x, helper", "tl.store(x + 1, helper", False),
    ("n // 2", "n // 4", False),
    ("SCALE = 2", "SCALE = 3", False),
    ('(1, frozenset("ab"))', '(1, frozenset("ac"))', False),
    (", 4\n", ", 5\n", False),
    ("return x\n", "return x + 0\n", False),
]


def write(folder: Path, texts: list[str]) -> list[str]:
    """Write modules, and return their names."""
    for k, text in enumerate(texts):
        (folder / f"digested{k}.py").write_text(text)
    return [f"digested{k}" for k in range(len(texts))]


def digest_elsewhere(folder: Path, name: str) -> str:
    """The digest of a module's host in another process, which hashes strings differently."""
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    code = (
        f"import {name}; from tzero.tune.source import digest; print(digest({name}.host.function))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_a_digest_depends_on_the_code_that_runs_and_not_on_its_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = write(tmp_path, [BASE, *(BASE.replace(old, new) for old, new, _ in CHANGES)])
    monkeypatch.syspath_prepend(tmp_path)
    base, *others = [digest(importlib.import_module(name).host.function) for name in names]
    for name in names:
        monkeypatch.delitem(sys.modules, name)
    assert digest_elsewhere(tmp_path, names[0]) == base
    for other, (old, new, same) in zip(others, CHANGES, strict=True):
        assert (other == base) == same, (old, new)
