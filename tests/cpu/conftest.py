"""Shared by all tests of the CPU backend: driver check, markers, version skips, reused objects.

Enters: the installed Triton. Leaves: a session that exits if another driver is active,
`needs_triton` skips with the version in the reason, and a failure for a test that docs/cpu.md
counts but that was skipped.
"""

from __future__ import annotations

import os

# Before Triton is imported: on a machine with a GPU the CPU backend is inactive by default.
os.environ.setdefault("TZERO_CPU", "1")

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import triton

from tests.cpu.cases import version_tuple
from tests.cpu.objects import reused


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "covers(op, dtype, ...): the row and columns of docs/cpu.md that this case proves",
        "unsupported(op, reason): a row in docs/cpu.md's list of what is not supported",
        "needs_triton(version): skipped on older Tritons",
        "until_triton(version): skipped on this Triton and newer ones",
    ):
        config.addinivalue_line("markers", line)


COLLECTED = pytest.StashKey[list[pytest.Item]]()
"""All tests of this folder, for test_table; missing if only some were collected."""


@pytest.hookimpl(tryfirst=True)  # before tests are deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    own = [item for item in items if item.path.parent == here]
    some = any("::" in argument for argument in config.args)
    if not some and {item.path for item in own} == set(here.glob("test_*.py")):
        config.stash[COLLECTED] = own


@pytest.fixture(scope="session", autouse=True)
def cpu_driver() -> None:
    """Exit if something other than the CPU backend would run the tests."""
    target = triton.runtime.driver.active.get_current_target()
    if target.backend != "cpu":
        pytest.exit(f"the active Triton driver is {target}, not the CPU backend; set TZERO_CPU=1")


@pytest.fixture(scope="package", autouse=True)
def reused_objects(pytestconfig: pytest.Config) -> Iterator[None]:
    with reused(pytestconfig.rootpath / "build" / "test-objects"):
        yield


def version_skip(item: pytest.Item) -> str | None:
    """The reason to skip the item on this Triton, if there is one."""
    here = version_tuple(triton.__version__)
    for marker in item.iter_markers("needs_triton"):
        if here < version_tuple(marker.args[0]):
            return f"needs Triton {marker.args[0]}; this is {triton.__version__}"
    for marker in item.iter_markers("until_triton"):
        if here >= version_tuple(marker.args[0]):
            return f"removed in Triton {marker.args[0]}; this is {triton.__version__}"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    reason = version_skip(item)
    if reason is not None:
        pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A case that docs/cpu.md counts may only be skipped for its Triton version."""
    report = yield
    if report.skipped and item.get_closest_marker("covers") and version_skip(item) is None:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} is claimed in docs/cpu.md but was skipped"
    return report
