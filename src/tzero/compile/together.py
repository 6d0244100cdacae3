"""Jobs that one thread submits together, started in an order that is made of their digests.

Enters: jobs, in the order in which they were submitted. Leaves: the same, in another order, at the
end of the block. It must not know how a job is started.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tzero.compile.pending import Job

__all__ = ["is_held", "together"]


class _Here(threading.local):
    held: list[tuple[Job, Callable[[Job], None]]] | None = None


_here = _Here()


@contextmanager
def together(order: Callable[[str], int]) -> Iterator[None]:
    """Start what this thread submits in the block at its end, in an order of digests. What the
    caller compiles itself is not held back.

    ::

        with together(lambda digest: int(digest, 16)):
            futures = [service.submit(request) for request in requests]
    """
    outer, _here.held = _here.held, []
    try:
        yield
    finally:
        held, _here.held = _here.held, outer
        for job, start in sorted(held, key=lambda each: order(each[0].request.digest)):
            start(job)


def is_held(job: Job, start: Callable[[Job], None]) -> bool:
    """Hold a job back, to be started at the end of this thread's block; False if there is none.

    >>> is_held(None, print)
    False
    """
    if _here.held is None:
        return False
    _here.held.append((job, start))
    return True
