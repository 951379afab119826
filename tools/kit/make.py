"""Making a kit: a bundle for one host, the loader, the GPU tests, the benchmarks and the wheels they need.

The C++ demos of the project are part of it too, with the headers, the CMake package and a bundle of their own: they
are compiled where the kit is run, if there is a compiler.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aot_runtime

import aot
from aot.bundle.manifest import Manifest
from aot.bundle.verifying.verify import verify
from aot.errors import BuildError, UsageError
from aot.hosts import Host
from aot.wheel.make import runtime_license

__all__ = ["REQUIREMENTS", "KitSettings", "Step", "make_kit"]

MAX_BYTES = 60 << 20
PLAN = "kit.json"
DEMO = "cpp_demo"
# What the tests and `verify` import; the GPU machine brings torch itself.
REQUIREMENTS = (
    "apache-tvm-ffi",
    "pytest",
    "hypothesis",
    "pyelftools",
    "capstone",
    "rich",
    "platformdirs",
    "packaging",
    "pyproject-metadata",
)
_OLD_PYTHON = ("exceptiongroup", "tomli", "typing-extensions")  # what pytest needs there; pip goes by its own version
_SKIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*", "results", "dist", "build")
_TESTS_TIMEOUT = 1200
_BENCHMARK_TIMEOUT = 300


@dataclass(frozen=True)
class Step:
    """Something the kit runs. ``{kit}``, ``{work}`` and ``{python}`` in the command are filled in there."""

    name: str
    command: tuple[str, ...]
    timeout: float
    junit: str | None = None
    json: str | None = None
    tools: tuple[str, ...] = ()  # programs without which the step is skipped

    @classmethod
    def parse(cls, text: str) -> Step:
        """``NAME=COMMAND``, the command as a shell takes it."""
        name, _, command = text.partition("=")
        if not name.strip() or not command.strip():
            raise UsageError(f"not a step: {text!r}", hint='write it like "demo=bash cpp_demo/run.sh"')
        return cls(name.strip(), ("bash", "-c", command.strip().replace("{", "{{").replace("}", "}}")), _TESTS_TIMEOUT)

    def to_data(self) -> dict[str, Any]:
        return {key: value for key, value in dataclasses.asdict(self).items() if value not in (None, ())}


@dataclass(frozen=True)
class KitSettings:
    """What goes into a kit, and for whom."""

    bundle: Path
    project: Path  # the folder that holds tests/, benchmarks/ and kernels/
    out: Path
    host: Host
    python: str  # "3.12"
    requirements: tuple[str, ...] = REQUIREMENTS
    include: tuple[Path, ...] = ()  # more files and folders of the project
    steps: tuple[Step, ...] = ()  # after the tests and benchmarks
    wheelhouse: Path | None = None
    cpp_demo: bool = True  # where the project has one
    cache: Path = field(default_factory=lambda: Path(tempfile.gettempdir()) / "cute-aot")  # of the tools that build it


def make_kit(settings: KitSettings) -> Path:
    """Make the kit; its folder appears whole, or not at all."""
    _check(settings)
    manifest = _manifest(settings)
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{settings.out.name}.", dir=settings.out.parent) as scratch:
        staged = Path(scratch) / "kit"
        staged.mkdir()
        _copy_bundle(settings, manifest, staged / "bundle")
        _copy_sources(settings, staged)
        if _has_demo(settings):
            _build_demo(settings, staged)
        _fetch_wheels(settings, staged / "wheels")
        _write_plan(settings, manifest, staged)
        _check_size(staged)
        if settings.out.exists():
            shutil.rmtree(settings.out)
        os.replace(staged, settings.out)
    return settings.out


def _check(settings: KitSettings) -> None:
    if re.fullmatch(r"3\.\d{1,2}", settings.python) is None:
        raise UsageError(f"not a Python version: {settings.python!r}", hint="write it like 3.12")
    out = settings.out
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / PLAN).is_file())):
        raise UsageError(f"`{out}` holds something that is not a kit", hint="pass another `--out`")
    if not (settings.project / "tests").is_dir():
        raise UsageError(f"`{settings.project}` has no tests", hint="pass the folder that holds tests/")
    for path in settings.include:
        if not (settings.project / path).exists():
            raise UsageError(f"`{settings.project / path}` does not exist")


def _manifest(settings: KitSettings) -> Manifest:
    manifest = Manifest.read(settings.bundle)
    host = settings.host.name
    if host not in manifest.hosts:
        raise UsageError(
            f"`{settings.bundle}` holds no code for {host}; it has: {', '.join(manifest.hosts)}",
            hint=f"build it with `--host {settings.host.cpu}`",
        )
    problems = verify(settings.bundle)
    if problems:
        raise BuildError(f"`{settings.bundle}` is not sound: {problems[0]}", hint="build it again")
    others = tuple(f"lib/{name}/" for name in manifest.hosts if name != host)
    files = {name: record for name, record in manifest.files.items() if not name.startswith(others or "\0")}
    return manifest.replace(hosts={host: manifest.hosts[host]}, files=files)


def _copy_bundle(settings: KitSettings, manifest: Manifest, bundle: Path) -> None:
    for name in manifest.files:
        (bundle / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(settings.bundle / name, bundle / name)
    for name, text in manifest.texts().items():
        (bundle / name).write_bytes(text)


def _copy_sources(settings: KitSettings, staged: Path) -> None:
    runtime = Path(aot_runtime.__file__).resolve().parent
    shutil.copytree(Path(aot.__file__).resolve().parent, staged / "aot", ignore=_SKIPPED)
    shutil.copytree(runtime, staged / "aot_runtime", ignore=_SKIPPED)
    for name in ("src", "include", "cmake"):  # in a checkout these lie beside the loader
        if (runtime.parent / name).is_dir() and not (runtime / name).exists():
            shutil.copytree(runtime.parent / name, staged / "aot_runtime" / name, ignore=_SKIPPED)
    (staged / "aot_runtime" / "LICENSE").write_bytes(runtime_license())  # wheels made with the kit carry it
    for path in (*map(Path, ("tests", "benchmarks", "examples", "kernels", "pyproject.toml")), *settings.include):
        _copy(settings.project / path, staged / path)
    shutil.copyfile(Path(__file__).with_name("run.py"), staged / "run.py")


def _has_demo(settings: KitSettings) -> bool:
    return settings.cpp_demo and (settings.project / DEMO / "kernels").is_dir()


def _build_demo(settings: KitSettings, staged: Path) -> None:
    """The demos, and the bundle they call, for the kit's host."""
    from aot.pipeline.build import build
    from aot.pipeline.settings import Settings

    _copy(settings.project / DEMO, staged / DEMO)
    result = build(
        Settings(
            str(settings.project / DEMO / "kernels"), ("all",), out=staged / DEMO / "bundle", name="demo",
            hosts=(settings.host,), jobs=os.cpu_count() or 1, cache=settings.cache,
            wheelhouse=settings.wheelhouse,
        )
    )  # fmt: skip
    if result.failures:
        raise BuildError(
            f"the bundle of `{settings.project / DEMO}` is incomplete: {result.failures[0].message}",
            hint="see `python -m aot build --source cpp_demo/kernels`, or go without it: `--no-cpp-demo`",
        )


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=_SKIPPED, dirs_exist_ok=True)
    elif source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _fetch_wheels(settings: KitSettings, folder: Path) -> None:
    old = _OLD_PYTHON if int(settings.python.split(".")[1]) < 11 else ()
    floors = (settings.host.glibc[1], 27, 26, 24, 17)
    platforms = [f"--platform=manylinux_2_{minor}_{settings.host.cpu}" for minor in sorted({*floors}, reverse=True)]
    source = ["--no-index", "--find-links", str(settings.wheelhouse)] if settings.wheelhouse else []
    command = [
        "download", "--only-binary=:all:", *platforms, f"--platform=manylinux2014_{settings.host.cpu}",
        f"--python-version={settings.python}", "--implementation=cp", *source, *settings.requirements, *old,
    ]  # fmt: skip
    dest = ["--dest", str(folder)]
    done = subprocess.run([sys.executable, "-m", "pip", "-q", *command, *dest], capture_output=True, text=True)
    if done.returncode != 0:
        raise BuildError(
            f"pip could not get the wheels for Python {settings.python} on {settings.host}: {done.stderr.strip()}",
            hint=f"on a machine with a network run `pip {' '.join(command)} --dest wheelhouse`, then pass `--wheelhouse wheelhouse`",
        )


