"""What every test of the CPU backend shares: the driver check, the markers, the version skips.

Enters: nothing but the installed Triton. Leaves: a session that refuses to start on another
driver, `needs_triton` skips with the version in the reason, and a rule that a test which the
table of docs/cpu.md counts is really run.
"""

from __future__ import annotations

import os

# Before the first import of Triton: on a machine with a GPU the CPU backend waits to be asked.
os.environ.setdefault("TZERO_CPU", "1")

from collections.abc import Generator

import pytest
import triton

from tests.cpu.cases import version_tuple


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "covers(op, dtype, ...): the row and the columns of docs/cpu.md this case proves",
        "refuses(op, reason): a row of docs/cpu.md's list of what is refused",
        "needs_triton(version): skipped, with the reason, on older Tritons",
        "until_triton(version): skipped, with the reason, from that Triton on",
    ):
        config.addinivalue_line("markers", line)


@pytest.fixture(scope="session", autouse=True)
def cpu_driver() -> None:
    """Fails every test, loudly, where something other than the CPU backend would run them."""
    target = triton.runtime.driver.active.get_current_target()
    if target.backend != "cpu":
        pytest.exit(f"the active Triton driver is {target}, not the CPU backend; set TZERO_CPU=1")


def version_skip(item: pytest.Item) -> str | None:
    """The reason why this Triton is outside the item's range, if it is."""
    here = version_tuple(triton.__version__)
    for marker in item.iter_markers("needs_triton"):
        if here < version_tuple(marker.args[0]):
            return f"needs Triton {marker.args[0]}; this is {triton.__version__}"
    for marker in item.iter_markers("until_triton"):
        if here >= version_tuple(marker.args[0]):
            return f"gone from Triton {marker.args[0]} on; this is {triton.__version__}"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    reason = version_skip(item)
    if reason is not None:
        pytest.skip(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A case the table counts may be skipped for its Triton version and for nothing else."""
    report = yield
    if report.skipped and item.get_closest_marker("covers") and version_skip(item) is None:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} is claimed in docs/cpu.md but was skipped"
    return report
