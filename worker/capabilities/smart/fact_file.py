"""`FactFiles`: a store of facts in a folder, one file for each namespace."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from ...errors import StateUnreadable
from ...state.views.smart_parts import Memory, MemoryFact
from .memory_facts import merge_fact


@dataclass(frozen=True)
class FactFiles:
    """Keeps facts as JSON in a folder that the workers share; made for one machine. Each write is atomic.

    Attributes:
        folder: Made when the first fact is saved.
        max_facts: So many facts a namespace keeps, the newest ones.
    """

    folder: Path | str
    max_facts: int = 1_000

    def load(self, namespace: str) -> Sequence[MemoryFact]:
        """The facts of a namespace.

        Raises:
            StateUnreadable: The file is damaged.
        """
        path = self._path(namespace)
        try:
            return Memory.from_json(path.read_bytes()).facts
        except FileNotFoundError:
            return ()
        except ValidationError as error:
            raise StateUnreadable(f"file {path.name}", str(error.errors(include_url=False)[0]["msg"])) from None

    def save(self, namespace: str, fact: MemoryFact) -> None:
        """Merge a fact into a namespace."""
        path = self._path(namespace)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock_file(path.with_suffix(".lock")):
            facts = merge_fact(self.load(namespace), fact)[-self.max_facts :]
            written = path.with_suffix(".new")
            with written.open("wb") as file:
                file.write(Memory(facts=facts).to_json())
                file.flush()
                os.fsync(file.fileno())
            written.replace(path)

    def _path(self, namespace: str) -> Path:
        return Path(self.folder) / f"{namespace}.json"


@contextmanager
def _lock_file(path: Path) -> Generator[None, None, None]:
    """Keep other processes out; the lock ends with the process."""
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
