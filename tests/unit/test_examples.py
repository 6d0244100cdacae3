"""Every example runs, and says what it shows."""

from __future__ import annotations

import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.briefly import tune_briefly

EXAMPLES = Path(__file__).parents[2] / "examples"
SHOWN = {
    "softmax": "replayed natively",
    "layer_norm": "3 replayed natively",
    "attention": "sizes: any q.size(1)",
    "decode": "the same logits",
    "tuning": "BLOCK",
    "cpp_kernel": "launch clamp",
    "cuda_kernel": "launch saxpy",
    "helion_kernel": "replayed natively",
    "serving": "5 requests answered while sealed",
    "reported": "scaled: [3.0, 3.0, 3.0]; 1000 calls as written",
    "whole_program": "after 10000 steps",
}


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_runs(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "cuda_kernel" and not torch.cuda.is_available():
        pytest.skip("the example needs a GPU")
    if name == "helion_kernel" and find_spec("helion") is None:
        pytest.skip("Helion is not installed")
    tune_briefly(monkeypatch)
    path = str(EXAMPLES / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [path])
    runpy.run_path(path, run_name="__main__")
    assert SHOWN[name] in capsys.readouterr().out


def test_the_decode_step_has_the_same_logits_with_kernels_of_liger(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(EXAMPLES / "decode.py")
    monkeypatch.setattr(sys, "argv", [path, "--liger", "--steps", "8"])
    runpy.run_path(path, run_name="__main__")
    shown = capsys.readouterr().out
    assert shown.count("the same logits") == 2 and "other logits" not in shown


def test_the_list_of_examples_is_whole() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SHOWN)
    assert all(f"[{name}.py]({name}.py)" in listed for name in SHOWN)
