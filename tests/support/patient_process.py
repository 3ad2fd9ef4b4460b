"""The provider of `support.patient_provider` as a process, and what tests ask of it."""

from __future__ import annotations

import sys
from functools import cached_property
from pathlib import Path
from typing import Any

from .http_service import call
from .patient_ledger import Book
from .processes import TESTS, Process, free_port
from .wait import wait_until


class PatientProcess(Process):
    """The provider; its book is read past it, also while it is dead.

    Attributes:
        root: The base for Anthropic's clients.
        url: The base for OpenAI's.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        argv = [sys.executable, "-m", "support.patient_provider", str(directory), str(self.port)]
        super().__init__("patient-provider", argv, directory, {"PYTHONPATH": str(TESTS)})
        self.root = f"http://127.0.0.1:{self.port}"
        self.url = f"{self.root}/v1"

    def begin(self) -> None:
        """Start it, and wait until it answers."""
        self.start()
        wait_until(self._answers, "the provider answers", 30, details=self.tail)

    def control(self, verb: str, **arguments: Any) -> Any:
        """Do `plan`, `fault`, `release`, `forget` or `webhooks` of `patient_provider`."""
        return call(f"{self.root}/control/{verb}", arguments)["result"]

    @cached_property
    def book(self) -> Book:
        return Book(self.directory / "provider.sqlite")

    def _answers(self) -> bool:
        try:
            self.control("release", id="none")
        except OSError:
            return False
        return True
