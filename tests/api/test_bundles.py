"""Bundles of programs: used with another path and no compiler, or missed with a reason."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl
from typer.testing import CliRunner

import tzero
from tests import warm
from tzero import cli
from tzero.adapters.triton_launch import ASTSource, GPUTarget
from tzero.adapters.triton_modules import needed
from tzero.api import bundles
from tzero.backends import triton as backend
from tzero.backends.triton import carried, write_request
from tzero.cache import bundle, in_use
from tzero.cache.bundle import Bundle
from tzero.calls.coverage import Coverage
from tzero.compile.request import Artifact
from tzero.events import Event, observe
from tzero.tune import bundled

PROGRAM = Path(__file__).with_name("bundled_program.py")
HOPPER = GPUTarget("cuda", 90, 32)
CPU = GPUTarget("cpu", platform.machine(), 1)


@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def written(target: GPUTarget = CPU, block: int = 64, kernel: Any = double, **options: Any) -> Any:
    types = {"x": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    return backend.written(ASTSource(kernel, types, {"BLOCK": block}), target, options)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the program, and its coverage beside it."""
    folder = tmp_path_factory.mktemp("built")
    path, program = folder / "app.tzb", folder / "first place" / "program.py"
    program.parent.mkdir()
    shutil.copy(PROGRAM, program)
    command = [sys.executable, str(program), str(folder / "coverage.json")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZERO_CACHE_DIR", str(folder / "cache"))
        done = CliRunner().invoke(cli.app, ["bundle", "build", "-o", str(path), "--", *command])
    assert done.exit_code == 0, done.output
    assert "kernels  3" in done.output and "configs  1" in done.output
    return path


@pytest.fixture
def seen() -> Iterator[list[Event]]:
    found: list[Event] = []
    with observe(found.append):
        yield found


def run(folder: Path, path: Path, **variables: str) -> dict[str, Any]:
    """Run the program elsewhere, with empty caches and no compiler on its PATH."""
    program = folder / "another place" / "program.py"
    program.parent.mkdir()
    shutil.copy(PROGRAM, program)
    kept = {name: os.environ[name] for name in os.environ if name not in ("CC", "TZERO_CC")}
    places = {
        "TZERO_BUNDLE": str(path),
        "TZERO_CACHE_DIR": str(folder / "cache"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "PATH": str(folder),
    }
    env = {**kept, **places, **variables}
    done = warm.run([sys.executable, str(program)], cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def test_a_program_with_a_bundle_compiles_nothing_and_looks_for_no_compiler(
    built: Path, tmp_path: Path
) -> None:
    said = run(tmp_path, built)
    assert said == {
        "compiled": 0,
        "requests": 0,
        "probes": 0,
        "choice": "pretuned",
        "dynamo": False,
        "replays": 2,
        "misses": [],
    }


def test_a_process_with_a_bundle_is_sealed_before_any_call(built: Path) -> None:
    done = warm.run(
        [sys.executable, "-c", "import tzero; tzero.seal()"],
        env={**os.environ, "TZERO_BUNDLE": str(built)},
    )
    assert done.returncode == 0 and "nothing is covered" not in done.stderr, done.stderr


@pytest.mark.parametrize("fact", ["triton", "tzero"])
def test_a_bundle_of_another_version_is_missed_with_the_reason(
    fact: str, built: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.tzb"
    with Bundle(built) as opened:
        rows = [
            bundle.Item(
                each.kind, each.digest[::-1], each.name, facts(each, fact), opened.read(each)
            )
            for each in opened
        ]
    bundle.write(other, rows)
    said = run(tmp_path, other, PATH=os.environ["PATH"])
    assert said["compiled"] == 2  # the config of the bundle is used: it has no version
    here = carried.facts_of(written())[fact]
    assert f"has it for {fact} 9.9, and here it is {here}" in said["misses"][0]


def facts(listed: bundle.Listed, other: str) -> dict[str, str]:
    return {**listed.facts, other: "9.9"} if listed.kind == carried.KERNEL else {**listed.facts}


def test_a_bundle_from_coverage_is_that_of_the_program(built: Path, tmp_path: Path) -> None:
    coverage = Coverage.read(built.with_name("coverage.json"))
    made = bundles.build_from_coverage(str(tmp_path / "again.tzb"), coverage)
    assert (made.kernels, made.configs, made.refused) == (3, 1, {})
    with Bundle(built) as one, Bundle(made.path) as other:
        assert [each[:4] for each in one] == [each[:4] for each in other]
    assert "scale_kernel" in str(coverage) and "the constant 1024" in str(coverage)


def test_a_bundle_for_a_gpu_is_built_without_one(built: Path, tmp_path: Path) -> None:
    path = tmp_path / "hopper.tzb"
    coverage = str(built.with_name("coverage.json"))
    command = ["bundle", "build", "-o", str(path), "--coverage", coverage, "--target", "cuda:90"]
    done = CliRunner().invoke(cli.app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["kernels"] == 3
    with Bundle(path) as opened:
        kernels = [each for each in opened if each.kind == carried.KERNEL]
        assert {each.facts["target"] for each in kernels} == {"cuda:90"}
        modules = [each.name for each in opened if each.kind == carried.MODULE]
        assert set(modules) == ({"cuda_utils", "__triton_launcher"} if needed() else set())
        files = [Artifact.decode(opened.read(each)).files for each in kernels]
    assert all(any(name.endswith(".cubin") for name in each) for each in files)


def test_a_kernel_for_another_target_has_the_key_that_a_launch_there_has() -> None:
    for options in ({}, {"num_warps": 8}, {"num_stages": 5, "num_warps": 2}):
        moved = backend.retargeted(written(CPU, **options), HOPPER)
        assert carried.content(moved) == carried.content(written(HOPPER, **options))
    assert backend.retargeted(written(HOPPER), HOPPER).parts == written(HOPPER).parts


def test_a_kernel_that_is_not_in_the_bundle_is_compiled_and_the_event_says_why(
    tmp_path: Path, seen: list[Event]
) -> None:
    path = tmp_path / "some.tzb"
    code = Artifact({"double.cubin": b"code"})
    bundle.write(path, carried.items(written(HOPPER), code))
    opened = in_use.use(path)
    try:
        assert carried.find(written(HOPPER)) == code
        assert not seen
        for made, reason in [
            (written(GPUTarget("cuda", 80, 32)), "for target cuda:90, and here it is cuda:80"),
            (written(HOPPER, block=128), "other source, constants, types or options"),
            (written(HOPPER, num_warps=8), "other source, constants, types or options"),
            (written(), "for target cuda:90, and here it is cpu"),
        ]:
            seen.clear()
            assert carried.find(made) is None
            assert reason in seen[0].reason and str(path) in seen[0].reason
    finally:
        in_use.drop(opened)


def test_an_entry_that_is_no_artifact_is_a_miss(tmp_path: Path, seen: list[Event]) -> None:
    digest = carried.content(written(HOPPER))
    bundle.write(tmp_path / "odd.tzb", [bundle.Item("kernel", digest, "double", {}, b"garbage")])
    opened = in_use.use(tmp_path / "odd.tzb")
    try:
        assert carried.find(written(HOPPER)) is None
        assert "not an artifact" in seen[0].reason
    finally:
        in_use.drop(opened)


def test_an_entry_for_the_cpu_needs_its_thread_pool(tmp_path: Path, seen: list[Event]) -> None:
    kernel, pool = carried.items(written(), Artifact({"double.so": b"code"}))
    assert (kernel.kind, pool.kind) == (carried.KERNEL, carried.POOL)
    bundle.write(tmp_path / "half.tzb", [kernel])
    opened = in_use.use(tmp_path / "half.tzb")
    try:
        assert carried.find(written()) is None
        assert "has it without the CPU's thread pool" in seen[0].reason and len(seen) == 1
    finally:
        in_use.drop(opened)


@pytest.mark.parametrize("damaged", [carried.KERNEL, carried.POOL])
def test_a_damaged_entry_is_the_reason_why_a_kernel_is_not_used(
    damaged: str, tmp_path: Path, seen: list[Event]
) -> None:
    path = tmp_path / "torn.tzb"
    bundle.write(path, carried.items(written(), Artifact({"double.so": b"code"})))
    with Bundle(path) as whole:
        place = next(each for each in whole if each.kind == damaged)
    data = bytearray(path.read_bytes())
    data[place.start + place.size - 1] ^= 1
    path.write_bytes(data)
    opened = in_use.use(path)
    try:
        assert carried.find(written()) is None
        why = {
            carried.KERNEL: f"no bundle has it: its entry in {path} is damaged",
            carried.POOL: f"no bundle has it: {path} has it without the CPU's thread pool, "
            "whose entry is missing or damaged",
        }
        assert "torn" in seen[0].reason or "SHA-256" in seen[0].reason
        assert [each.reason for each in seen[1:]] == [why[damaged]]
    finally:
        in_use.drop(opened)


def test_an_observer_that_asks_for_bundles_is_told_once_that_one_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "odd.tzb"
    path.write_bytes(b"x")
    monkeypatch.setenv("TZERO_BUNDLE", str(path))
    told: list[str] = []

    def ask(event: Event) -> None:
        told.append(event.reason)
        assert len(told) < 9 and in_use.bundles() == ()

    with observe(ask):
        assert in_use.bundles() == ()
    assert len(told) == 1 and "it is no bundle" in told[0]


@pytest.mark.skipif(not needed(), reason="this Triton compiles no modules for CUDA")
def test_a_module_for_cuda_is_found_by_its_text(tmp_path: Path, seen: list[Event]) -> None:
    item = carried._module("cuda_utils", "int main;", b"an object")
    bundle.write(tmp_path / "modules.tzb", [item])
    assert carried._found_module("cuda_utils", "int main;") is None
    opened = in_use.use(tmp_path / "modules.tzb")
    try:
        assert carried._found_module("cuda_utils", "int main;") == b"an object"
        assert carried._found_module("cuda_utils", "int other;") is None
        assert carried._found_module("launcher", "int main;") is None
    finally:
        in_use.drop(opened)


@pytest.mark.parametrize("target", [CPU, HOPPER], ids=["cpu", "cuda"])
def test_no_program_is_run_to_make_a_key(
    target: GPUTarget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"it runs {args}")

    monkeypatch.setattr(subprocess, "Popen", run)
    monkeypatch.setenv("PATH", str(tmp_path))
    write_request._environments.clear()
    carried._cpu_facts.cache_clear()
    assert carried.content(written(target)) == carried.content(written(target))


CHANGES: dict[str, Any] = {
    "Triton": lambda patch: patch.setattr(backend.carried.triton_compile, "compiler_version", str),
    "tzero": lambda patch: patch.setattr(carried, "TZERO", "9.9"),
    "the features of the CPU": lambda patch: patch.setattr(carried, "cpu_features", lambda: "old"),
    "the C library": lambda patch: patch.setattr(
        carried.platform, "libc_ver", lambda: ("glibc", "2.1")
    ),
    "the CPU backend": lambda patch: patch.setattr(
        "tzero.cpu.compiler.backend_digest", lambda: "0" * 64
    ),
    "a knob": lambda patch: patch.setitem(vars(triton.knobs.compilation), "enable_asan", True),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_an_object_depends_on_is_in_its_key(
    change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried._cpu_facts.cache_clear()
    before = carried.content(written())
    change(monkeypatch)
    carried._cpu_facts.cache_clear()
    try:
        assert carried.content(written()) != before
    finally:
        carried._cpu_facts.cache_clear()


@triton.constexpr_function
def twice(n):
    return 2 * n


@triton.jit
def widened(x, out, n, BLOCK: tl.constexpr):
    WIDE: tl.constexpr = twice(BLOCK)
    at = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


def test_another_python_has_the_same_key_unless_it_runs_functions_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, run = carried.content(written(HOPPER)), carried.content(written(HOPPER, kernel=widened))
    monkeypatch.setattr(carried.sys, "version_info", (3, 99))
    assert carried.content(written(HOPPER)) == plain
    assert carried.content(written(HOPPER, kernel=widened)) != run
    assert "python" not in carried.facts_of(written())
    assert carried.facts_of(written(kernel=widened))["python"] == "3.99"


def test_a_key_has_no_path(tmp_path: Path) -> None:
    text = PROGRAM.read_text().partition("@tzero.kernel")[0]
    kernels = []
    for name in ("one", "two"):
        path = tmp_path / name / "program.py"
        path.parent.mkdir()
        path.write_text(text)
        world: dict[str, Any] = {"__name__": "program"}
        exec(compile(text, str(path), "exec"), world)
        kernels.append(world["root_kernel"])
    for target in (CPU, HOPPER):
        one, two = (written(target, kernel=each) for each in kernels)
        assert carried.content(one) == carried.content(two)
        assert one.places != two.places
        assert str(tmp_path) not in "".join(one.parts.values())
        assert "site-packages" not in "".join(one.parts.values())


# -- the command -----------------------------------------------------------------------------------


def command(*words: str) -> Any:
    return CliRunner().invoke(cli.app, ["bundle", *words])


def test_inspect_and_verify(built: Path, tmp_path: Path) -> None:
    found = json.loads(command("inspect", str(built), "--json").output)
    assert [each["kind"] for each in found["entries"]].count("kernel") == 3
    assert "scale_kernel" in command("inspect", str(built)).output
    assert command("verify", str(built)).exit_code == 0
    torn = bytearray(built.read_bytes())
    torn[-3] ^= 1
    (tmp_path / "torn.tzb").write_bytes(torn)
    done = command("verify", str(tmp_path / "torn.tzb"), "--json")
    assert done.exit_code == 1 and len(json.loads(done.output)["damaged"]) == 1
    for word in ("inspect", "verify"):
        done = command(word, str(PROGRAM))
        assert done.exit_code == 3 and "no bundle" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give a program after --, or --coverage FILE"),
        (["--target", "cuda:90", "--", "true"], "or --coverage FILE"),
        (["--coverage", "x.json", "--", "true"], "give a program"),
        (["--", sys.executable, "-c", "raise SystemExit(7)"], "the program ended with code 7"),
        (["--", "/no/such/program"], "No such file"),
        (["--coverage", "/no/such/file"], "No such file"),
        (["--coverage", str(PROGRAM)], "it is no file of coverage"),
        (["--coverage", "NESTED"], "it is no file of coverage: RecursionError"),
        (["--coverage", "UNTYPED"], "and has types for []"),
        (["--coverage", "COVERAGE", "--target", "tpu:5"], "'tpu:5' is no target"),
    ],
)
def test_a_command_that_makes_no_bundle_says_why(
    words: list[str], said: str, built: Path, tmp_path: Path
) -> None:
    coverage = built.with_name("coverage.json")
    nested, untyped = built.with_name("nested.json"), built.with_name("untyped.json")
    nested.write_text("[" * 200_000)
    facts = json.loads(coverage.read_text())
    facts["kernels"][0]["parts"]["signature"] = "[]"
    untyped.write_text(json.dumps(facts))
    files = {"COVERAGE": coverage, "NESTED": nested, "UNTYPED": untyped}
    words = [str(files.get(word, word)) for word in words]
    done = command("build", "-o", str(tmp_path / "out.tzb"), *words)
    assert done.exit_code in (2, 3) and said in done.output
    assert not list(tmp_path.iterdir())


def test_a_kernel_that_no_bundle_can_have_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZERO_COLLECT", str(tmp_path))
    carried.refused("printing", "it prints while it compiles (static_print)")
    made = bundles._write(str(tmp_path / "app.tzb"), bundles._collected(str(tmp_path)))
    assert made.refused == {"printing": "it prints while it compiles (static_print)"}
    assert len(Bundle(made.path)) == 0


def test_what_cannot_be_collected_is_an_event(
    monkeypatch: pytest.MonkeyPatch, seen: list[Event]
) -> None:
    monkeypatch.setenv("TZERO_COLLECT", "/no/such/directory")
    carried.used(written(HOPPER), Artifact({"double.cubin": b"code"}))
    entry = bundled.Entry("double", "ab", "", "cuda:sm_90", tzero.Config(BLOCK=64))
    bundled.note(entry)
    assert ["not collected" in each.reason for each in seen] == [True, True]
    bundled._chosen.pop(entry.place)


def test_a_damaged_config_of_a_bundle_is_an_event(tmp_path: Path, seen: list[Event]) -> None:
    bundle.write(tmp_path / "odd.tzb", [bundle.Item("config", "0" * 64, "add", {}, b"{}")])
    opened = in_use.use(tmp_path / "odd.tzb")
    try:
        assert [len(each) for each in bundled.of_bundles()] == [0]
        assert "tzero_pretuned" in seen[0].reason
    finally:
        in_use.drop(opened)
