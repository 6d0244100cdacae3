"""Triton's cache shared with other users: nothing that another user wrote there is ever loaded."""

from __future__ import annotations

import json
import os
import stat
import warnings
from pathlib import Path

import pytest

from tests.cpu.childprocess import run_program
from tzero import scratch
from tzero.cpu import loading, sealing, toolchain, triton_compat
from tzero.errors import CacheRefused

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")

SETUP = """
    import hashlib, json, logging, os, sys
    from pathlib import Path
    import torch, triton
    import triton.language as tl
    from tzero.cpu import pool, toolchain, triton_compat

    ran = Path(sys.argv[0]).parent / "ran"
    # What another user would put there: it tells when it is loaded.
    evil = toolchain.find().build(
        '#include <fcntl.h>\\n'
        '__attribute__((constructor)) static void attack(void) { creat("%s", 0600); }\\n'
        'void tz_kernel(void) {} void tz_run_packed(void) {}\\n'
        'void tz_workers(void) {} void tz_last_status(void) {}\\n' % ran,
        "evil",
    )

    def in_a_new_process(work):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                texts = []
                handler = logging.Handler(logging.WARNING)
                handler.emit = lambda record: texts.append(record.getMessage())
                logging.getLogger("tzero").addHandler(handler)
                result = work()
                os.write(write, json.dumps([result, texts]).encode())
                code = 0
            finally:
                os._exit(code)
        os.close(write)
        with os.fdopen(read) as answer:
            text = answer.read()
        assert os.waitpid(child, 0)[1] == 0
        return json.loads(text)

    def was_attacked():
        found = ran.exists()
        ran.unlink(missing_ok=True)
        return found
"""

POOL = (
    SETUP
    + """
    own = triton_compat.cache_directory()

    def load():
        return pool.load(own).workers() if not ran.exists() else "attacked"

    in_a_new_process(load)
    (path,) = own.glob("pool-*.so")

    def put(data=evil + hashlib.sha256(evil).digest()):
        os.chmod(own, 0o700)
        os.chown(own, os.geteuid(), -1)
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        os.chmod(path, 0o600)

    def symlink():
        elsewhere = own / "elsewhere"
        elsewhere.write_bytes(path.read_bytes())
        path.unlink()
        path.symlink_to(elsewhere)

    attacks = {
        "file of another user": lambda: os.chown(path, 65534, -1),
        "file that all may write": lambda: os.chmod(path, 0o666),
        "file that a group may write": lambda: os.chmod(path, 0o620),
        "directory of another user": lambda: os.chown(own, 65534, -1),
        "directory that all may write": lambda: os.chmod(own, 0o777),
        "symbolic link": symlink,
    }
    outcomes = {}
    for name, attack in attacks.items():
        put()
        attack()
        result, said = in_a_new_process(load)
        outcomes[name] = [was_attacked(), result, said]
    put()
    in_a_new_process(load)
    print(json.dumps([outcomes, was_attacked()]))
"""
)


@as_root
def test_a_pool_that_another_user_can_have_written_is_not_loaded(tmp_path: Path) -> None:
    outcomes, control = json.loads(run_program(tmp_path, POOL).stdout)
    for name, (attacked, result, said) in outcomes.items():
        assert not attacked, name
        assert result == 0, name  # it works all the same: no worker runs yet
        assert bool(said) == ("directory" in name), (name, said)
        assert all("TRITON_CACHE_DIR" in text for text in said), said
    assert control  # what this user wrote is loaded: the attack would be seen


