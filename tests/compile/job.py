"""The ranks of a job, each with a disk of its own, as if they were on different machines.

``python -m torch.distributed.run ... job.py FOLDER KERNELS``. Each rank writes what it did to
``FOLDER/RANK.json``. If ``FOLDER/kill`` exists, the first rank that begins to compile ends, or is
stopped until the others have reported, as the file says.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

rank = int(os.environ["RANK"])
folder, count = Path(sys.argv[1]), int(sys.argv[2])
for name in ("TZERO", "TRITON"):
    os.environ[f"{name}_CACHE_DIR"] = str(folder / f"rank {rank}" / name)

import torch  # noqa: E402  after the variables
import torch.distributed as dist  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import tzero  # noqa: E402
from tzero.events import Event, observe  # noqa: E402

torch.set_num_threads(1)


@tzero.jit
def add_kernel(x, out, n, ADDED: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, ADDED + tl.load(x + at, mask=at < n), mask=at < n)


@tzero.kernel(configs=[tzero.Config(BLOCK=size) for size in (64, 256)])
def add_one(x, config):
    out = torch.empty_like(x)
    add_kernel[(triton.cdiv(x.numel(), config.BLOCK),)](x, out, x.numel(), 1, config.BLOCK)
    return out


def lost_in_the_middle() -> None:
    """End or stop this process while it holds a claim, if it is the first to find the file."""
    from tzero.compile.claiming import Claiming

    begin = Claiming.begin

    def begin_and_end(self, job, has_place=True):
        begun = begin(self, job, has_place)
        if begun:
            try:
                (folder / "kill").rename(folder / "found")
            except FileNotFoundError:
                return begun
            how = (folder / "found").read_text()
            lost = [os.getpid(), time.time(), how, job.request.digest]
            (folder / "lost").write_text(json.dumps(lost))
            if how == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                os._exit(0)
        return begun

    Claiming.begin = begin_and_end


if (folder / "kill").exists():
    lost_in_the_middle()
if count > 4:  # many begin at the same time
    dist.init_process_group("gloo")
    dist.barrier()
compiled: list[str] = []
seconds: list[float] = []
times: list[float] = []


def note(event: Event) -> None:
    if event.kind == "compile" and event.facts["layer"] == "compiled":
        compiled.append(str(event.facts["digest"]))
        seconds.append(float(event.facts["seconds"]))
        times.append(time.time())


start = time.time()
x = torch.ones(1000)
with observe(note):
    specs = [(add_kernel, x, x, 1000, k, 128) for k in range(count)]
    tzero.precompile(specs, shard=True)
    ready = time.time()
    assert add_one(x).sum() == 2000
choice = add_one.bind(x).choice
report = {
    "pid": os.getpid(),
    "seconds": seconds,
    "times": times,
    "compiled": compiled,
    "hits": dict(tzero.compile.service().stats().hits),
    "how": choice.how,
    "block": choice.variant.BLOCK,
    "precompile": [start, ready],
    "end": time.time(),
}
(folder / f"{rank}.json").write_text(json.dumps(report))
if (folder / "lost").exists():
    pid, _, how, _ = json.loads((folder / "lost").read_text())
    if how == "stop" and len(list(folder.glob("[0-9]*.json"))) == int(os.environ["WORLD_SIZE"]) - 1:
        os.kill(pid, signal.SIGCONT)
