"""A plugin of pytest for ``served_tests.py --processes``: tests are collected once, and several processes share them.

The library is imported once. Then processes are forked, which is possible as long as nothing has touched CUDA. They take
a few tests at a time, whichever are next.
"""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
from _selected_tests import PROCESSES, add_results, results

# In a row: such tests share what a process has loaded, or torch.compile has made.
IN_A_ROW = 8


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Iterator[None]:
    """Files of tests ask for the compute capability when they are imported. The answer must not touch CUDA."""
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("torch") is not None:
            import torch

            major, minor = capability()
            os.environ.setdefault("CUTE_DSL_ARCH", f"sm_{major}{minor}{'a' if major >= 9 else ''}")
            patch.setattr(torch.cuda, "get_device_capability", lambda device=None: (major, minor))
        yield


def capability() -> tuple[int, int]:
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    major, minor = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0].split(".")
    return int(major), int(minor)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    folder = Path(tempfile.mkdtemp())  # a TemporaryDirectory would be removed by the first process that ends
    processes = [_forked(session, folder) for _ in range(int(os.environ[PROCESSES]))]
    codes = [os.waitpid(process, 0)[1] for process in processes]
    for path in folder.glob("*.json"):
        add_results(json.loads(path.read_text()))
    shutil.rmtree(folder)
    if any(codes):
        raise RuntimeError("a process that ran tests ended early; its error is above")
    return True


def _forked(session: pytest.Session, folder: Path) -> int:
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        _run(session, folder)
        atexit._run_exitfuncs()  # one of them reports what was served
        sys.stdout.flush()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _run(session: pytest.Session, folder: Path) -> None:
    for first in range(0, len(session.items), IN_A_ROW):
        if _is_free(folder / str(first)):
            for item in session.items[first : first + IN_A_ROW]:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
    (folder / f"{os.getpid()}.json").write_text(json.dumps(results()))


def _is_free(path: Path) -> bool:
    """Whether nobody has taken the tests that a file stands for. They are taken now."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
