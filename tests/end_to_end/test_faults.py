"""Every call to the file system that a build or a load makes may fail: one clear error, and the old bundle is whole."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import aot_runtime
import pytest
from aot_runtime.errors import AotError
from faults import Faults, injected
from observing import run_python
from places import SAMPLES

from aot.cli.main import main

Build = Callable[[str, Path], int]
CODES = (errno.EIO, errno.ENOSPC)


def contents(bundle: Path) -> dict[str, bytes]:
    return {path.relative_to(bundle).as_posix(): path.read_bytes() for path in bundle.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder whose calls are counted: bundles, the cache, and temporary files."""
    root = tmp_path_factory.mktemp("faults")
    (root / "tmp").mkdir()
    return root


def command_line(arch: str, out: Path) -> list[str]:
    kernels = ["--kernels", str(SAMPLES / "fill.py"), "--kernel", "fill_epilogue", "--arch", arch, "--name", "small"]
    return ["build", *kernels, "--out", str(out), "--no-archives", "--cudart", "shared", "--jobs", "1", "--add"]


@pytest.fixture(scope="module")
def build(root: Path) -> Iterator[Build]:
    def run(arch: str, out: Path) -> int:
        return main(command_line(arch, out))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AOT_CACHE", str(root / "cache"))
        patch.setattr(tempfile, "tempdir", str(root / "tmp"))
        yield run


@pytest.fixture(scope="module")
def bundles(root: Path, build: Build) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """A bundle, and the same after a second architecture was added; all that this takes is in the cache."""
    assert build("sm80", root / "old") == 0
    shutil.copytree(root / "old", root / "out")
    assert build("sm90", root / "out") == 0
    return contents(root / "old"), contents(root / "out")


def start_over(root: Path) -> Path:
    shutil.rmtree(root / "out")
    return Path(shutil.copytree(root / "old", root / "out"))


