"""Options that several commands have."""

from __future__ import annotations

import pytest

from aot.cli.parser import make_parser


@pytest.mark.parametrize(
    ("command", "old", "new"),
    [
        (["list"], "--kernels", "--source"),
        (["build", "--arch", "sm90"], "--kernels", "--source"),
        (["inspect", "bundle"], "--kernels", "--source"),
        (["check", "bundle"], "--record", "--mark-verified"),
    ],
)
def test_an_option_has_its_old_name_too_which_no_help_shows(command: list[str], old: str, new: str) -> None:
    parser = make_parser(command[:1])
    assert parser.parse_args([*command, old, "there"]) == parser.parse_args([*command, new, "there"])
    (commands,) = (action for action in parser._actions if isinstance(action.choices, dict))
    shown = commands.choices[command[0]].format_help()  # type: ignore[index]
    assert new in shown and old not in shown
