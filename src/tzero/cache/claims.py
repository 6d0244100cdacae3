"""Who makes what is missing: one process does, and the others wait for it, for a lease at most.

::

    claim ── free ───────────────── swap ──► a Lease: make it, put it into the cache, release
       ├──── theirs ── unchanged for a lease, or its process is gone ── swap ──► a Lease
       ├──── theirs ────────────────────────► None: ask again soon
       ├──── no mark, for a lease ─ swap ──► a Lease, and an event
       ├──── the cache has it meanwhile ────► FOUND
       └──── it failed there, too long, no swap or no reply ──► a Lease of nothing: make it alone

    Keeper ── every quarter of a lease ── swap (the same token, the next beat) ──► renewed, or lost

Enters: digests, and a `Board` on which processes see each other's marks. Leaves: leases. It must
not know what is made, nor where a board is.

A lease saves work; nothing rests on it. Two processes may believe that they have the same one, for
example because one was stopped meanwhile: the first result counts (`Disk.keep`, `Fleet.agree`).
Clocks of machines are never compared: a lease is over for a waiter that has itself seen the same
mark for that long. A mark has a random token, so no two claims are alike, and a beat, which the
owner counts up while it lives. Nothing else is a sign of life: not text that is no mark, however
often it changes, nor one new token after the other.
"""

from __future__ import annotations

import functools
import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, TypeVar

from tzero import locks
from tzero.cache.reaching import Reaching
from tzero.events import Event, emit

__all__ = ["FOUND", "Board", "Claims", "Lease", "Mark", "paused"]

_R = TypeVar("_R")

BEATS = 4
"""How often an owner renews within one lease."""

OWNERS = 2
"""For how many owners a process waits of which it has seen none renew: the one that it finds, and
one that took over."""

LONGEST = 1000
"""Characters of a mark, at most."""

POLLS = (0.01, 0.1, 500), (0.05, 1.0, 20)
"""How often a process asks again for what others have claimed, on this machine's disk, and
elsewhere: the shortest and the longest pause in seconds, and how often a second for all digests
together. The pause is an eighth of the time that was waited, within these limits."""


def paused(waited: float, waiting: int, is_local: bool) -> float:
    """Seconds until a process asks again for one of the digests that it is waiting for.

    >>> paused(0.0, 1, is_local=False), paused(100.0, 1, is_local=False)
    (0.05, 1.0)
    >>> paused(0.0, 40, is_local=False)
    2.0
    """
    shortest, longest, rate = POLLS[not is_local]
    return max(min(max(waited / 8, shortest), longest), waiting / rate)


class Board(Protocol):
    """Where marks are, by name. May raise anything, and take any time."""

    shown: str
    """Where it is, for messages; without secrets."""

    def read(self, name: str) -> str:
        """Return the mark of a name; empty: none."""

    def swap(self, name: str, seen: str, mark: str, seconds: float) -> bool:
        """Replace the mark that was seen by another, atomically; return False if another is there
        now. Empty marks mean none; any other new mark must be one that was never there. The board
        may drop the new mark after that many seconds."""


class Mark(NamedTuple):
    """What an owner writes on a board. Renewing changes the second line only, and not its length.

    >>> mark = Mark("ab12", "a machine/4711/99", 7)
    >>> mark.text
    'ab12 a machine/4711/99\\n00000007 held  '
    >>> Mark.parse(mark.text) == mark, Mark.parse("garbage") is None
    (True, True)
    """

    token: str
    holder: str
    """The machine and the process, so that others there see when it is gone."""
    beat: int = 0
    has_failed: bool = False

    @property
    def text(self) -> str:
        """The mark as text."""
        state = "failed" if self.has_failed else "held  "
        return f"{self.token} {self.holder}\n{self.beat % 10**8:08} {state}"

    @staticmethod
    def parse(text: str) -> Mark | None:
        """The mark of a text; None for any other text."""
        if len(text) > LONGEST:
            return None
        first, _, second = text.partition("\n")
        token, _, holder = first.partition(" ")
        beat, _, state = second.partition(" ")
        is_beat = len(beat) == 8 and beat.isascii() and beat.isdecimal()
        if not (is_beat and state in ("held  ", "failed") and token):
            return None
        return Mark(token, holder, int(beat), state == "failed")