KERNEL = (
    SETUP
    + """
    @triton.jit
    def add_one(x, BLOCK: tl.constexpr):
        at = x + tl.arange(0, BLOCK)
        tl.store(at, tl.load(at) + 1)

    def launch():
        x = torch.zeros(8)
        try:
            add_one[(1,)](x, BLOCK=8)
        except Exception as error:
            return [type(error).__name__, str(error)]
        return x.tolist()

    fine = in_a_new_process(launch)
    cache = Path(os.environ["TRITON_CACHE_DIR"])
    (binary,) = cache.glob("*/add_one.so")
    (about,) = cache.glob("*/add_one.json")
    whole, facts = binary.read_bytes(), json.loads(about.read_text())
    again = in_a_new_process(launch)
    is_hit = binary.stat().st_mtime_ns == about.stat().st_mtime_ns or binary.read_bytes() == whole

    outcomes = {}

    def attack(name, data=whole, **changed):
        binary.write_bytes(data)
        about.write_text(json.dumps({**facts, **changed}))
        outcomes[name] = [*in_a_new_process(launch), was_attacked()]

    attack("object", evil)
    attack("object and its digest", evil, cpu_object=hashlib.sha256(evil).hexdigest())
    attack("scratch memory", cpu_scratch=1 << 40)
    attack("parameters", cpu_params=["i64"])
    attack("no seal", cpu_seal=None)
    attack("nothing")
    print(json.dumps([fine, again, outcomes]))
"""
)


def test_an_entry_of_tritons_cache_that_someone_changed_is_refused(tmp_path: Path) -> None:
    fine, again, outcomes = json.loads(run_program(tmp_path, KERNEL).stdout)
    assert fine == again == outcomes.pop("nothing")[:2] == [[1.0] * 8, []]
    for name, (result, _, attacked) in outcomes.items():
        assert not attacked, name
        kind, text = result
        assert kind == "CacheRefused" and "'add_one'" in text, (name, result)
        assert "TRITON_CACHE_DIR" in text and str(tmp_path) in text


TWO_USERS = (
    SETUP
    + """
    @triton.jit
    def add_one(x, BLOCK: tl.constexpr):
        at = x + tl.arange(0, BLOCK)
        tl.store(at, tl.load(at) + 1)

    def launch():
        x = torch.zeros(8)
        add_one[(1,)](x, BLOCK=8)
        return x.tolist()

    cache = Path(os.environ["TRITON_CACHE_DIR"])
    cache.mkdir(mode=0o777)
    os.chmod(cache, 0o777)
    outcomes = [in_a_new_process(launch)]
    own = triton_compat.cache_directory()
    for spoil in (lambda: own.rename(cache / "tzero-65534"), lambda: os.chown(own, 65534, -1)):
        spoil()
        outcomes.append(in_a_new_process(launch))
    entries = len(list(cache.glob("*/add_one.so")))
    print(json.dumps([outcomes, entries, oct(os.stat(cache / "tzero-65534").st_mode)]))
"""
)


@as_root
def test_users_who_share_tritons_cache_each_have_their_own_entries(tmp_path: Path) -> None:
    outcomes, entries, mode = json.loads(run_program(tmp_path, TWO_USERS).stdout)
    (first, nothing), (second, still_nothing), (third, said) = outcomes
    assert first == second == third == [1.0] * 8
    assert nothing == still_nothing == []
    assert entries == 3  # the third has no place for its key, and a key of its own
    assert len(said) == 2 and all("chown" in text for text in said), said
    assert mode == oct(stat.S_IFDIR | 0o700)


def test_an_object_is_never_in_a_file_that_others_can_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch.directory()  # that of this process is not made here
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    binary = toolchain.find().build("int f(void) { return 3; }", "f", optimization=0)
    if hasattr(os, "memfd_create"):
        created: list[str] = []
        monkeypatch.setattr("tempfile.mkdtemp", lambda **_: created.append("a directory"))
        library = loading.open_object(binary, "a name that is longer than a memfd's may be " * 9)
        assert library.f() == 3 and created == []
        loading.close_object(library)
        monkeypatch.undo()
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def none(*_: object) -> int:
        raise PermissionError("memory that can be executed is forbidden here")

    modes: list[int] = []
    dlopen = loading.dlopen

    def spied(path: str, mode: int) -> int:
        modes.append(stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode))
        return dlopen(path, mode)

    monkeypatch.setattr("os.memfd_create", none, raising=False)
    monkeypatch.setattr(loading, "dlopen", spied)
    library = loading.open_object(binary)
    assert library.f() == 3
    loading.close_object(library)
    assert modes == [0o700]
    assert list(tmp_path.iterdir()) == []


