"""The progress bar names what is waited for on a terminal, and is absent elsewhere."""

from __future__ import annotations

import io
import threading
from concurrent.futures import Future

import pytest

from tzero import settings
from tzero.compile import progress
from tzero.tune.progress import Bar


class Terminal(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()
        self.wanted = "softmax"

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        count = super().write(text)
        if self.wanted in self.getvalue():
            self.written.set()
        return count


def finish_when(event: threading.Event, futures: list[Future[int]]) -> threading.Thread:
    def finish() -> None:
        event.wait(30)
        for future in futures:
            future.set_result(1)

    thread = threading.Thread(target=finish)
    thread.start()
    return thread


def test_the_bar_on_a_terminal_names_kernels_and_leaves_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(progress, "PATIENCE", 0)
    before = threading.active_count()
    futures: list[Future[int]] = [Future() for _ in range(5)]
    names = ["softmax[16]", "add", "mul", "sub", "div"]
    terminal = Terminal()
    finisher = finish_when(terminal.written, futures)
    progress.watch(list(zip(names, futures, strict=True)), terminal)
    finisher.join()
    assert "softmax[16], add, mul and 2 more" in terminal.getvalue()
    assert "0/5" in terminal.getvalue()
    assert threading.active_count() <= before


def test_names_on_a_terminal_are_one_line_without_escapes_and_markup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(progress, "PATIENCE", 0)
    future: Future[int] = Future()
    terminal = Terminal()
    finisher = finish_when(terminal.written, [future])
    progress.watch([("[red]softmax\n\x1b[5m\\[/]", future)], terminal)
    finisher.join()
    assert r"compiling [red]softmax\n\x1b[5m\[/]" in terminal.getvalue()
    assert "\x1b[5m" not in terminal.getvalue()


def test_nothing_is_written_to_other_streams() -> None:
    stream = io.StringIO()
    future: Future[int] = Future()
    event = threading.Event()
    event.set()
    finisher = finish_when(event, [future])
    progress.watch([("softmax", future)], stream)
    finisher.join()
    assert stream.getvalue() == ""


def test_a_process_without_stderr_can_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)
    future: Future[int] = Future()
    future.set_result(1)
    progress.watch([("softmax", future)])


def done(count: int) -> list[tuple[str, Future[int]]]:
    named = [(f"kernel{each}", Future[int]()) for each in range(count)]
    for _, future in named:
        future.set_result(1)
    return named


def test_progress_off_shows_nothing_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0)
    terminal, future = Terminal(), Future[int]()
    ended = threading.Event()
    finisher = finish_when(ended, [future])
    threading.Timer(0.1, ended.set).start()
    with settings.override(progress="off"):
        progress.watch([("softmax", future)], terminal)
        with Bar("matmul", 2, terminal) as bar:
            bar.show(1, "Config(B=1)", 1e-5, left=3.0)
    finisher.join()
    assert terminal.getvalue() == ""


def test_verbose_progress_has_a_line_for_each_also_without_a_terminal() -> None:
    text = io.StringIO()
    named = done(2)
    failed: Future[int] = Future()
    failed.set_exception(ValueError("no"))
    with settings.override(progress="verbose"):
        progress.watch([*named, ("soft\x1bmax", failed)], text)
        with Bar("matmul", 2, text) as bar:
            bar.show(1, "Config(B=1)", 1e-5, left=3.0)
    lines = text.getvalue().splitlines()
    assert sorted(line.partition(" (")[0] for line in lines[:3]) == [
        "tzero: kernel0 is ready",
        "tzero: kernel1 is ready",
        "tzero: soft\\x1bmax failed",
    ]
    assert [line.partition("(")[2] for line in lines[:3]] == ["1 of 3)", "2 of 3)", "3 of 3)"]
    assert lines[3:] == ["tzero: tuning matmul: 1 done, best 10 µs Config(B=1), 3 s left"]