class Lease:
    """The right to make something, renewed until `release`.

    ::

        lease = claims.claim(digest)
        lease.is_held, lease.is_lost
        lease.release()
    """

    def __init__(
        self, claims: Claims, digest: str, mark: Mark | None, limit: float = float("inf")
    ) -> None:
        self._claims, self._digest = claims, digest
        self._until = claims.clock() + limit  # nobody waits for longer
        self._lock = locks.lock()  # protects `_mark`, and orders what is done on the board
        self._mark = mark
        self.is_held = mark is not None
        """False: nothing is held, and others may make the same."""
        self.is_local = claims.is_local
        """Whether it is among processes that share a disk."""
        self.is_lost = False
        """Whether another process took it over. What it makes then counts."""
        self.due = claims.clock() + claims.seconds / BEATS
        """When it is renewed."""

    def now(self) -> float:
        """The time by the clock that `due` is of."""
        return self._claims.clock()

    def renew(self) -> None:
        """Count the beat up, or find that the lease is lost; not after its limit."""
        now = self._claims.clock()
        if now > self._until:
            keeper.remove(self)
            return
        self.due = now + self._claims.seconds / BEATS
        with self._lock:
            mark = self._mark
            if mark is None:
                return
            try:
                self._mark = self._claims.renewed(self._digest, mark)
            except Exception as error:  # the lease may end; what is made is still right
                self._claims.failed(error)
                return
            self.is_lost = self._mark is None
        if self.is_lost:
            keeper.remove(self)

    def release(self, has_failed: bool = False) -> None:
        """Let others have it. If it ``has_failed``, those who wait try it at the same time: each
        gets its own error, and none waits for all others. Later calls do nothing."""
        keeper.remove(self)
        with self._lock:
            mark, self._mark = self._mark, None
            if mark is None:
                return
            after = mark._replace(has_failed=True) if has_failed else None
            self._claims.give_up(self._digest, mark, after)


FOUND: Final = "found"
"""`Claims.claim` returns it if the cache has got what is asked for."""


class _Watched(NamedTuple):
    """What a waiter knows of who has what it waits for."""

    begun: float
    """Since when it waits."""
    since: float
    """When it saw the latest sign of life."""
    owned: float
    """Since when it sees this owner."""
    mark: Mark | None = None
    """The latest mark that was one."""
    owners: int = 0
    """How many owners it has seen since one of them renewed."""
    is_refused: bool = False
    """Whether the board has refused a swap since the latest sign of life."""


