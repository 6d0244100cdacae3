"""Boards for claims, each as several processes would have it: a directory, c10d stores, redis."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.cache.conftest import start_redis
from tzero.cache import c10d
from tzero.cache.claims import Board
from tzero.cache.claims_directory import Directory
from tzero.cache.claims_redis import Redis

KINDS = ("directory", "TCPStore", "FileStore", "redis")

Make = Callable[[], Board]
"""Makes another view of the same board, as another process has one."""


@contextmanager
def board(kind: str, folder: Path) -> Iterator[Make]:
    with ExitStack() as stack:
        yield _maker(kind, folder, stack)


def _maker(kind: str, folder: Path, stack: ExitStack) -> Make:
    if kind == "directory":
        return lambda: Directory(str(folder / "claims"))
    if kind == "redis":
        redis = start_redis(folder)
        stack.callback(redis.stop)
        return lambda: Redis(redis.url)
    import torch.distributed as dist

    if kind == "FileStore":
        made = [dist.FileStore(str(folder / "store"), -1) for _ in range(3)]
    else:
        seconds = datetime.timedelta(seconds=60)
        server = dist.TCPStore("127.0.0.1", 0, None, True, seconds, wait_for_workers=False)
        made = [server, server, server]
    views = itertools.cycle(c10d.Connection(c10d.url_of(each)) for each in made)
    return lambda: c10d.Marks(next(views))
