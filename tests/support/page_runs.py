"""Runs what a page of the documentation shows: its programs and its commands, in their order."""

from __future__ import annotations

import contextlib
import io
import runpy
import shlex
from pathlib import Path

from typer.testing import CliRunner

from celery_agents.tasks.cli.program import program

from support.documents import Document


def run_programs(page: Document, folder: Path) -> dict[str, str]:
    """Write the files of a page into a folder, run each as a program, and give what each has printed."""
    page.write(folder)
    told: dict[str, str] = {}
    for name in page.files:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            runpy.run_path(str(folder / name))
        told[name] = printed.getvalue()
    return told


def run_commands(page: Document, redis_url: str) -> dict[str, str]:
    """Run the commands of a page, of which each has to succeed, and give what each has printed."""
    said: dict[str, str] = {}
    for line in page.commands:
        done = CliRunner().invoke(program, [*shlex.split(line)[1:], "--redis-url", redis_url])
        assert done.exit_code == 0, f"{line}: {done.output}"
        said[line] = done.stdout
    return said
