"""The help of the commands, as a beginner reads it in a terminal of 80 columns."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module

import pytest

from dasktune.cli import main
from dasktune.cli.command_line import COMMANDS
from dasktune.schedulers.create import SCHEDULERS
from dasktune.search.create import SEARCHERS


def options_with_values(command: str) -> Iterator[argparse.Action]:
    parser = argparse.ArgumentParser(add_help=False)
    import_module(f"dasktune.cli.commands.{command}").add_arguments(parser)
    return (one for one in parser._actions if one.option_strings and one.nargs != 0)


def help_of(capsys, *command: str) -> str:
    assert main([*command, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_fits_a_terminal_of_80_columns(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = help_of(capsys, *command).splitlines()
    assert lines
    assert [line for line in lines if len(line) > 80] == []


def test_the_help_has_one_line_for_each_command_and_an_example(capsys):
    text = help_of(capsys)
    for name, summary in COMMANDS.items():
        assert f"\n  {name:<10}  {summary}\n" in text
    assert "\n  dasktune run train.py:train " in text


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_with_a_value_states_its_default(command):
    options = list(options_with_values(command))
    assert options
    for one in options:
        words = one.help % {"default": one.default}
        assert "(default: " in words, one.option_strings
        if one.default not in (None, []):
            shown = f"{one.default:g}" if one.type is float else one.default
            assert f"(default: {shown}" in words, one.option_strings


def test_the_help_of_run_lists_the_schedulers_and_searchers(capsys):
    words = set(help_of(capsys, "run").replace(",", " ").split())
    # A command line cannot give this scheduler its function.
    assert set(SCHEDULERS) - {"function"} <= words
    assert set(SEARCHERS) <= words
