"""The command line imports the modules of the commands that are asked for, and knows all of them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from celery_agents.tasks.cli.lazy_commands import MODULES, commands_of
from celery_agents.tasks.cli.program import program


@pytest.mark.parametrize("module", MODULES)
def test_each_module_registers_the_commands_that_it_is_listed_with(module: str) -> None:
    assert tuple(commands_of(module)) == MODULES[module]


def test_a_wrong_name_gets_a_suggestion_from_all_commands() -> None:
    result = CliRunner().invoke(program, ["submitt"])
    assert result.exit_code == 2
    assert "Did you mean" in result.output
    assert "submit" in result.output


def test_a_worker_imports_no_other_commands_and_not_celerys_command_line() -> None:
    code = (
        "import sys\n"
        "from celery_agents.tasks.cli.program import program\n"
        "from celery_agents.tasks.cli.lazy_commands import commands_of\n"
        "commands_of('run_commands')\n"
        "import celery_agents.tasks.local.worker, celery_agents.tasks.app\n"
        "print([name for name in sys.modules if name.startswith(('celery.bin', 'celery_agents.tasks.cli.read'))])\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