def test_a_build_whose_nth_call_fails_leaves_the_old_bundle_or_the_new_one_and_says_one_thing(
    root: Path,
    build: Build,
    bundles: tuple[dict[str, bytes], dict[str, bytes]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    old, new = bundles
    with injected(Faults(root, None)) as counted:
        assert build("sm90", start_over(root)) == 0
    assert contents(root / "out") == new
    assert counted.count > 100
    seen: Counter[str] = Counter()
    capsys.readouterr()
    for number in range(1, counted.count + 1):
        out, code = start_over(root), CODES[number % 2]
        with injected(Faults(root, number, code)) as faults:
            result = build("sm90", out)
        said = capsys.readouterr().err
        now = contents(out)
        what = f"call {number}, {faults.failed}: {said}"
        if result == 0:  # what failed was not needed: the cache, or a directory that was to be flushed
            assert now == new, what
        else:
            assert now == old, what
            assert said.count("error: ") == 1, what
            assert os.strerror(code) in said, what
        assert "Traceback" not in said, what
        left = [*root.glob(".out.*.staging"), *(root / "tmp").glob("aot-build-*")]
        assert not left or faults.failed.startswith(f"open {left[0]}"), what  # the next build removes it
        seen["built" if result == 0 else "refused"] += 1
    assert min(seen["built"], seen["refused"]) > 20


WORKER = """
    import errno, json, os, sys, threading
    from pathlib import Path
    from aot.compile.messages import Options
    from aot.compile.worker import main
    from aot.records import encode
    from faults import Faults, injected

    source, folder, said = sys.argv[1], Path(sys.argv[2]), os.fdopen(os.dup(1), "w")
    (request_read, request_write), (answer_read, answer_write) = os.pipe(), os.pipe()
    requests, answers = os.fdopen(request_write, "w"), os.fdopen(answer_read)

    def ask(do, **request):
        requests.write(json.dumps({"do": do, "log": str(folder / "log"), **request}) + chr(10))
        requests.flush()
        while "reading" in (answer := json.loads(answers.readline())):
            pass
        return answer

    def drive():
        ask("open", source=source, arch="sm_90a", options=encode(Options()), skip=[])
        variants = ask("expand", kernel="fill_epilogue", arch="sm_90a")["answer"]["variants"]
        launcher = folder / "launcher.ll"
        compiling = {"variant": variants[0]["table"]["name"], "launcher": str(launcher)}
        assert "answer" in ask("compile", **compiling)
        whole, number, failed = launcher.read_bytes(), 0, "anything"
        while failed:
            number += 1
            with injected(Faults(folder, number)) as faults:
                answer = ask("compile", **compiling)
            failed = faults.failed
            if "answer" in answer:
                assert launcher.read_bytes() == whole, failed
            else:
                message = answer["failure"]["message"].replace(chr(10), " ")  # it may quote a line
                print(failed.split()[0], message, file=said, flush=True)
        os._exit(0)

    threading.Thread(target=drive, daemon=True).start()
    sys.argv = [sys.argv[0], str(request_read), str(answer_write)]
    main()
"""


def test_a_worker_whose_nth_call_fails_answers_why(tmp_path: Path) -> None:
    """Of what the process does that compiles: its log, its folder, the launcher."""
    lines = run_python(WORKER, SAMPLES / "fill.py", tmp_path).splitlines()
    assert {line.split()[0] for line in lines} == {"open", "mkdir", "write"}
    for line in lines:
        assert f"OSError: [Errno {errno.EIO}] {os.strerror(errno.EIO)}: '{tmp_path}" in line


KILLED = """
import os, shutil, signal, sys, tempfile
from pathlib import Path
from faults import Kills, injected
from aot.cli.main import main

root, out, command = Path(sys.argv[1]), Path(sys.argv[1]) / "out", sys.argv[2:]
tempfile.tempdir = str(root / "tmp")

def contents(bundle):
    return {path.relative_to(bundle).as_posix(): path.read_bytes() for path in bundle.rglob("*") if path.is_file()}

def start_over():
    shutil.rmtree(out)
    shutil.copytree(root / "old", out)

start_over()
with injected(Kills(root, None)) as counted:
    assert main(command) == 0
old, new = contents(root / "old"), contents(out)
seen = {"old": 0, "new": 0}
number = 1
while True:
    start_over()
    child = os.fork()
    if child == 0:
        with injected(Kills(root, number)):
            os._exit(main(command))
    _, status = os.waitpid(child, 0)
    now = contents(out)
    if os.WIFEXITED(status):  # it makes fewer calls than that
        assert os.WEXITSTATUS(status) == 0 and now == new and number > counted.count, (number, status)
        break
    assert os.WTERMSIG(status) == signal.SIGKILL, (number, status)
    assert now in (old, new), number
    seen["old" if now == old else "new"] += 1
    number += 4 if number < counted.count else 1
assert main(command) == 0
assert contents(out) == new
print(counted.count, seen["old"], seen["new"])
"""


def test_a_build_killed_at_its_nth_call_leaves_the_old_bundle_or_the_new_one_and_the_next_removes_what_is_left(
    root: Path, bundles: object
) -> None:
    """Every fourth call and each of the last, in a process that forks for each: starting one takes longer than the build."""
    said = run_python(KILLED, root, *command_line("sm90", root / "out"), variables={"AOT_CACHE": str(root / "cache")})
    calls, old, new = map(int, said.splitlines()[-1].split())
    assert calls > 100 and old > 20 and new >= 1
    assert list(root.glob(".out.*")) == [] == list((root / "tmp").glob("aot-*"))


def test_a_load_whose_nth_call_fails_says_so_and_the_next_one_succeeds(
    root: Path, bundles: object, cuda: object
) -> None:
    def load(name: str, fail_at: int | None, code: int = errno.EIO) -> Faults:
        copy = root / name
        if not copy.exists():
            shutil.copytree(root / "old", copy)
        with injected(Faults(copy, fail_at, code)) as faults:
            aot_runtime.load(copy)
        return faults

    calls = load("loaded", None).count
    assert calls > 3
    for number in range(1, calls + 1):
        with pytest.raises(AotError) as caught:
            load(f"loaded-{number}", number, errno.EIO)
        assert os.strerror(errno.EIO) in caught.value.message
        load(f"loaded-{number}", None)
