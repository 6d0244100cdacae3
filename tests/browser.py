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

__all__ = ["PHONE", "dom", "find", "layout", "picture"]

PHONE = 390
"""The width of a phone, in CSS pixels."""

_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--hide-scrollbars",
)

_MEASURED = """
<body style="margin:0"><iframe width={width} height=2000 style="border:0" srcdoc="{page}"></iframe>
<script>addEventListener("load", () => {{
  const inside = document.querySelector("iframe").contentDocument;
  const style = getComputedStyle(inside.body);
  document.title = [inside.documentElement.scrollWidth, style.backgroundColor, style.color].join();
}})</script>
"""


def find() -> str | None:
    """The path of a browser; None where there is none."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def layout(page: str, width: int, *, dark: bool = False) -> tuple[int, int, int]:
    """How wide a page becomes in a window of a width, and how light its ground and its text are, of
    255."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "page.html")
        file.write_text(_MEASURED.format(width=width, page=html.escape(page)))
        done = dom(file.as_uri(), dark=dark)
    title = re.search(r"<title>(\d+),rgb\((.*?)\),rgb\((.*?)\)</title>", done)
    assert title is not None, done[-2000:]
    ground, text = (max(map(int, title[k].split(","))) for k in (2, 3))
    return int(title[1]), ground, text


def dom(address: str, *, dark: bool = False, seconds: float = 2) -> str:
    """What a page has become after its scripts have run for some seconds."""
    return _run([f"--virtual-time-budget={round(seconds * 1000)}", "--dump-dom", address], dark)


def picture(address: str, out: Path, width: int, height: int, *, dark: bool = False) -> None:
    """Write a PNG of a page."""
    size = f"--window-size={width},{height}"
    _run(["--virtual-time-budget=2000", size, f"--screenshot={out}", address], dark)


def _run(words: list[str], dark: bool) -> str:
    browser = find()
    if browser is None:
        pytest.skip("no browser: on Debian, `apt-get install chromium`")
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    with tempfile.TemporaryDirectory() as profile:
        done = subprocess.run(
            [browser, *_FLAGS, scheme, f"--user-data-dir={profile}", *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    return done.stdout
