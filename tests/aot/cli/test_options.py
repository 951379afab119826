"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path

import pytest

from aot.cli.main import main
from aot.cli.parser import make_parser


@pytest.mark.parametrize(
    ("command", "old", "new"),
    [
        (["list"], "--kernels", "--source"),
        (["build", "--arch", "sm90"], "--kernels", "--source"),
        (["inspect", "bundle"], "--kernels", "--source"),
        (["check", "bundle"], "--record", "--mark-verified"),
        (["explain", "bundle", "kernel"], "--cc", "--device"),
    ],
)
def test_an_option_has_its_old_name_too_which_no_help_shows(command: list[str], old: str, new: str) -> None:
    parser = make_parser(command[:1])
    assert parser.parse_args([*command, old, "there"]) == parser.parse_args([*command, new, "there"])
    (commands,) = (action for action in parser._actions if isinstance(action.choices, dict))
    shown = commands.choices[command[0]].format_help()  # type: ignore[index]
    assert new in shown and old not in shown


@pytest.mark.parametrize(
    ("words", "option", "mode"),
    [
        ("check bundle --sanitize memcheck --out report.json", "--out", "--sanitize"),
        ("check bundle --mark-verified report.json --key release.pub", "--key", "--mark-verified"),
        ("check bundle --mark-verified report.json --sanitize memcheck", "--sanitize", "--mark-verified"),
        ("check bundle --exercise file.py --every", "--every", "--exercise"),
        ("bench bundle --ncu --plot results.svg", "--plot", "--ncu"),
        ("bench bundle --ncu-csv profile.csv --kernel add", "--kernel", "--ncu-csv"),
        ("bench bundle --profile --out results.json", "--out", "--profile"),
        ("tune bundle --times times.json --out tables.json --dtype f16", "--dtype", "--times"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    words: str,
    option: str,
    mode: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert f"error: `{option}` cannot be combined with `{mode}`, which does not use it\n" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["--jobs", "2"], ["--wheelhouse", "wheels"]])
def test_what_verify_rebuilds_with_needs_a_rebuild(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "bundle", *words]) == 2
    assert f"error: `{words[0]}` is for `--rebuild`\n\nhint: " in capsys.readouterr().err
