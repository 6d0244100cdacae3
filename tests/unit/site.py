"""Looks at the built site in a browser without a screen: no page may be wider than a phone, and
each is dark where the reader's system is. The page of the API must show every public name.

Enters: build/site, as `make site` builds it. Leaves: a list of what is wrong, and pictures of some
pages in build/pictures. It must not know what the pages say. Without a browser it says so, and does
not look.

    python -m tests.unit.site
"""

from __future__ import annotations

import functools
import html
import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.browser import PHONE, dom, find, picture

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "site"
PICTURES = ROOT / "build" / "pictures"
SHOWN = ("index", "tutorial", "reports", "settings")
WIDE = 1280

# Each page in turn, in a frame as wide as a phone; what is found ends up in the title.
_LOOK = """<!doctype html><body style="margin:0"><script>
const pages = PAGES, found = {};
async function look(page) {
  const frame = document.createElement("iframe");
  frame.width = WIDTH; frame.height = 2000; frame.src = page;
  await new Promise(done => { frame.onload = done; document.body.append(frame) });
  await new Promise(done => setTimeout(done, 50));
  const inside = frame.contentDocument, body = inside.body;
  found[page] = [inside.documentElement.scrollWidth, getComputedStyle(body).backgroundColor,
    [...inside.images].filter(each => !each.naturalWidth).map(each => each.src)];
  frame.remove();
}
(async () => { for (const page of pages) await look(page);
  document.title = "found " + JSON.stringify(found) })();
</script>"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    """The address at which a folder is served, on this machine alone."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def problems(dark: bool) -> list[str]:
    """What is wrong with the pages: too wide, pictures that are missing, light in the dark."""
    pages = sorted(path.name for path in SITE.glob("*.html"))
    text = _LOOK.replace("PAGES", json.dumps(pages)).replace("WIDTH", str(PHONE))
    look = SITE / "look.html"
    look.write_text(text)
    try:
        with _served(SITE) as address:
            made = dom(f"{address}/look.html", dark=dark, seconds=60)
    finally:
        look.unlink()
    title = re.search(r"<title>found (.*?)</title>", made)
    if title is None:
        return ["the browser did not come to an end"]
    wrong = []
    for page, (width, ground, missing) in json.loads(html.unescape(title[1])).items():
        lightness = max(map(int, re.findall(r"\d+", ground)[:3]))
        if width > PHONE:
            wrong.append(f"{page} is {width} wide on a phone of {PHONE}")
        if (lightness < 100) != dark:
            wrong.append(f"{page} has the ground {ground} where the system is {'dark' * dark}")
        wrong += [f"{page} has no picture {each}" for each in missing]
    return wrong


def missing() -> list[str]:
    """Public names that the built page does not show: mkdocstrings leaves out what it finds no
    description of."""
    shown = set(re.findall(r'<h[2-6] id="([^"]+)"', (SITE / "api.html").read_text()))
    entries = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(), re.M)
    return [f"api.html does not show {each}" for each in entries if each not in shown]


def main() -> int:
    wrong = missing()
    if find() is None:
        print("SKIPPED: no browser looks at the site (on Debian: apt-get install chromium)")
    else:
        wrong += _looked_at()
    for each in wrong:
        print(each)
    return 1 if wrong else 0


def _looked_at() -> list[str]:
    """What a browser finds wrong; it leaves pictures."""
    wrong = [*problems(dark=False), *problems(dark=True)]
    PICTURES.mkdir(parents=True, exist_ok=True)
    with _served(SITE) as address:
        for name in SHOWN:
            for dark in (False, True):
                out = PICTURES / f"{name}-{'dark' if dark else 'light'}.png"
                picture(f"{address}/{name}.html", out, WIDE, 1600, dark=dark)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
