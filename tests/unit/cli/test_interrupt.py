"""Ctrl-C while a command still loads its modules."""

from __future__ import annotations

import subprocess
import sys

import pytest

INTERRUPTED = """
import sys
from celery_agents.tasks.cli import main

class Interrupting:
    def find_spec(self, name, *_):
        if name == "celery_agents.tasks.cli.program":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
main(["--version"])
"""


def test_a_command_that_is_interrupted_before_it_begins_ends_without_a_traceback() -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


INTERRUPTED_FLOWER = """
from celery.bin.celery import celery
from celery_agents.tasks.cli import main

@celery.command("flower", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def interrupt():
    raise KeyboardInterrupt

main(["flower", "--redis-url", "redis://127.0.0.1:1"])
"""


def test_flower_ends_by_ctrl_c_as_every_other_command() -> None:
    pytest.importorskip("flower")
    command = [sys.executable, "-c", INTERRUPTED_FLOWER]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stderr.strip()) == (130, "")
