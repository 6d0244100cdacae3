"""What a host function is made of: what changes the digest, and what does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BASE = """
import triton, triton.language as tl, tzero
SCALE = 2
@triton.jit
def helper(x):
    return x * 2
@triton.jit
def kernel(x, n, B: tl.constexpr):
    tl.store(x, helper(tl.load(x)))
def blocks(n):
    return n // 2
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
    ("return x\n", "return x + 0\n", False),
]


def digests(folder: Path, texts: list[str], seed: str) -> list[str]:
    """The digests of some modules' hosts, in a process of their own."""
    for k, text in enumerate(texts):
        (folder / f"subject{k}.py").write_text(text)
    code = (
        "import importlib; from tzero.tune.source import digest\n"
        f"for k in range({len(texts)}):\n"
        "    print(digest(importlib.import_module(f'subject{k}').host.function))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_a_digest_follows_what_is_launched_and_not_how_it_is_written_down(tmp_path: Path) -> None:
    changed = [BASE.replace(old, new) for old, new, _ in CHANGES]
    base, *others = digests(tmp_path, [BASE, *changed], seed="1")
    (again,) = digests(tmp_path, [BASE], seed="2")
    assert again == base
    for other, (old, new, same) in zip(others, CHANGES, strict=True):
        assert (other == base) == same, (old, new)