class Claims:
    """Claims on one board.

    >>> import tempfile
    >>> from tzero.cache.claims_directory import Directory
    >>> root = tempfile.TemporaryDirectory()
    >>> mine, theirs = (Claims(Directory(root.name), 10.0) for _ in range(2))
    >>> lease = mine.claim("0" * 64)
    >>> lease.is_held, theirs.claim("0" * 64)
    (True, None)
    >>> lease.release()
    >>> theirs.claim("0" * 64).is_held
    True
    >>> root.cleanup()
    """

    def __init__(
        self,
        board: Board,
        seconds: float,
        *,
        prefix: str = "",
        reaching: Reaching | None = None,
        why: Callable[[Exception], str] = lambda error: f"{type(error).__name__}: {error}",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.board = board
        self.seconds = seconds
        """The length of a lease."""
        self.clock = clock
        self._prefix = prefix
        self._reaching = reaching
        self._why = why
        self._lock = locks.lock()  # protects the three below
        self._watched: dict[str, _Watched] = {}  # by digest
        self._silent: dict[str, float] = {}  # processes whose lease ended, and when
        self._reported = False

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine are on the board."""
        return self._reaching is None

    def claim(
        self,
        digest: str,
        limit: float = float("inf"),
        look: Callable[[], bool] = lambda: False,
    ) -> Lease | str | None:
        """Claim a digest: return a lease, `FOUND`, or None if another process has it. A caller that
        gets None asks again, after `pause` seconds; it waits for ``limit`` seconds in all. ``look``
        is called before a caller that has waited takes a claim, and says whether it is found."""
        verdict, seen = self._look(digest, limit)
        if verdict == "wait":
            return None
        if self.waited(digest) and look():
            self.forget(digest)
            return FOUND
        mark = Mark(secrets.token_hex(8), _holder())
        try:
            if verdict == "take" and not self._swapped(digest, seen, mark.text):
                self._refused(digest, seen)
                return None
        except Exception as error:  # of any board: a claim never fails a compile
            self.failed(error)
            verdict = "alone"
        self.forget(digest)
        lease = Lease(self, digest, mark if verdict == "take" else None, limit)
        if lease.is_held:
            keeper.add(lease)
        return lease

    def _look(self, digest: str, limit: float) -> tuple[str, str]:
        """What to do about a digest, and the mark that is there."""
        try:
            seen = self.reached(lambda: self.board.read(self._prefix + digest))
            return self._verdict(digest, seen, limit), seen
        except Exception as error:  # as in `claim`
            self.failed(error)
            return "alone", ""

    def is_claimed(self, digest: str) -> bool:
        """Whether a process has claimed a digest; False if that is not known."""
        try:
            return bool(self.reached(lambda: self.board.read(self._prefix + digest)))
        except Exception as error:  # as in `claim`
            self.failed(error)
            return False

    def pause(self, digest: str) -> float:
        """Seconds after which a caller that waits for a digest asks again."""
        watched = self._watched.get(digest)
        if watched is None:
            return paused(0.0, len(self._watched), self.is_local)
        # What another takes over may soon be there, however long this process has waited before.
        usual = paused(self.clock() - watched.owned, len(self._watched), self.is_local)
        left = watched.since + self.seconds - self.clock()  # look again when the lease ends
        return min(usual, max(left, POLLS[not self.is_local][0]))

    def waited(self, digest: str) -> float:
        """Seconds for which this process has waited for a digest; 0 if it has not."""
        watched = self._watched.get(digest)
        return 0.0 if watched is None else max(self.clock() - watched.begun, 1e-9)

    def forget(self, digest: str) -> None:
        """Wait no longer for a digest."""
        with self._lock:
            self._watched.pop(digest, None)

    def _verdict(self, digest: str, seen: str, limit: float) -> str:
        """What follows from a mark: ``take`` it over, ``wait``, or go on ``alone``."""
        mark, before = Mark.parse(seen), self._watched.get(digest)
        is_free = not seen or (mark is not None and mark.has_failed)
        if is_free and before is None:
            return "take"
        if is_free and mark is not None and _is_same(mark, before):
            return "alone"
        watched = self._see(digest, mark)
        now = self.clock()
        if now - watched.begun >= limit:
            reason = f"not waited for any longer: another process has it for {limit:g} s and more"
            self._emit(digest, reason)
            return "alone"
        if now - watched.since >= self.seconds:
            return self._over(digest, seen, mark, watched)
        if is_free or (mark and (_is_gone(mark.holder) or self._is_silent(mark.holder))):
            return "take"
        return "wait"

    def _over(self, digest: str, seen: str, mark: Mark | None, watched: _Watched) -> str:
        """The same once there was no sign of life for a lease."""
        waited = f"after {self.seconds:g} s without a sign of life"
        if watched.is_refused:
            self._emit(digest, f"not claimed: {self.board.shown} takes no other mark, {waited}")
            return "alone"
        if mark is not None and mark.holder != "-":
            self._silent[mark.holder] = self.clock()
        if mark is None and seen:
            what = f"what {self.board.shown} has is no mark ({seen[:40]!r})"
            self._emit(digest, f"the claim is taken over {waited}: {what}")
        return "take"

    def _is_silent(self, holder: str) -> bool:
        """Whether a lease of a process has ended within a lease from now, and it has renewed none
        since: then it renews no other one either."""
        return self.clock() - self._silent.get(holder, -self.seconds) < self.seconds

    def _see(self, digest: str, mark: Mark | None) -> _Watched:
        """Note what is on the board now."""
        with self._lock:
            now = self.clock()
            seen = self._watched.get(digest) or _Watched(now, now, now)
            if mark is not None and not _is_same(mark, seen):
                seen = seen._replace(mark=mark, owned=now, owners=seen.owners + 1)
                if seen.owners <= OWNERS:
                    seen = seen._replace(since=now, is_refused=False)
            elif mark is not None and seen.mark is not None and mark.beat > seen.mark.beat:
                seen = seen._replace(mark=mark, since=now, owners=1, is_refused=False)
                self._silent.pop(mark.holder, None)
            self._watched[digest] = seen
            return seen

    def _refused(self, digest: str, seen: str) -> None:
        """Note that the board has refused a swap: somebody was faster, or it refuses them all."""
        watched = self._see(digest, Mark.parse(seen))
        with self._lock:
            self._watched[digest] = watched._replace(is_refused=True)

    def _swapped(self, digest: str, seen: str, mark: str) -> bool:
        name = self._prefix + digest
        return self.reached(lambda: self.board.swap(name, seen, mark, self.seconds))

    def renewed(self, digest: str, mark: Mark) -> Mark | None:
        """Count the beat of a mark up; return the new mark, or None if another is there."""
        after = mark._replace(beat=mark.beat + 1)
        if self._swapped(digest, mark.text, after.text):
            return after
        # A swap that came too late for its caller may have been made.
        there = Mark.parse(self.reached(lambda: self.board.read(self._prefix + digest)))
        return there if there is not None and there.token == mark.token else None

    def give_up(self, digest: str, mark: Mark, after: Mark | None) -> None:
        """Remove a mark, or replace it, if it is still there."""
        try:
            self._swapped(digest, mark.text, "" if after is None else after.text)
        except Exception as error:  # the others wait until the lease ends
            self.failed(error)

    def reached(self, call: Callable[[], _R]) -> _R:
        """Make a call of the board, with limited patience unless it is local."""
        if self._reaching is None:
            return call()
        if not self._reaching.may_try():
            raise _BackingOff
        result = self._reaching.call(call)
        self._reaching.worked()
        return result

    def failed(self, error: Exception) -> None:
        """Report that a board does not work, once until it does again."""
        if isinstance(error, _BackingOff):
            return
        if self._reaching is not None:
            delay = self._reaching.failed()
            after = "" if delay is None else f" for {delay:g} s, and longer if it fails again"
            is_news = delay is not None
        else:
            with self._lock:
                is_news, self._reported, after = not self._reported, True, ""
        if is_news:
            reason = f"claims at {self.board.shown} are not used{after}: {self._why(error)}. "
            self._emit("claims", reason + "Each process compiles what it needs.")

    def _emit(self, subject: str, reason: str) -> None:
        emit(Event("cache", subject[:12], reason, {"layer": "claims", "board": self.board.shown}))


def _is_same(mark: Mark, watched: _Watched | None) -> bool:
    """Whether a mark is of the owner that a waiter sees already."""
    return watched is not None and watched.mark is not None and watched.mark.token == mark.token


class _BackingOff(Exception):
    """The board failed a short time ago."""


class _Keeper:
    """Renews the leases of this process, on a thread that runs while there are any."""

    def __init__(self) -> None:
        self._changed = locks.condition()  # protects the two below
        self._leases: set[Lease] = set()
        self._is_running = False

    def add(self, lease: Lease) -> None:
        with self._changed:
            self._leases.add(lease)
            self._changed.notify_all()
            if not self._is_running:
                # At exit no thread can be started; the lease then ends by itself.
                with suppress(RuntimeError):
                    threading.Thread(target=self._work, name="tzero-leases", daemon=True).start()
                    self._is_running = True

    def remove(self, lease: Lease) -> None:
        with self._changed:
            self._leases.discard(lease)
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._leases:
                    self._is_running = False
                    return
                lease = min(self._leases, key=lambda each: each.due)
                left = lease.due - lease.now()
                if left > 0:
                    self._changed.wait(left)
                    continue
            lease.renew()

    def reset(self) -> None:
        """In a forked child: the leases are the parent's."""
        self._leases = set()
        self._is_running = False


keeper = _Keeper()
locks.after_fork(keeper.reset)


# -- the process that holds a claim ----------------------------------------------------------------


def _holder() -> str:
    """The machine, the process id and the start of this process; empty where that is not known."""
    pid = os.getpid()
    started = _started(pid)
    return f"{_machine()}/{pid}/{started}" if started and _machine() else "-"


def _is_gone(holder: str) -> bool:
    """Whether a holder is a process of this machine that has ended. False if that is not known."""
    machine, _, process = holder.partition("/")
    pid, _, started = process.partition("/")
    is_number = pid.isascii() and pid.isdecimal() and len(pid) <= 10
    if not (machine and machine == _machine() and is_number):
        return False
    return _started(int(pid)) != started


@functools.cache
def _machine() -> str:
    """The boot of this machine, and the namespace of process ids; empty where there is no /proc."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot}:{os.readlink('/proc/self/ns/pid')}".replace("/", "").replace(" ", "")
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process started, in ticks since the boot; empty if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
