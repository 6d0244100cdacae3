"""Rewrite asserts in the shared module, so that failures show their values, and measure briefly."""

from collections.abc import Iterator

import pytest

from tzero import measure

pytest.register_assert_rewrite("tests.arguments.key_cases")


@pytest.fixture(scope="package", autouse=True)
def short_samples() -> Iterator[None]:
    """`Kernel.explain` measures the stages of a call each time, and these tests ask it tens of
    thousands of times whether a call hits. One call a sample is enough for that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "SAMPLE", 0)
        yield
