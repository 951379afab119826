"""`build`, `list` and `capture` mean the same by the same option, and all of them can be made into settings."""

from __future__ import annotations

import argparse

import pytest

from aot.cli.build_options import OPTIONS
from aot.cli.commands import build, capture
from aot.cli.commands import list as list_command

COMMANDS = {"build": build, "list": list_command, "capture": capture}


def parser_of(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    COMMANDS[command].configure_parser(parser)  # type: ignore[attr-defined]
    return parser


def actions(command: str) -> dict[str, argparse.Action]:
    return {action.option_strings[0]: action for action in parser_of(command)._actions if action.option_strings}


@pytest.mark.parametrize("command", ["list", "capture"])
def test_an_option_is_read_like_that_of_build(command: str) -> None:
    whole, own = actions("build"), actions(command)
    shared = whole.keys() & own.keys() - {"--help"}
    assert len(shared) > 8
    for name in shared:
        one, other = whole[name], own[name]
        assert (one.dest, one.type, one.choices, one.default) == (other.dest, other.type, other.choices, other.default)
        assert type(one) is type(other)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_command_does_not_offer_has_the_default_of_build(command: str) -> None:
    parsed = vars(parser_of(command).parse_args([]))
    default = vars(parser_of("build").parse_args([]))
    for option in OPTIONS.values():
        assert parsed[option.destination] == default[option.destination] == option.default
    assert (parsed["add"], parsed["replace"]) == (False, False)


def test_no_list_is_shared_between_two_command_lines() -> None:
    parser = parser_of("build")
    assert parser.parse_args(["--arch", "sm90"]).arch == ["sm90"]
    assert parser.parse_args([]).arch == []
