"""Another host's wheels come with pip, or with uv in an environment without pip; else one error says what to do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aot.errors import ToolchainError
from aot.files import is_marked
from aot.hosts import Host
from aot.link import wheels
from aot.link.wheels import files_of_wheel

NAME, VERSION, HOST = "nvidia-cuda-runtime-cu12", "12.9.79", Host("x86_64")
DIGEST = "25bba2dfb01d48a9b59ca474a1ac43c6ebf7011f1b0b8cc44f54eb6ac48a96c3"
UV = """#!{python}
import pathlib, sys
arguments = sys.argv[1:]
pathlib.Path({seen!r}).write_text("\\n".join(arguments))
requirements = pathlib.Path(arguments[arguments.index("-r") + 1]).read_text()
if requirements != "{name}=={version} --hash=sha256:{digest}\\n":
    sys.exit("Hash mismatch for " + requirements)
folder = pathlib.Path(arguments[arguments.index("--target") + 1]) / "nvidia" / "lib"
folder.mkdir(parents=True)
(folder / "libcudart_static.a").write_text("archive")
(folder / "readme.txt").write_text("not wanted")
"""


def fetch(cache: Path) -> dict[str, Path]:
    return files_of_wheel(NAME, VERSION, HOST, lambda name: name.endswith(".a"), cache=cache, wheelhouse=None)


@pytest.fixture
def without_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels.importlib.util, "find_spec", lambda name: None)


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Put a stand-in for uv on PATH, which wants a digest; what it was told is in the file returned."""

    def install(digest: str) -> Path:
        program, seen = tmp_path / "bin" / "uv", tmp_path / "seen"
        program.parent.mkdir()
        text = UV.format(python=sys.executable, seen=str(seen), name=NAME, version=VERSION, digest=digest)
        program.write_text(text)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent))
        return seen

    return install


@pytest.mark.usefixtures("without_pip")
def test_without_pip_uv_fetches_and_compares_the_pinned_digest(tmp_path: Path, uv: Callable[[str], Path]) -> None:
    seen = uv(DIGEST)
    found = fetch(tmp_path / "cache")
    assert {name: path.read_text() for name, path in found.items()} == {"libcudart_static.a": "archive"}
    told = seen.read_text().split("\n")
    assert told[:2] == ["pip", "install"]
    assert is_marked(found["libcudart_static.a"].parent)
    assert {"--require-hashes", "--no-deps"} <= set(told)
    assert told[told.index("--python-platform") + 1] == "x86_64-manylinux_2_28"
    seen.unlink()
    assert fetch(tmp_path / "cache") == found
    assert not seen.exists(), "what was fetched once is not fetched again"


@pytest.mark.usefixtures("without_pip")
def test_a_wheel_that_uv_refuses_is_an_error_that_leaves_nothing(tmp_path: Path, uv: Callable[[str], Path]) -> None:
    uv("0" * 64)
    with pytest.raises(ToolchainError, match=f"uv could not fetch {NAME} {VERSION} for x86_64.*: Hash mismatch"):
        fetch(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.usefixtures("without_pip")
def test_without_pip_and_uv_the_error_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError) as raised:
        fetch(tmp_path / "cache")
    assert "this environment has no pip, and `uv` is not on PATH" in raised.value.message
    hint = str(raised.value.hint)
    assert "run `pip download --no-deps" in hint
    assert f"{NAME}=={VERSION}`, then build with `--wheelhouse wheelhouse`" in hint


def test_with_pip_uv_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uv: Callable[[str], Path]) -> None:
    pytest.importorskip("pip", reason="environments that uv makes have no pip")
    seen = uv(DIGEST)
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ToolchainError, match=f"pip could not fetch {NAME}"):
        fetch(tmp_path / "cache")
    assert not seen.exists()