# What the kit does when it is run.


def _write_plan(settings: KitSettings, manifest: Manifest, staged: Path) -> None:
    plan = {
        "bundle": {"name": manifest.name, "kernels": list(manifest.kernels), "provenance": list(manifest.provenance)},
        "host": settings.host.name,
        "python": settings.python,
        "made_with": dict(manifest.toolchain),
        "wheels": sorted(path.name for path in (staged / "wheels").glob("*.whl")),
        "steps": [step.to_data() for step in _steps(settings, staged)],
    }
    (staged / PLAN).write_text(json.dumps(plan, indent=1) + "\n")


def _steps(settings: KitSettings, staged: Path) -> Iterator[Step]:
    yield Step("verify", ("{python}", "-m", "aot", "verify", "{kit}/bundle"), _BENCHMARK_TIMEOUT)
    tests = _marked_gpu(staged)
    if tests:
        junit = "{work}/tests.xml"
        # Fixtures of other tests may need what the machine does not have.
        folder = os.path.commonpath([os.path.dirname(test) for test in tests])
        command = (
            "-m",
            "pytest",
            "-m",
            "gpu",
            "-p",
            "no:cacheprovider",
            f"--confcutdir={folder}",
            f"--junitxml={junit}",
        )
        yield Step("tests", ("{python}", *command, "--bundle", "{kit}/bundle", *tests), _TESTS_TIMEOUT, junit=junit)
    for path in sorted((staged / "benchmarks").glob("[!_]*.py")):
        if _needs_gpu(path.read_text()):
            yield _benchmark(path)
    if _has_demo(settings):
        demo = ("sh", f"{DEMO}/run_all.sh", f"{DEMO}/bundle", f"{{work}}/{DEMO}")
        yield Step(DEMO, ("env", "PYTHON={python}", *demo), _BENCHMARK_TIMEOUT, tools=("cmake", "cc", "c++"))
    yield from settings.steps


