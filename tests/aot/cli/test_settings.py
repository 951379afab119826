"""The settings of a build: from the arguments, and in a kernel project from its pyproject.toml."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from aot.cli.parser import parse
from aot.cli.settings import build_settings, list_settings
from aot.errors import AotError, UsageError
from aot.hosts import Host
from aot.pipeline.settings import Settings
from aot.pipeline.spellings import parse_wanted

PROJECT = """
[project]
name = "my-kernels"
version = "1.0"

[tool.cute-aot]
archs = ["sm80", "H100"]
kernels = "source"
select = ["add*"]
glibc = "2.31"
cudart = "shared"
timeout = 60
wheelhouse = "wheels"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source").mkdir()
    return tmp_path


def settings(*words: str) -> Settings:
    return build_settings(parse(["build", *words]))


def test_without_a_project_the_kernels_are_in_kernels(folder: Path) -> None:
    found = settings("--arch", "sm90")
    assert (found.kernels, found.archs, found.bundle_name) == ("kernels", parse_wanted(["sm90"]), "kernels")
    assert (found.hosts, found.timeout, found.shared_cudart) == ((Host.native(),), 3600, False)


def test_the_old_name_of_the_table_is_refused(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(PROJECT.replace("tool.cute-aot", "tool.aot"))
    with pytest.raises(UsageError, match=r"has a \[tool.aot\] table") as caught:
        settings()
    assert caught.value.hint == "rename it to [tool.cute-aot]"


@pytest.mark.parametrize("text", [None, "[tool.ruff]\n", "[tool.ruff\n"])
def test_without_a_project_an_architecture_is_needed(folder: Path, text: str | None) -> None:
    if text is not None:
        (folder / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match="no architecture was given") as caught:
        settings()
    assert "`--arch H100`" in (caught.value.hint or "")


@pytest.mark.parametrize("header", ['[tool."cute-aot"]', "[ tool . cute-aot ]  # ours"])
def test_the_table_of_a_project_is_found_however_it_is_spelled(folder: Path, header: str) -> None:
    (folder / "pyproject.toml").write_text(PROJECT.replace("[tool.cute-aot]", header))
    assert settings().kernels == "source"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('[tool.cute-aot\narchs = ["sm80"]', "`pyproject.toml` cannot be read: "),
        ('[tool]\ncute-aot = "sm80"', "[tool.cute-aot] is 'sm80', must be a table"),
        ('[tool.cute_aot]\narchs = ["sm80"]', "`pyproject.toml` has a [tool.cute_aot] table"),
    ],
)
def test_a_table_with_a_mistake_is_not_taken_for_none(folder: Path, table: str, said: str) -> None:
    (folder / "pyproject.toml").write_text(table)
    with pytest.raises(UsageError, match=re.escape(said)):
        settings("--arch", "sm90")


def test_a_folder_of_a_project_says_where_the_project_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "pyproject.toml").write_text(PROJECT)
    monkeypatch.chdir(folder / "source")
    for words in ((), ("--arch", "sm90")):
        with pytest.raises(UsageError, match=f"lies in the kernel project `{folder}`") as caught:
            settings(*words)
        assert f"`cd {folder}`" in (caught.value.hint or "")
    assert settings("--arch", "sm90", "--source", ".").kernels == "."
    (folder / "source" / "kernels").mkdir()
    assert settings("--arch", "sm90").kernels == "kernels"


def test_a_project_that_cannot_be_read_is_not_taken_for_none(folder: Path) -> None:
    (folder / "pyproject.toml").write_bytes(b"# caf\xe9\n" + PROJECT.encode())
    with pytest.raises(UsageError, match=r"`pyproject.toml` cannot be read: 'utf-8' codec"):
        settings("--arch", "sm90")
    (folder / "pyproject.toml").unlink()
    (folder / "pyproject.toml").mkdir()
    with pytest.raises(UsageError, match=r"cannot read `pyproject.toml`: Is a directory"):
        settings("--arch", "sm90")


@pytest.mark.parametrize("source", ["nowhere/at/all", "no_such_module", "no_such_package.module"])
def test_a_source_that_is_not_there_is_named_before_an_architecture_is_asked_for(folder: Path, source: str) -> None:
    with pytest.raises(UsageError, match=f"`{source}` does not exist"):
        settings("--source", source)


