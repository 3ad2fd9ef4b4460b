"""The help lists every command, once, in a line that a terminal of eighty columns shows whole."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from celery_agents.config.settings import Settings, SettingsError
from celery_agents.tasks.cli.program import SECTIONS, commands_of, program

COMMANDS = [name for module in SECTIONS.values() for name in commands_of(module)]


def test_each_command_is_in_one_section() -> None:
    assert len(COMMANDS) == len(set(COMMANDS)) >= 27


def test_each_command_shows_how_it_is_used() -> None:
    helps = {name: each.help or "" for module in SECTIONS.values() for name, each in commands_of(module).items()}
    assert [name for name, text in helps.items() if "celery-agents" not in text] == []


def test_the_help_cuts_no_sentence_off() -> None:
    text = CliRunner().invoke(program, ["--help"], terminal_width=80).output
    assert "..." not in text.replace("[ARGS]...", "")
    for name in COMMANDS:
        assert text.count(f"\n  {name} ") == 1, name


def test_a_setting_that_is_written_wrongly_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(SettingsError) as refused:
        Settings.from_environment({"CELERY_AGENTS_REDIS_URLL": "redis://x"})
    assert "did you mean CELERY_AGENTS_REDIS_URL?" in str(refused.value)
    assert "CONCURRENCY" not in str(refused.value)
    with pytest.raises(SettingsError, match=r"known are .*CELERY_AGENTS_CONCURRENCY"):
        Settings.from_environment({"CELERY_AGENTS_QQQ": "1"})
