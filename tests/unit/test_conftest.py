"""The conftest of all tests: the order of files in parallel runs, and forks beside the parser."""

from __future__ import annotations

import ast
import gc
import threading
from pathlib import Path

from tests import conftest
from tests.unit.test_locks import forked


def test_the_files_that_start_first_are_there() -> None:
    root = Path(__file__).parents[2]
    assert [name for name in conftest.SLOWEST if not (root / name).is_file()] == []


def test_a_child_can_parse_while_another_thread_of_its_parent_does() -> None:
    text = "x = 1\n" * 20_000
    done = threading.Event()

    def parse() -> None:
        while not done.is_set():
            ast.parse(text)

    def child() -> bool:
        return gc.isenabled() and isinstance(ast.parse("x = 1"), ast.Module)

    thread = threading.Thread(target=parse)
    thread.start()
    try:
        assert [forked(child) for _ in range(3)] == [0, 0, 0]
    finally:
        done.set()
        thread.join()
