"""Rounds of forks while threads make first calls: the program that ``python -m fuzz.forks`` starts, several at once.

A round is a fresh process: it loads copies of a bundle, its threads make the first call of every kernel in an order of
their own, and meanwhile it forks. Each child makes all calls as well and ends. A child that fails, is ended by a signal
or does not end is told as a line of JSON.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from standin import Standin, address_of

CHILDREN = 6  # of a round
THREADS = 3
LONGEST = 60.0  # seconds until a child counts as hanging; it takes milliseconds


def calls(bundles: list[Any], tensors: dict[str, Any]) -> list[Callable[[], object]]:
    """A call of every kernel. Nothing runs yet, and no library is opened."""
    out, pair = tensors["f32"], (tensors["f16"], tensors["f16"])
    found: list[Callable[[], object]] = []
    for bundle in bundles:
        found += [
            lambda b=bundle: b.fill(out, 2.0),
            lambda b=bundle: b.fill(pair[0], 2.0),
            lambda b=bundle: b.fill_pair(pair, (1.0, 4)),
            lambda b=bundle: b.fill_optional(out),
            lambda b=bundle: b.fill_epilogue(out, epilogue="relu"),
            lambda b=bundle: b.fill_everywhere(out),
            lambda b=bundle: b.fill_pointer(address_of(out), 4, 0),
        ]
    return found


def call_all(found: list[Callable[[], object]], rng: random.Random) -> None:
    for call in rng.sample(found, len(found)):
        call()


def child(paths: list[str], found: list[Callable[[], object]], seed: int) -> None:
    """What a forked process does; every third one loads the bundles once more."""
    import aot_runtime

    rng = random.Random(seed)
    if rng.random() < 0.34:
        for path in paths:
            aot_runtime.load(path)
    call_all(found, rng)


def one_round(paths: list[str], tensors: dict[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    """The children that did not end as they should."""
    import aot_runtime

    rng = random.Random(seed)
    found = calls([aot_runtime.load(path) for path in paths], tensors)
    threads = [threading.Thread(target=call_all, args=(found, random.Random(seed + n))) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    started = {}
    for number in range(CHILDREN):
        for _ in range(rng.randrange(3000)):
            pass
        process = os.fork()
        if process == 0:
            end(child, paths, found, seed + number)
        started[process] = number
    for thread in threads:
        thread.join()
    for process, number in started.items():
        status = awaited(process)
        if status != 0:
            yield {"round": seed, "child": number, **told(process, status)}


def end(work: Callable[..., object], *arguments: object) -> None:
    """Do the work of a forked process, and end it: what the parent would do at exit is none of its business."""
    try:
        work(*arguments)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(3)
    os._exit(0)


def awaited(process: int) -> int | None:
    """How a child ended; None if it does not."""
    deadline = time.monotonic() + LONGEST
    while time.monotonic() < deadline:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    return None


def told(process: int, status: int | None) -> dict[str, Any]:
    if status is not None:
        return {"kind": "ended", "status": status}
    waits = _waits_for(process)
    os.kill(process, signal.SIGUSR1)  # it writes where its Python code is
    time.sleep(0.5)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return {"kind": "hangs", "waits_for": waits}


def _waits_for(process: int) -> str:
    """The library in whose memory the lock lies that a process waits for, if it can be told."""
    try:
        call = Path(f"/proc/{process}/syscall").read_text().split()
        address = int(call[1], 16)
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            start, stop = (int(part, 16) for part in line.split()[0].split("-"))
            if start <= address < stop:
                return f"system call {call[0]}, {line.split(maxsplit=5)[-1]}+{address - start:#x}"
        return f"system call {call[0]}"
    except (OSError, ValueError, IndexError):
        return "unknown"


def main() -> None:
    standin, crash, seed, forks, seconds, *paths = sys.argv[1:]
    cuda = Standin.load(Path(standin))
    cuda.reset(capabilities=[(9, 0)])
    cuda.set_recording(False)
    import aot_runtime  # noqa: F401  # before any fork

    tensors = {"f32": cuda.tensor((64,), "float32"), "f16": cuda.tensor((64,), "float16")}
    ctypes.CDLL(crash).show_crashes()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    until = time.monotonic() + float(seconds)
    done = 0
    for number in range(-(-int(forks) // CHILDREN)):
        if time.monotonic() > until:
            break
        process = os.fork()
        if process == 0:
            end(play, paths, tensors, int(seed) + 1000 * number)
        status = awaited(process)
        if status != 0:
            tell([{"round": int(seed) + 1000 * number, "child": None, **told(process, status)}])
        done += CHILDREN
    tell([{"forks": done}])


def play(paths: list[str], tensors: dict[str, Any], seed: int) -> None:
    tell(one_round(paths, tensors, seed))


def tell(found: Any) -> None:
    for one in found:
        print(json.dumps(one), flush=True)


if __name__ == "__main__":
    main()
