"""Builds from the cache: only what changed is compiled, bytes are those of a build without one, damage is mended."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from written import WRITE

from aot.bundle.verifying.verify import verify
from aot.cache.check import Findings, check
from aot.cache.store import Store
from aot.compile.messages import Compiled, Options
from aot.compile.process import Worker
from aot.errors import Failure
from aot.hosts import Host
from aot.pipeline.build import build
from aot.pipeline.events import Progress
from aot.pipeline.executing.executor import CompileJob
from aot.pipeline.plan import read_plan
from aot.pipeline.settings import BuildResult, Settings

Run = Callable[..., tuple[BuildResult, list[str]]]
ReadOnly = Callable[[Path], None]
ALL = ["first__f16", "first__f32", "second__f16", "second__f32"]

KERNEL = (
    WRITE.replace("VALUE", "1")
    + """
@aot.kernel(parameters=(aot.Out("out", shape="out.shape", dtype="out.dtype"),), archs=("sm_80", "sm_90a"),
            axes={"dtype": ("f16", "f32")}, variant_budget=1)
def NAME(target, dtype):
    return aot.Spec(launch, {"out": aot.Tensor(dtype, ("n",)), "stream": aot.Stream()})
"""
)


class Seen(Progress):
    """What was compiled, and what was warned of."""

    def __init__(self) -> None:
        self.variants: list[str] = []
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def compiled(self, job: CompileJob, outcome: Compiled | Failure) -> None:
        assert isinstance(outcome, Compiled), outcome
        self.variants.append(job.variant)


def contents(bundle: Path) -> dict[str, bytes]:
    return {path.relative_to(bundle).as_posix(): path.read_bytes() for path in bundle.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A folder with kernels, the bundle built from them, and the cache of that build."""
    folder = tmp_path_factory.mktemp("first")
    (folder / "kernels").mkdir()
    for name in ("first", "second"):
        (folder / "kernels" / f"{name}.py").write_text(KERNEL.replace("NAME", name))
    seen = Seen()
    assert _build(folder, cache, seen)[1] == ALL
    over = [f"{name} has 2 variants to compile for sm_90a, and a budget of 1" for name in ("first", "second")]
    assert [warning.partition(":")[0] for warning in seen.warnings] == over
    return folder


def _build(folder: Path, cache: Path, seen: Seen | None = None, **changes: object) -> tuple[BuildResult, list[str]]:
    settings: dict[str, object] = {
        "kernels": str(folder / "kernels"), "archs": ("sm_90a",), "out": folder / "out", "name": "bundle", "jobs": 1,
        "cache": cache, "artifacts": folder / "cache",
    }  # fmt: skip
    seen = seen or Seen()
    result = build(Settings(**{**settings, **changes}), seen)  # type: ignore[arg-type]
    return result, sorted(seen.variants)


