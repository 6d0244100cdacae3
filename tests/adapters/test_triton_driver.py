"""What Triton's modules for CUDA do, in Python: the same calls of libcuda, and the same errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from triton.backends.nvidia import driver as nvidia

from tests import warm
from tzero.adapters import triton_driver, triton_modules

pytestmark = pytest.mark.skipif(
    not triton_modules.needed(), reason="this Triton compiles no modules for CUDA"
)

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a library in place of libcuda heard of Triton's modules, and of their twins."""
    from tzero.cpu import toolchain

    path = tmp_path_factory.mktemp("driver") / "libcuda.so.1"
    flags = [f"-I{nvidia.include_dirs[0]}", f"-Wl,-soname,{path.name}"]
    text = (HERE / "libcuda.c").read_text()
    path.write_bytes(toolchain.find().build(text, path.name, extra_flags=flags))
    done = warm.run([sys.executable, str(HERE / "called_driver.py"), str(path)])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_functions_of_the_driver_are_called_alike(heard: Any) -> None:
    theirs, ours = heard[0]
    assert ours == theirs
    assert "load a cubin; find name in 0x2000" in theirs[1][1]
    assert [each[0] for each in theirs].count("RuntimeError: Rank mismatch") == 1


def test_launches_are_the_same_for_each_type_and_attribute(heard: Any) -> None:
    count = 0
    for theirs, ours in heard[1:-1]:
        assert ours == theirs
        count += sum("launch 0x3000" in said for given in theirs for (_, said), _ in given)
    assert count > 30  # most of them reach the driver


def test_tensor_descriptors_are_passed_by_value(heard: Any) -> None:
    theirs, ours = heard[-1]
    assert ours == theirs
    assert "02" * 128 in theirs[0][1] and theirs[1][0] == "TypeError"


def test_what_half_precision_cannot_hold_is_refused_before_the_launch() -> None:
    # Triton's module launches it, and raises then.
    with pytest.raises(OverflowError):
        list(triton_driver._read(["fp16"], [1e6]))
