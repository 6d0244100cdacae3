"""A service for one test, shut down afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compile.memory import Memory
from tzero import settings
from tzero.compile import AsyncCompile


@pytest.fixture
def store() -> Memory:
    return Memory()


@pytest.fixture
def service(store: Memory) -> Iterator[AsyncCompile]:
    with settings.override(compile_workers=2):
        made = AsyncCompile(store)
        yield made
        made.shutdown()
    assert made.workers() == []