def test_an_object_that_cannot_be_loaded_says_why() -> None:
    with pytest.raises(OSError, match=r"file too short|invalid ELF header"):
        loading.open_object(b"no object at all")


def test_a_seal_is_for_one_object_one_metadata_and_one_key(tmp_path: Path) -> None:
    from types import SimpleNamespace

    facts = {"name": "add", "cpu_scratch": 64, "cpu_params": ["ptr"]}
    sealing.seal(facts, b"code", tmp_path / "mine")
    sealing.require(SimpleNamespace(**facts), tmp_path / "mine")
    sealing.require_verified("add", b"code", tmp_path / "mine")
    with pytest.raises(CacheRefused, match=r"'add'.*not the one that you compiled"):
        sealing.require_verified("add", b"other code", tmp_path / "mine")
    for change in ({"cpu_scratch": 0}, {"name": "sub"}, {"cpu_object": "00"}, {"cpu_seal": "00"}):
        with pytest.raises(CacheRefused, match="no seal of yours"):
            sealing.require(SimpleNamespace(**facts | change), tmp_path / "mine")
    others = {"name": "sub", "cpu_scratch": 0, "cpu_params": ["i64"]}
    sealing.seal(others, b"other code", tmp_path / "mine")
    for each in (others, facts):
        sealing.require(SimpleNamespace(**each), tmp_path / "mine")
    with pytest.raises(CacheRefused, match=r"'add'.*not the one that you compiled"):
        sealing.require_verified("add", b"other code", tmp_path / "mine")  # two of our own, mixed
    names = {sealing.fingerprint(tmp_path / each) for each in ("mine", "theirs")}
    assert len(names) == 2
    assert stat.S_IMODE(os.stat(tmp_path / "mine" / "key").st_mode) == 0o600
    with pytest.raises(CacheRefused):
        sealing.require(SimpleNamespace(**facts | {"cpu_seal": "\udc80"}), tmp_path / "mine")


def test_without_a_home_nothing_is_written_to_the_working_directory() -> None:
    """Triton's own default is a directory named ``~`` there."""
    found = triton_compat._own_directory("~/.triton/cache", os.geteuid())
    assert found.is_absolute() and found.parts[-3:-1] == (".triton", "cache")


def test_a_key_that_others_can_read_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "shared" / "mine"
    before = sealing.fingerprint(directory)
    monkeypatch.setattr(sealing, "_keys", {})  # as in a new process
    assert sealing.fingerprint(directory) == before
    os.chmod(directory / "key", 0o640)
    monkeypatch.setattr(sealing, "_keys", {})
    assert sealing.fingerprint(directory) != before
    assert stat.S_IMODE(os.stat(directory / "key").st_mode) == 0o600


def test_only_the_users_own_directory_is_closed_to_others(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        sealing.fingerprint(tmp_path / "new" / "shared" / "mine")
    finally:
        os.umask(before)
    modes = [
        stat.S_IMODE(os.stat(tmp_path / each).st_mode)
        for each in ("new", "new/shared", "new/shared/mine")
    ]
    assert modes == [0o775, 0o775, 0o700]


def test_a_place_that_cannot_be_used_is_logged_and_not_kept_with_a_kernel(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "mine").write_text("a file in the way")
    with warnings.catch_warnings(), caplog.at_level("WARNING", logger="tzero"):
        warnings.simplefilter("error")  # a compile would keep it in the cache
        first = sealing.fingerprint(tmp_path / "mine")
    assert str(tmp_path) in caplog.text and "Not a directory" in caplog.text
    assert sealing.fingerprint(tmp_path / "mine") == first  # the key of this process