def test_a_source_in_a_project_says_that_the_project_does_not_count(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(PROJECT)
    with pytest.raises(UsageError, match="no architecture was given") as caught:
        settings("--source", "source")
    assert "leave `--source` out" in (caught.value.hint or "")


def test_a_project_gives_the_defaults(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(PROJECT)
    found = settings()
    assert (found.kernels, found.archs, found.bundle_name) == ("source", parse_wanted(["sm80", "H100"]), "my_kernels")
    assert (found.select, found.timeout, found.shared_cudart) == (("add*",), 60, True)
    assert found.hosts == (Host.native((2, 31)),)
    assert found.wheelhouse == Path("wheels")
    assert found.destination == Path("dist/my_kernels")


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('kernels = "source"\nhosts = ["arm"]', "hosts"),
        ('kernels = "nowhere"', "kernels"),
        ('kernels = "source"\npackage = "my-kernels"', "package"),
    ],
)
def test_what_is_wrong_in_a_project_names_its_place(folder: Path, line: str, key: str) -> None:
    (folder / "pyproject.toml").write_text(PROJECT.replace('kernels = "source"', line))
    with pytest.raises(UsageError, match=rf"^pyproject.toml, `\[tool.cute-aot\] {key}`: ") as caught:
        settings()
    assert "--" not in (caught.value.hint or "")  # the command line is not what is wrong


def test_list_takes_everything_that_nothing_narrows(folder: Path) -> None:
    found = list_settings(parse(["list"]))
    assert (found.kernels, found.archs, found.select, found.families) == ("kernels", ("all",), (), ("all",))
    (folder / "pyproject.toml").write_text(PROJECT)
    found = list_settings(parse(["list", "--family", "rows"]))
    assert (found.kernels, found.archs, found.families) == ("source", parse_wanted(["sm80", "H100"]), ("rows",))
    with pytest.raises(UsageError, match="`--jobs` is 0"):
        list_settings(parse(["list", "--jobs", "0"]))


def test_arguments_go_before_the_project(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(PROJECT)
    found = settings(
        "--arch", "sm90", "--name", "other", "--kernel", "gemm", "--glibc", "2.28", "--cudart", "static",
        "--timeout", "5", "--wheelhouse", "house", "--host", "x86_64",
    )  # fmt: skip
    assert (found.archs, found.bundle_name, found.select) == (parse_wanted(["sm90"]), "other", ("gemm",))
    assert (found.timeout, found.shared_cudart, found.wheelhouse) == (5, False, Path("house"))
    assert found.hosts == (Host("x86_64", (2, 28)),)
    elsewhere = settings("--kernels", "elsewhere", "--arch", "sm90")  # not of the project
    assert (elsewhere.bundle_name, elsewhere.select, elsewhere.timeout) == ("elsewhere", (), 3600)


def test_a_project_with_a_mistake_is_refused(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(PROJECT.replace("glibc =", "glibk ="))
    with pytest.raises(UsageError, match="unknown key `glibk`"):
        settings()


def test_comma_lists_and_repeated_options_add_up(folder: Path) -> None:
    assert settings("--arch", "sm90").families == ()
    found = settings("--arch", "sm90", "--family", "rows, gemm", "--family", "backward", "--kernel", "a*,b")
    assert (found.families, found.select) == (("rows", "gemm", "backward"), ("a*", "b"))


@pytest.mark.parametrize("given", [",", " "])
def test_a_list_without_a_name_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match=r"`--family .*` names nothing"):
        settings("--arch", "sm90", "--family", given)


def test_a_path_of_kernels_that_is_not_there_is_the_first_thing_to_fix(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(PROJECT)
    with pytest.raises(UsageError) as error:
        settings("--kernels", "missing/")
    assert "missing/" in error.value.message


@pytest.mark.parametrize("read", [settings, lambda: list_settings(parse(["list"]))])
def test_a_wrong_architecture_of_a_project_names_its_file(folder: Path, read: Callable[[], Settings]) -> None:
    (folder / "pyproject.toml").write_text(PROJECT.replace("sm80", "sm_81x"))
    with pytest.raises(UsageError) as error:
        read()
    assert "pyproject.toml" in error.value.message and "sm_81x" in error.value.message


@pytest.mark.parametrize(
    "wrong",
    [("--executor", "spark://x"), ("--dask-security", "certificates.toml"), ("--memory", "10M"), ("--arch", "sm_95")],
)
def test_values_are_parsed_before_anything_is_looked_at(folder: Path, wrong: tuple[str, str]) -> None:
    with pytest.raises(AotError) as caught:
        settings("--arch", "sm90", *wrong)
    assert caught.value.hint
