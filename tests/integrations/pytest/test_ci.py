"""What a project needs to test kernels without a GPU: the workflow, the image, the tests and the
notebook are those of the docs, and work."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integrations.pytest.test_plugin import run

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
PAGE = (ROOT / "docs" / "testing.md").read_text()
NOTEBOOK = EXAMPLES / "kernels.ipynb"


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.S | re.M)
    return str(found)


def test_the_page_has_the_files_of_the_examples() -> None:
    assert block("yaml") == (EXAMPLES / "ci" / "kernels.yml").read_text()
    assert block("dockerfile") == (EXAMPLES / "ci" / "Dockerfile").read_text()
    assert block("python") in (EXAMPLES / "ci" / "test_kernels.py").read_text()


def test_the_commands_of_the_workflow_and_the_image_are_right() -> None:
    """Their last steps are run here; no runner and no Docker is there for the others."""
    workflow = yaml.safe_load((EXAMPLES / "ci" / "kernels.yml").read_text())
    steps = workflow["jobs"]["test"]["steps"]
    commands = [each["run"] for each in steps if "run" in each]
    assert any("tzero-runtime" in each for each in commands)
    image = (EXAMPLES / "ci" / "Dockerfile").read_text()
    (last,) = re.findall(r"^CMD (.*)$", image, re.M)
    assert commands[-1].split()[:2] == json.loads(last) == ["pytest", "--triton-check"]
    said = run(EXAMPLES / "ci", "--triton-check", "-p", "no:cacheprovider")
    assert "3 passed, 1 skipped" in said, said


def test_the_workflow_keeps_both_caches_and_saves_them_again() -> None:
    workflow = yaml.safe_load((EXAMPLES / "ci" / "kernels.yml").read_text())
    (step,) = (
        each for each in workflow["jobs"]["test"]["steps"] if "cache" in each.get("uses", "")
    )
    given = step["with"]
    assert given["path"].split() == ["~/.cache/tzero", "~/.triton/cache"]
    assert "hashFiles(" in given["key"] and given["key"].startswith(given["restore-keys"])


# -- the notebook ----------------------------------------------------------------------------------


def cells() -> list[dict[str, Any]]:
    """The cells of the notebook that are code."""
    found = json.loads(NOTEBOOK.read_text())
    assert (found["nbformat"], found["metadata"]["kernelspec"]["language"]) == (4, "python")
    return [each for each in found["cells"] if each["cell_type"] == "code"]


def test_the_notebook_holds_no_results() -> None:
    assert all(not each["outputs"] and each["execution_count"] is None for each in cells())


RUN = """
import json, linecache, re, sys
names, shown = {"__name__": "__main__"}, []
for number, source in enumerate(json.load(sys.stdin)):
    name = f"<cell {number}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), names)
    last = source.rstrip().splitlines()[-1]
    if re.fullmatch(r"[\\w.]+(\\(\\w*\\))?", last):
        shown.append(str(eval(last, names)))
print(json.dumps(shown))
"""
"""Runs cells as code, each with a source that Triton can read, and shows the last line of each."""


def test_the_cells_of_the_notebook_run() -> None:
    """In a process of their own, since the last one counts the launches of the whole process."""
    given = json.dumps(["".join(each["source"]) for each in cells()])
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(command, input=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "OutOfBounds" not in done.stderr
    shown = json.loads(done.stdout.splitlines()[-1])
    assert shown[0] in ("cpu", "cuda:0")
    assert "replayed natively" in shown[-2] and "launches of 1 kernel," in shown[-1]


@pytest.mark.skipif(
    find_spec("nbclient") is None or find_spec("ipykernel") is None,
    reason="nbclient and ipykernel are not installed: the cells run as code",
)
def test_the_notebook_runs_in_jupyter(tmp_path: Path) -> None:
    code = (
        "import nbformat, nbclient, sys\n"
        "book = nbformat.read(sys.argv[1], 4)\n"
        "nbclient.NotebookClient(book, kernel_name='python3').execute()\n"
        "print(book.cells[-1].outputs[-1]['data']['text/plain'])\n"
    )
    command = [sys.executable, "-c", code, str(NOTEBOOK)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert "launches of 1 kernel," in done.stdout
