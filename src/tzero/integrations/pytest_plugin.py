"""A plugin of pytest: tests of Triton kernels on machines without a GPU.

::

    pytest --triton-cpu      kernels run on the CPU, also where there is a GPU
    pytest --triton-check    and every access outside of a tensor is an error

Enters: the options, and the marker ``triton_gpu`` of tests that need a GPU. Leaves: tests that run,
or are skipped with a reason, and the fixture ``triton_device``. pytest loads it in every project
where tzero is installed, so it must import nothing but settings before a test asks for more.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from tzero import settings

__all__ = [
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_report_header",
    "triton_device",
]

MARKER = "triton_gpu: the test needs a GPU; it is skipped where Triton kernels run on the CPU"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--triton-cpu`` and ``--triton-check``."""
    group = parser.getgroup("triton", "Triton kernels without a GPU (tzero)")
    group.addoption(
        "--triton-cpu", action="store_true", help="run Triton kernels on the CPU, GPU or not"
    )
    group.addoption(
        "--triton-check",
        action="store_true",
        help="the same, and raise tzero.OutOfBounds for each access outside of its tensor",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the settings before a test module imports Triton."""
    config.addinivalue_line("markers", MARKER)
    check = config.getoption("--triton-check")
    if check or config.getoption("--triton-cpu"):
        applied = ExitStack()
        config.add_cleanup(applied.close)
        applied.enter_context(
            settings.applied({"TZERO_CPU": "1", **({"TZERO_CPU_CHECK": "1"} if check else {})})
        )


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say where kernels run, if an option does."""
    if config.getoption("--triton-check"):
        return ["triton: kernels run on the CPU, and every access is checked"]
    if config.getoption("--triton-cpu"):
        return ["triton: kernels run on the CPU"]
    return []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need a GPU where there is none, with the reason."""
    marked = [each for each in items if each.get_closest_marker("triton_gpu")]
    if marked and not _has_gpu():
        skip = pytest.mark.skip(reason="needs a GPU; Triton kernels run on the CPU here")
        for each in marked:
            each.add_marker(skip)


@pytest.fixture(scope="session")
def triton_device() -> Any:
    """The device that Triton kernels run on, as a ``torch.device``.

    ::

        def test_add(triton_device):
            x = torch.randn(1000, device=triton_device)
    """
    import triton

    return triton.runtime.driver.active.get_active_torch_device()


def _has_gpu() -> bool:
    import triton

    return bool(triton.runtime.driver.active.get_current_target().backend != "cpu")
