"""A worker that is started ahead compiles; if it is not needed or cannot read the source, nobody hears of it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from aot_runtime.arch import Arch

from aot.compile.messages import Declared
from aot.errors import BuildError, Failure
from aot.pipeline.executing import workers as module
from aot.pipeline.executing.executor import Session
from aot.pipeline.executing.workers import Workers
from aot.pipeline.settings import Settings

SM80, SM90 = Arch.parse("sm_80"), Arch.parse("sm_90a")


class FakeWorker:
    declared = Declared((), ())

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[FakeWorker]:
    found: list[FakeWorker] = []

    def open_source(session: Session, arch: Arch | None, log: Path) -> tuple[FakeWorker, dict[str, Failure]]:
        found.append(FakeWorker())
        return found[-1], {}

    monkeypatch.setattr(module, "open_source", open_source)
    return found


def made(tmp_path: Path, archs: str = "sm_90a", *, ahead: bool = False, **settings: Any) -> Workers:
    return Workers(Settings("kernels", (archs,), **{"jobs": 2, **settings}), tmp_path, ahead=ahead)


def test_declarations_are_read_by_a_worker_that_compiles_if_an_architecture_is_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[Arch | None] = []

    def open_source(session: Session, arch: Arch | None, log: Path) -> tuple[FakeWorker, dict[str, Failure]]:
        started.append(arch)
        return FakeWorker(), {}

    monkeypatch.setattr(module, "open_source", open_source)
    with made(tmp_path, "all,sm90,sm80") as workers:
        workers.declared()
        kept = workers.of(SM90)
        assert started == [SM90]
        assert not kept.closed.is_set()
    with made(tmp_path, "all") as workers:
        workers.declared()
        assert workers.release() == {}
    assert started == [SM90, None]


@pytest.mark.parametrize(
    ("settings", "count"),
    [({}, 2), ({"jobs": 1}, 1), ({"memory": 1 << 33}, 1), ({"archs": "all"}, 1), ({"ahead": False}, 1)],
)
def test_a_second_one_starts_with_the_first_if_it_will_be_needed_and_there_is_room(
    opened: list[FakeWorker], tmp_path: Path, settings: dict[str, Any], count: int
) -> None:
    with made(tmp_path, **{"ahead": True, **settings}) as workers:
        workers.declared()
        if workers._ahead is not None:
            workers._ahead._thread.join()
    assert len(opened) == count


def test_one_that_was_started_ahead_is_taken_once(opened: list[FakeWorker], tmp_path: Path) -> None:
    with made(tmp_path) as workers:
        workers._start_ahead(SM90)
        taken = [workers.another(SM80), workers.another(SM90), workers.another(SM90)]
    assert taken == [opened[1], opened[0], opened[2]]
    assert not opened[0].closed.is_set(), "it belongs to whoever took it"


def test_one_that_is_not_needed_is_closed(
    opened: list[FakeWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with made(tmp_path) as workers:
        workers._start_ahead(SM90)
        workers._ahead._thread.join()
    assert opened[0].closed.is_set()
    go_on, quick = threading.Event(), module.open_source
    monkeypatch.setattr(module, "open_source", lambda *arguments: go_on.wait(10) and quick(*arguments))
    with made(tmp_path) as workers:
        workers._start_ahead(SM90)
    go_on.set()
    workers._ahead._thread.join()
    assert opened[1].closed.is_set(), "it had not started yet"


def test_one_that_cannot_read_all_files_makes_room_for_one_that_tells_why(
    opened: list[FakeWorker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, quick = FakeWorker(), module.open_source
    failures = {"kernels/bad.py": Failure("", "reading `kernels/bad.py`: the process was ended by SIGSEGV")}
    for outcome in ((broken, failures), BuildError("no kernel could be read")):

        def open_ahead(*arguments: object, outcome: object = outcome) -> object:
            monkeypatch.setattr(module, "open_source", quick)
            if isinstance(outcome, BuildError):
                raise outcome
            return outcome

        monkeypatch.setattr(module, "open_source", open_ahead)
        with made(tmp_path) as workers:
            workers._start_ahead(SM90)
            assert workers.another(SM90) is opened[-1]
            assert workers.take_failures() == ()
    assert broken.closed.is_set()
