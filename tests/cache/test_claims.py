"""Claims on every board: a directory, c10d stores, a redis server. One row of the table each."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cache.boards import KINDS, Make, board
from tests.cache.conftest import digest_of
from tzero.cache import claims as module
from tzero.cache.claims import FOUND, Board, Claims, Lease, Mark
from tzero.cache.reaching import Reaching
from tzero.events import Event

MINE = digest_of("mine")
LEASE = 30.0  # seconds by the clock of the test; no redis drops a mark within the test


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module", params=KINDS)
def boards(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    with board(request.param, tmp_path_factory.mktemp("board")) as make:
        yield make


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(
    boards: Make, clock: Clock, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Claims]]:
    """Makes claims as another process has them: with their own connection and clock."""
    # Leases are renewed by the tests, which have a clock of their own.
    kept: list[Lease] = []
    monkeypatch.setattr(module.keeper, "add", kept.append)

    def made(time: Callable[[], float] = clock, wrap: Callable[[Board], Board] = lambda b: b):
        return Claims(wrap(boards()), LEASE, prefix=request.node.name, clock=time)

    yield made
    for lease in kept:
        lease.release()


def held(claim: object) -> Lease:
    assert isinstance(claim, Lease) and claim.is_held
    return claim


def alone(claim: object) -> bool:
    return isinstance(claim, Lease) and not claim.is_held


# -- boards ----------------------------------------------------------------------------------------


def test_a_swap_needs_the_mark_that_is_there(boards: Make) -> None:
    one, other = boards(), boards()
    first, second = Mark("a1", "-"), Mark("b2", "-")
    assert one.read("swaps") == ""
    assert not one.swap("swaps", first.text, second.text, 60)
    assert one.swap("swaps", "", first.text, 60)
    assert other.read("swaps") == first.text
    assert not other.swap("swaps", "", second.text, 60)
    assert not other.swap("swaps", second.text, Mark("c3", "-").text, 60)
    renewed = first._replace(beat=1)
    assert one.swap("swaps", first.text, renewed.text, 60)
    assert not other.swap("swaps", first.text, second.text, 60)
    assert other.swap("swaps", renewed.text, second.text, 60)
    assert not one.swap("swaps", renewed.text, first.text, 60)
    assert not one.swap("swaps", renewed.text, "", 60)
    assert one.read("swaps") == second.text
    assert other.swap("swaps", second.text, "", 60)
    assert one.read("swaps") == ""
    assert one.swap("swaps", "", first.text, 60)
    assert not other.swap("swaps", second.text, "", 60)
    assert other.read("swaps") == first.text and one.read("others") == ""


def test_of_many_at_once_one_gets_each_claim(boards: Make) -> None:
    names = [f"race {k}" for k in range(20)]
    winners: list[tuple[str, int]] = []
    gate = threading.Barrier(4)

    def run(number: int) -> None:
        mine = boards()
        gate.wait(60)
        for name in names:
            if mine.swap(name, "", Mark(f"{number}", "-").text, 60):
                winners.append((name, number))

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(name for name, _ in winners) == sorted(names)
    view = boards()
    for name, number in winners:
        assert Mark.parse(view.read(name)) == Mark(f"{number}", "-")


def test_of_many_who_take_over_one_does(boards: Make) -> None:
    stale = Mark("gone", "-").text
    for k in range(10):
        assert boards().swap(f"over {k}", "", stale, 60)
    wins: list[str] = []
    gate = threading.Barrier(4)

    def run(number: int) -> None:
        mine = boards()
        gate.wait(60)
        wins.extend(
            f"over {k}"
            for k in range(10)
            if mine.swap(f"over {k}", stale, Mark(f"{number}", "-").text, 60)
        )

    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(wins) == [f"over {k}" for k in range(10)]


# -- claims ----------------------------------------------------------------------------------------


def test_a_claim_is_mine_or_theirs_until_it_is_released(make: Callable[..., Claims]) -> None:
    one, other = make(), make()
    lease = held(one.claim(MINE))
    assert other.claim(MINE) is None and one.claim(MINE) is None
    assert held(other.claim(digest_of("another"))).is_held
    lease.release()
    lease.release()  # again: nothing
    taken = held(other.claim(MINE))
    assert one.claim(MINE) is None
    taken.release()


def test_who_waited_looks_before_it_claims(make: Callable[..., Claims]) -> None:
    one, other = make(), make()
    looked: list[bool] = []

    def look() -> bool:
        looked.append(True)
        return True

    lease = held(one.claim(MINE, look=look))
    assert other.claim(MINE, look=look) is None and not looked
    lease.release()
    assert other.claim(MINE, look=look) == FOUND and len(looked) == 1
    assert other.waited(MINE) == 0.0
    held(other.claim(MINE)).release()


def test_a_lease_ends_for_who_has_seen_the_same_mark_for_its_length(
    make: Callable[..., Claims], clock: Clock
) -> None:
    one, other = make(), make()
    lease = held(one.claim(MINE))
    assert other.claim(MINE) is None
    clock.now += LEASE - 1
    assert other.claim(MINE) is None
    lease.renew()
    clock.now += LEASE - 1
    assert other.claim(MINE) is None  # a new mark: the time begins again
    clock.now += LEASE
    taken = held(other.claim(MINE))
    # Whoever was stopped finds that the lease is lost, and does not undo the later claim.
    lease.renew()
    assert lease.is_lost and not taken.is_lost
    lease.release()
    assert make().claim(MINE) is None
    taken.renew()
    assert not taken.is_lost
    taken.release()


def test_a_waiter_looks_again_when_the_lease_ends(
    make: Callable[..., Claims], clock: Clock
) -> None:
    one, other = make(), make()
    lease = held(one.claim(MINE))
    assert other.claim(MINE) is None
    usual = module.paused(LEASE - 0.06, 1, other.is_local)
    clock.now += LEASE - 0.06
    assert other.claim(MINE) is None
    assert other.pause(MINE) == pytest.approx(0.06) and usual > 0.06
    lease.release()


def test_clocks_that_differ_do_not_matter(make: Callable[..., Claims]) -> None:
    behind, ahead = Clock(), Clock()
    ahead.now += 1e9
    one, other = make(behind), make(ahead)
    lease = held(one.claim(MINE))
    assert other.claim(MINE) is None
    behind.now += 1e6  # the owner's clock says nothing to others
    assert other.claim(MINE) is None
    ahead.now += LEASE / 2
    assert other.claim(MINE) is None
    lease.release()
    held(other.claim(MINE)).release()


def test_a_failure_lets_all_who_wait_try_at_once(make: Callable[..., Claims]) -> None:
    owner, first, second, late = make(), make(), make(), make()
    lease = held(owner.claim(MINE))
    assert first.claim(MINE) is None and second.claim(MINE) is None
    lease.release(has_failed=True)
    assert alone(first.claim(MINE)) and alone(second.claim(MINE))
    held(late.claim(MINE)).release()  # who comes later claims again


def test_nobody_waits_for_longer_than_the_limit(
    make: Callable[..., Claims], clock: Clock, events: list[Event]
) -> None:
    one, other = make(), make()
    lease = held(one.claim(MINE))
    assert other.claim(MINE, limit=100) is None
    for _ in range(4):
        clock.now += LEASE - 5
        lease.renew()
        claim = other.claim(MINE, limit=100)
    assert alone(claim)
    assert [event.kind for event in events] == ["cache"]
    assert "another process has it for 100 s" in events[0].reason
    lease.release()


def test_a_lease_is_not_renewed_for_longer_than_the_limit(
    make: Callable[..., Claims], clock: Clock
) -> None:
    one, other = make(), make()
    lease = held(one.claim(MINE, limit=50))
    assert other.claim(MINE) is None
    clock.now += 51
    lease.renew()
    held(other.claim(MINE)).release()


def test_an_error_of_who_looks_is_theirs(make: Callable[..., Claims], events: list[Event]) -> None:
    def look() -> bool:
        raise KeyError("mine")

    one, other = make(), make()
    lease = held(one.claim(MINE))
    assert other.claim(MINE) is None
    lease.release()
    with pytest.raises(KeyError, match="mine"):
        other.claim(MINE, look=look)
    assert events == []


@pytest.mark.parametrize(
    "text", ["a lie, without end", "aa -\n" + "9" * 5000 + " held  ", "aa -\n7 held  "]
)
def test_what_is_no_mark_is_taken_over_after_a_lease_with_an_event(
    text: str, make: Callable[..., Claims], boards: Make, clock: Clock, events: list[Event]
) -> None:
    claims = make()
    name = claims._prefix + MINE
    assert boards().swap(name, "", text, 60)
    assert claims.claim(MINE) is None and events == []
    clock.now += LEASE
    held(claims.claim(MINE)).release()
    assert boards().read(name) == ""
    assert [event.kind for event in events] == ["cache"]
    assert f"after 30 s without a sign of life: what {claims.board.shown}" in events[0].reason
    assert f"has is no mark ({text[:40]!r})" in events[0].reason


def test_the_mark_of_a_process_that_is_gone_is_taken_over_at_once(
    make: Callable[..., Claims], boards: Make
) -> None:
    if not module._machine():
        pytest.skip("needs /proc")
    claims = make()
    name = claims._prefix + MINE
    mine = module._holder()
    machine, _, process = mine.partition("/")
    pid = process.partition("/")[0]
    elsewhere = Mark("cc", f"another/{pid}/1").text
    assert boards().swap(name, "", elsewhere, 60)
    assert claims.claim(MINE) is None  # it says nothing about processes of other machines
    before = Mark("dd", f"{machine}/{pid}/1").text  # the same number, but another start
    assert boards().swap(name, elsewhere, before, 60)
    held(claims.claim(MINE)).release()


def test_a_swap_that_was_made_too_late_to_be_told_is_not_a_loss(
    make: Callable[..., Claims],
) -> None:
    class Late:
        """Makes the swap, and says that it was not made."""

        def __init__(self, real: Board) -> None:
            self.real, self.shown, self.lies = real, "late", 0

        def read(self, name: str) -> str:
            return self.real.read(name)

        def swap(self, name: str, seen: str, mark: str, seconds: float) -> bool:
            made = self.real.swap(name, seen, mark, seconds)
            self.lies += 1
            return made and self.lies != 2

    lease = held(make(wrap=Late).claim(MINE))
    lease.renew()
    lease.renew()
    assert not lease.is_lost
    lease.release()
    held(make().claim(MINE)).release()


def test_the_number_of_a_process_may_be_anything(make: Callable[..., Claims]) -> None:
    claims = make()
    for k, pid in enumerate(("9" * 900, "²", "٣", "")):
        digest = digest_of(f"number {k}")
        mark = Mark("cc", f"{module._machine()}/{pid}/1").text
        assert claims.board.swap(claims._prefix + digest, "", mark, 60)
        assert claims.claim(digest) is None


@pytest.mark.parametrize("how", ["file", "pipe"])
def test_an_empty_file_is_no_mark_and_is_taken_over_after_a_lease(
    how: str, tmp_path: Path, clock: Clock, events: list[Event]
) -> None:
    """As a machine that lost power leaves one, whose file system had not written the mark."""
    from tzero.cache.claims_directory import Directory

    claims = Claims(Directory(str(tmp_path)), LEASE, clock=clock)
    place = tmp_path / MINE[-2:] / MINE
    place.parent.mkdir()
    place.touch() if how == "file" else os.mkfifo(place)
    assert claims.claim(MINE) is None
    clock.now += LEASE
    lease = held(claims.claim(MINE))
    assert "is no mark" in events[0].reason and len(events) == 1
    assert Claims(Directory(str(tmp_path)), LEASE, clock=clock).claim(MINE) is None
    lease.release()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    held(claims.claim(MINE)).release()


def test_an_empty_value_in_redis_is_no_claim(tmp_path: Path) -> None:
    with board("redis", tmp_path) as views:
        redis = views()
        redis._client.set("empty", "")  # type: ignore[attr-defined]
        assert redis.read("empty") == ""
        assert redis.swap("empty", "", Mark("a1", "-").text, 60)
        assert not views().swap("empty", "", Mark("b2", "-").text, 60)
        assert redis.read("empty") == Mark("a1", "-").text


# -- boards that fail ------------------------------------------------------------------------------


class Lying:
    """Shows one text after the other, and takes no mark."""

    shown = "lying"

    def __init__(self, texts: Iterator[str]) -> None:
        self.texts = texts

    def read(self, name: str) -> str:
        return next(self.texts)

    def swap(self, name: str, seen: str, mark: str, seconds: float) -> bool:
        return False


LIES: dict[str, Callable[[int], str]] = {
    "nothing": lambda k: "",
    "one mark": lambda k: Mark("aa", "-").text,
    "the same garbage": lambda k: "garbage",
    "other garbage": lambda k: f"garbage {k}",
    "new owners": lambda k: Mark(f"{k}", f"elsewhere/{k}/1").text,
    "owners that failed": lambda k: Mark(f"{k}", "-", 0, True).text,
    "processes that are gone": lambda k: Mark("aa", f"{module._machine()}/{1 << 30}/1", 0).text,
    "beats in any order": lambda k: Mark("aa", "-", k % 2).text,
    "a mark and nothing": lambda k: Mark("aa", "-").text if k % 2 else "",
}


@pytest.mark.parametrize("lie", LIES)
def test_a_board_that_lies_is_believed_for_a_lease(
    lie: str, clock: Clock, events: list[Event]
) -> None:
    claims = Claims(Lying(map(LIES[lie], itertools.count())), LEASE, clock=clock)
    begun, claim = clock.now, None
    while claim is None and clock.now - begun < 10 * LEASE:
        claim = claims.claim(MINE)
        clock.now += LEASE / 100
    assert alone(claim) and clock.now - begun < LEASE * 1.1
    assert "lying takes no other mark" in events[-1].reason


class Broken:
    shown = "broken"

    def __init__(self) -> None:
        self.calls = 0

    def read(self, name: str) -> str:
        self.calls += 1
        raise OSError("it is gone")

    def swap(self, name: str, seen: str, mark: str, seconds: float) -> bool:
        raise OSError("it is gone")


def test_a_board_that_fails_is_one_event_and_not_asked_for_a_while(events: list[Event]) -> None:
    clock, board = Clock(), Broken()
    claims = Claims(board, LEASE, reaching=Reaching(clock=clock), clock=clock)
    for _ in range(3):
        assert alone(claims.claim(MINE))
    assert board.calls == 1
    assert len(events) == 1 and "it is gone. Each process compiles" in events[0].reason
    clock.now += 6
    assert alone(claims.claim(MINE)) and board.calls == 2


def test_a_disk_that_fails_is_one_event(tmp_path: Path, events: list[Event]) -> None:
    from tzero.cache.claims_directory import Directory

    place = tmp_path / "file"
    place.write_text("no directory")
    claims = Claims(Directory(str(place)), LEASE)
    for _ in range(3):
        assert alone(claims.claim(MINE))
    assert len(events) == 1 and "claims at" in events[0].reason


def test_leases_are_renewed_while_their_owner_lives(tmp_path: Path) -> None:
    from tzero.cache.claims_directory import Directory

    one, other = (Claims(Directory(str(tmp_path)), 0.4) for _ in range(2))
    lease = held(one.claim(MINE))
    assert other.claim(MINE) is None
    done = threading.Event()
    for _ in range(8):
        done.wait(0.1)
        assert other.claim(MINE) is None or lease.is_lost  # a busy machine may lose it
    lease.release()
    assert Mark.parse(one.board.read(MINE)) is None or lease.is_lost


def test_a_mark_that_nothing_leads_to_counts_for_nothing(tmp_path: Path) -> None:
    """The claim that is taken over is released between the look and the link."""
    from tzero.cache.claims_directory import Directory

    stale, mine = Mark("stale", "-").text, Mark("mine", "-").text
    board = Directory(str(tmp_path))

    class Late(Directory):
        def _create(self, path: str, mark: str) -> bool:
            assert board.swap("name", stale, "", 60)
            return super()._create(path, mark)

    assert board.swap("name", "", stale, 60)
    assert not Late(str(tmp_path)).swap("name", stale, mine, 60)
    assert board.read("name") == ""
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert board.swap("name", "", mine, 60)


def test_without_links_marks_are_created_exclusively(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    from tzero import ownership
    from tzero.cache.claims_directory import Directory

    def no_links(source: str, target: str) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_links)
    one, other = Directory(str(tmp_path)), Directory(str(tmp_path))
    first, second = Mark("a1", "-").text, Mark("b2", "-").text
    assert one.swap("name", "", first, 60)
    assert not other.swap("name", "", second, 60)
    assert other.swap("name", first, second, 60) and one.read("name") == second
    assert other.swap("name", second, "", 60) and one.read("name") == ""

    write, written = ownership.write_all, []

    def full(file: int, data: bytes) -> None:
        written.append(data)
        if len(written) == 2:  # the first is a file of its own
            raise OSError(errno.ENOSPC, "the disk is full")
        write(file, data)

    monkeypatch.setattr(ownership, "write_all", full)
    with pytest.raises(OSError, match="the disk is full"):
        one.swap("name", "", first, 60)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


# -- a process that is silent ----------------------------------------------------------------------


def marked(claims: Claims, name: str, holder: str, beat: int = 0, seen: str = "") -> str:
    """Write the mark of another process."""
    text = Mark(name, holder, beat).text
    assert claims.board.swap(claims._prefix + digest_of(name), seen, text, LEASE)
    return text


def test_all_that_a_stopped_process_holds_is_taken_over_at_once(
    make: Callable[..., Claims], clock: Clock
) -> None:
    claims = make()
    marked(claims, "one", "elsewhere/7/99")
    marked(claims, "two", "elsewhere/7/99")
    marked(claims, "three", "elsewhere/8/99")
    assert claims.claim(digest_of("one")) is None
    clock.now += LEASE
    assert held(claims.claim(digest_of("one")))
    assert held(claims.claim(digest_of("two")))  # which is seen for the first time
    assert claims.claim(digest_of("three")) is None  # another process's


def test_a_process_that_was_stopped_for_a_while_is_waited_for_again(
    make: Callable[..., Claims], clock: Clock
) -> None:
    claims = make()
    for name in ("one", "two", "three", "four"):
        seen = marked(claims, name, "elsewhere/7/99")
        assert name in ("two", "three") or claims.claim(digest_of(name)) is None
    clock.now += LEASE - 1
    marked(claims, "four", "elsewhere/7/99", 1, seen)
    assert claims.claim(digest_of("four")) is None
    clock.now += 1
    assert held(claims.claim(digest_of("one")))  # this lease ended
    marked(claims, "four", "elsewhere/7/99", 2, Mark("four", "elsewhere/7/99", 1).text)
    assert claims.claim(digest_of("four")) is None  # and this is a sign of life
    assert claims.claim(digest_of("two")) is None
    clock.now += LEASE
    assert held(claims.claim(digest_of("two")))
    clock.now += LEASE  # long ago
    assert claims.claim(digest_of("three")) is None


def test_after_a_takeover_the_next_look_is_soon(make: Callable[..., Claims], clock: Clock) -> None:
    claims, other = make(), make()
    seen = marked(claims, "one", "elsewhere/7/99")
    assert claims.claim(digest_of("one")) is None
    clock.now += LEASE - 5
    assert claims.claim(digest_of("one")) is None
    late = claims.pause(digest_of("one"))
    renewed = marked(other, "one", "elsewhere/7/99", 1, seen)
    assert claims.claim(digest_of("one")) is None
    assert claims.pause(digest_of("one")) == late  # the same owner
    taken = Mark("another", "elsewhere/8/99").text
    assert other.board.swap(other._prefix + digest_of("one"), renewed, taken, LEASE)
    assert claims.claim(digest_of("one")) is None
    assert claims.pause(digest_of("one")) < late / 2
