"""The tables of docs/cpu.md match the tests and cover the whole language."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import triton.language as tl

from tests.cpu.conftest import COLLECTED
from tests.cpu.table import PAGE, Claims, difference

# Public names of triton.language that are not operations on values, or that are tested without a
# dtype.
ELSEWHERE = {
    "TRITON_MAX_TENSOR_NUMEL": "a constant",
    "PropagateNan": "an argument: propagate_nan of minimum, maximum and clamp",
    "advance": "block pointers",
    "assume": "a hint",
    "block_type": "a type",
    "broadcast": "the operator behind implicit broadcasting",
    "cast": "the function form of .to",
    "condition": "the condition of a while loop over constants",
    "const": "a type",
    "constexpr": "compile-time values",
    "constexpr_type": "compile-time values",
    "debug_barrier": "has no effect in one thread",
    "device_assert": "debugging",
    "device_print": "debugging",
    "dtype": "a type",
    "expect_zero": "a hint to the GPU's cache",
    "extra": "libdevice has a table of its own",
    "inline_asm_elementwise": "not supported",
    "load_tensor_descriptor": "the function form of a descriptor's load",
    "math": "the module of the math functions",
    "num_programs": "program structure",
    "pair_uniform_to_normal": "part of randn",
    "philox_impl": "part of philox",
    "pi32_t": "a type",
    "pointer_type": "a type",
    "program_id": "program structure",
    "range": "loops",
    "slice": "indexing",
    "static_assert": "compile time",
    "static_print": "compile time",
    "static_range": "loops",
    "store_tensor_descriptor": "the function form of a descriptor's store",
    "target_info": "queries the target",
    "tensor": "a type",
    "tensor_descriptor": "a type",
    "to_tensor": "a scalar made explicit",
    "tuple": "a type",
    "uint_to_uniform_float": "part of rand",
    "view": "reshape under its old name",
    "void": "a type",
    "zeros": "tl.full of zero",
}


def test_the_page_matches_the_tests(pytestconfig: pytest.Config) -> None:
    """If this session did not collect all tests, a child process does: pytest cannot collect
    inside pytest."""
    if COLLECTED in pytestconfig.stash:
        found = difference(Claims(pytestconfig.stash[COLLECTED]))
    else:
        check = [sys.executable, "-m", "tests.cpu.table", "--check"]
        done = subprocess.run(check, cwd=PAGE.parents[1], capture_output=True, text=True)
        found = done.stdout + done.stderr if done.returncode else ""
    assert not found, f"docs/cpu.md is out of date; run `python -m tests.cpu.table`.\n{found}"


def test_every_name_of_the_language_is_in_the_table_or_explained() -> None:
    shown = set(re.findall(r"tl\.(\w+)", PAGE.read_text()))
    dtypes = {name for name in tl.__all__ if isinstance(getattr(tl, name), tl.dtype)}
    missing = set(tl.__all__) - dtypes - shown - set(ELSEWHERE)
    assert not missing, f"no test covers {sorted(missing)}"