def _marked_gpu(staged: Path) -> list[str]:
    """Test files with tests that want a GPU; others may import what the machine does not have."""
    tests = sorted((staged / "tests").rglob("test_*.py"))
    return [path.relative_to(staged).as_posix() for path in tests if _uses_mark(path.read_text(), "gpu")]


def _uses_mark(source: str, mark: str) -> bool:
    """Whether the code, rather than a text in it, says ``pytest.mark.<mark>``."""
    found = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute) and node.attr == mark)
    return any(isinstance(node.value, ast.Attribute) and node.value.attr == "mark" for node in found)


def _needs_gpu(source: str) -> bool:
    return "Needs a GPU" in source.partition('"""')[2].partition('"""')[0]


def _benchmark(path: Path) -> Step:
    """A benchmark takes ``--out``, and the bundle where it says so."""
    source = path.read_text()
    out = f"{{work}}/{path.stem}.json"
    bundle = ["{kit}/bundle"] if 'add_argument("bundle"' in source else []
    bundle = ["--bundle", "{kit}/bundle"] if 'add_argument("--bundle"' in source else bundle
    command = ("{python}", f"benchmarks/{path.name}", *bundle, "--out", out)
    return Step(f"benchmark {path.stem}", command, _BENCHMARK_TIMEOUT, json=out)


def _check_size(staged: Path) -> None:
    sizes = {path: path.stat().st_size for path in staged.rglob("*") if path.is_file()}
    total = sum(sizes.values())
    if total > MAX_BYTES:
        largest = sorted(sizes, key=lambda path: sizes[path])[-3:]
        named = ", ".join(f"{path.relative_to(staged)} ({sizes[path] >> 20} MiB)" for path in reversed(largest))
        raise BuildError(
            f"the kit has {total >> 20} MiB, {MAX_BYTES >> 20} is the limit; largest: {named}",
            hint="build fewer kernels or architectures into its bundle",
        )
