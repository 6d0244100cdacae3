"""Shows pages in a browser without a screen: Chromium, where there is one.

Enters: a page, a width, light or dark. Leaves: what the browser has made of it, or a picture. Tests
install nothing: without a browser they are skipped, with the reason.
"""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

__all__ = ["PHONE", "browser", "layout", "picture"]

PHONE = 390
"""The width of a phone, in CSS pixels."""

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--virtual-time-budget=2000"),
)

_MEASURED = """
<body style="margin:0"><iframe width={width} height=2000 style="border:0" srcdoc="{page}"></iframe>
<script>addEventListener("load", () => {{
  const inside = document.querySelector("iframe").contentDocument;
  const style = getComputedStyle(inside.body);
  document.title = [inside.documentElement.scrollWidth, style.backgroundColor, style.color].join();
}})</script>
"""


def browser() -> str:
    """The path of a browser; skips the test where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no browser: on Debian, `apt-get install chromium`")
    return found


def layout(page: str, width: int, *, dark: bool = False) -> tuple[int, int, int]:
    """How wide a page becomes in a window of a width, and how light its ground and its text are, of
    255."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "page.html")
        file.write_text(_MEASURED.format(width=width, page=html.escape(page)))
        done = _run(["--dump-dom", file.as_uri()], dark)
    title = re.search(r"<title>(\d+),rgb\((.*?)\),rgb\((.*?)\)</title>", done)
    assert title is not None, done[-2000:]
    ground, text = (max(map(int, title[k].split(","))) for k in (2, 3))
    return int(title[1]), ground, text


def picture(page: Path, out: Path, width: int, height: int, *, dark: bool = False) -> None:
    """Write a PNG of a page in a file."""
    _run([f"--window-size={width},{height}", f"--screenshot={out}", page.as_uri()], dark)


def _run(words: list[str], dark: bool) -> str:
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [browser(), *_FLAGS, scheme, f"--user-data-dir={profile}", *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    return done.stdout
