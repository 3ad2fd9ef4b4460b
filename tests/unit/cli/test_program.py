"""The command line imports no more modules than it needs to find a command, and knows all commands."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from celery_agents.tasks.cli.program import program


def test_a_wrong_name_gets_a_suggestion_from_all_commands() -> None:
    result = CliRunner().invoke(program, ["submitt"])
    assert result.exit_code == 2
    assert "Did you mean" in result.output
    assert "submit" in result.output


@pytest.mark.parametrize("command", ["worker", "health"])
def test_a_worker_and_a_probe_import_no_commands_on_jobs_and_not_celerys_command_line(command: str) -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from celery_agents.tasks.cli.program import program\n"
        f"assert CliRunner().invoke(program, [{command!r}, '--help']).exit_code == 0\n"
        "import celery_agents.tasks.local.worker, celery_agents.tasks.app\n"
        "print([name for name in sys.modules if name.startswith(('celery.bin', 'celery_agents.tasks.cli.job'))])\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