@pytest.fixture
def folder(first: Path, tmp_path: Path) -> Path:
    """A copy of it all, at another place: keys do not depend on the place."""
    shutil.copytree(first, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def run(folder: Path, cache: Path) -> Run:
    """Build again; what was compiled comes along."""
    return lambda **changes: _build(folder, cache, **changes)


@pytest.fixture
def no_worker(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From here on, starting a worker is an error."""

    def forbid() -> None:
        def refuse(*arguments: object, **settings: object) -> None:
            raise AssertionError("a worker was started")

        monkeypatch.setattr(Worker, "__init__", refuse)

    return forbid


def test_nothing_changed_is_known_without_a_worker_and_leaves_the_bundle_as_it_is(
    first: Path, cache: Path, no_worker: Callable[[], None]
) -> None:
    places = {path: path.stat().st_ino for path in (first / "out").rglob("*")}
    no_worker()
    again, compiled = _build(first, cache)
    assert (again.manifest.name, compiled) == ("bundle", [])
    assert {path: path.stat().st_ino for path in (first / "out").rglob("*")} == places


def test_a_bundle_that_is_gone_or_damaged_is_made_again_from_the_cache_without_a_worker(
    first: Path, cache: Path, no_worker: Callable[[], None], tmp_path: Path
) -> None:
    before = contents(first / "out")
    no_worker()
    assert contents(_build(first, cache, out=tmp_path / "out")[0].path) == before
    (tmp_path / "out" / "details" / "sm_90a.json").write_text("{}")
    assert contents(_build(first, cache, out=tmp_path / "out")[0].path) == before


def test_a_kernel_that_asks_for_the_architecture_does_not_lose_the_build_with_nothing_to_do(
    run: Run, folder: Path, no_worker: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = folder / "kernels" / "first.py"
    first.write_text("import os\nARCH = os.environ['CUTE_DSL_ARCH']\n" + first.read_text())
    assert run()[1] == ALL
    no_worker()
    assert run()[1] == []
    monkeypatch.setenv("CUTE_DSL_KEEP_PTX", "0")  # it was not set before, and is the compiler's
    with pytest.raises(AssertionError, match="a worker was started"):
        run()


def test_other_settings_are_not_nothing_changed(run: Run, folder: Path, no_worker: Callable[[], None]) -> None:
    before = contents(run()[0].path)
    no_worker()
    without = contents(run(archives=False)[0].path)
    assert before.keys() - without.keys() == {name for name in before if name.endswith(".a")} != set()
    again = run()[0]
    assert contents(again.path) == before
    host = Host.native((2, 31))
    assert next(iter(run(hosts=(host,))[0].manifest.hosts.values())).glibc == "2.31"
    assert next(iter(run(shared_cudart=True)[0].manifest.hosts.values())).cudart != "static"
    assert verify(folder / "out") == []


def test_from_cache_or_not_the_bytes_are_the_same(run: Run, folder: Path) -> None:
    options = {"options": Options(keep=("ll", "ptx", "cubin", "mlir", "o")), "select": ("first",)}
    built, compiled = run(**options, out=folder / "built", jobs=2)
    assert compiled == ALL[:2]
    cached, compiled = run(**options, out=folder / "cached")
    assert compiled == []
    plain, compiled = run(**options, out=folder / "plain", artifacts=None, jobs=1)
    assert compiled == ALL[:2]
    assert contents(built.path) == contents(cached.path) == contents(plain.path)
    assert len(list((cached.path / "kept" / "sm_90a").iterdir())) == 10


def test_one_kernel_changed_only_its_variants_are_compiled(run: Run, folder: Path) -> None:
    second = folder / "kernels" / "second.py"
    second.write_text(second.read_text().replace("element_type(1)", "element_type(2)"))
    (folder / "kernels" / "_notes.py").write_text("# nothing imports this\n")
    assert run()[1] == ["second__f16", "second__f32"]


def test_a_build_of_one_kernel_uses_what_a_build_of_all_has_compiled(run: Run, folder: Path) -> None:
    assert run(select=("second",), out=folder / "one")[1] == []


def test_damaged_entries_are_found_and_made_again(run: Run, folder: Path) -> None:
    before = contents(folder / "out")
    for entry in Store(folder / "cache").entries():
        content = entry.path.read_bytes()
        entry.path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    result, compiled = run(out=folder / "again")
    assert compiled == ALL
    assert contents(result.path) == before
    assert verify(result.path) == []
    left = {entry.kind for entry in check(Store(folder / "cache"), read_plan).damaged}
    assert not left & {"variants", "libraries"}  # what only builds at the other place look at


def test_a_cache_that_cannot_be_written_does_not_stop_a_build(run: Run, folder: Path) -> None:
    (folder / "file").write_text("not a folder")
    result, compiled = run(artifacts=folder / "file", select=("first",), out=folder / "plain")
    assert compiled == ["first__f16", "first__f32"]
    assert verify(result.path) == []


def test_a_kernel_that_failed_is_tried_again(run: Run, folder: Path) -> None:
    (folder / "kernels" / "third.py").write_text("raise OSError('no tuning table')\n")
    first, compiled = run(out=folder / "third")
    assert (len(first.failures), compiled) == (1, [])
    (folder / "kernels" / "third.py").write_text("")
    second, compiled = run(out=folder / "third")
    assert (len(second.failures), compiled) == (0, [])


def test_a_clock_that_jumps_changes_nothing(run: Run, folder: Path) -> None:
    """Contents decide, never times: of sources, of the bundle, of the cache's entries."""
    first, _ = run()  # at this place
    before = contents(first.path)
    for number, path in enumerate(sorted(path for path in folder.rglob("*") if path.is_file())):
        moment = (0, 2**33)[number % 2]  # 1970, 2242
        os.utime(path, (moment, moment))
    assert run()[1] == []
    shutil.rmtree(first.path)
    assert run()[1] == []
    assert contents(first.path) == before
    second = folder / "kernels" / "second.py"
    second.write_text(second.read_text().replace("element_type(1)", "element_type(2)"))
    os.utime(second, (0, 0))  # older than all that was made of it
    assert run()[1] == ["second__f16", "second__f32"]
    assert check(Store(folder / "cache"), read_plan) == Findings((), ())


def test_a_cache_that_may_only_be_read_is_used_and_stops_nothing(run: Run, folder: Path, read_only: ReadOnly) -> None:
    run()  # at this place
    second = folder / "kernels" / "second.py"
    second.write_text(second.read_text().replace("element_type(1)", "element_type(2)"))
    entries = [entry.key for entry in Store(folder / "cache").entries()]
    read_only(folder / "cache")
    result, compiled = run(out=folder / "again")
    assert compiled == ["second__f16", "second__f32"]
    assert verify(result.path) == []
    assert [entry.key for entry in Store(folder / "cache").entries()] == entries


def test_sealed_entries_with_bad_content_are_found_and_made_again(run: Run, folder: Path) -> None:
    before, store = contents(folder / "out"), Store(folder / "cache")
    bad, huge, kinds = itertools.cycle((b"nonsense", zlib.compress(b"[]"))), zlib.compress(bytes(300 << 20), 1), set()
    for entry in store.entries():  # of each kind the first one grows to 300 MB, which takes long to unpack
        store.put(entry.kind, entry.key, next(bad) if entry.kind in kinds else huge)
        kinds.add(entry.kind)
    result, compiled = run(out=folder / "again")
    assert compiled == ALL
    assert contents(result.path) == before


@pytest.fixture(scope="module")
def warm(first: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that builds without a home share. zig finds its own libraries there, which take it ten seconds to make."""
    folder = Path(shutil.copytree(first, tmp_path_factory.mktemp("warm") / "copy"))
    made = Path(os.environ["ZIG_GLOBAL_CACHE_DIR"])
    shutil.copytree(made, folder / "cache" / "zig" / "global", ignore=shutil.ignore_patterns("tmp"))
    return folder


def zig_entries(cache: Path) -> set[Path]:
    return {path for kind in ("global", "local") for path in (cache / "zig" / kind).glob("*/*")}


@pytest.mark.parametrize("home", ["read-only", "missing"])
def test_a_build_needs_no_home(home: str, warm: Path, read_only: ReadOnly, tmp_path: Path) -> None:
    """Warm as far as compiling goes; zig has to run, in a cache that follows AOT_CACHE."""
    (tmp_path / "home").mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("ZIG_", "XDG_", "HOME"))}
    if home == "read-only":
        read_only(tmp_path / "home")
        environment["HOME"] = str(tmp_path / "home")
    environment["AOT_CACHE"] = str(warm / "cache")
    before = zig_entries(warm / "cache")
    command = [sys.executable, "-m", "aot", "build", "--kernels", str(warm / "kernels"), "--arch", "sm90", "--kernel"]
    # Another name: zig runs
    command += [
        "first",
        "--name",
        f"first_{len(home)}",
        "--no-archives",
        "--cudart",
        "shared",
    ]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert verify(tmp_path / "out") == []
    assert zig_entries(warm / "cache") > before
    assert list((tmp_path / "home").iterdir()) == []
