"""Workers that are killed while they write, and readers that stay, come late, or leave and come back at random."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

from celery_agents.tasks.client.stream_items import StreamItem, Transcript
from celery_agents.worker.store import LiveDelta

from support.lab import Lab
from support.model_agents import KEY_NAME
from support.verdict import Verdict

AT_ONCE = 40
_QUIET_SECONDS = 60.0
_ENV = {
    KEY_NAME: "sk-test",  # of an agent beside the one that writes
    "CELERY_AGENTS_CONCURRENCY": str(AT_ONCE),
    # A step whose worker is killed again and again is no poison here.
    "CELERY_AGENTS_ATTEMPTS_LIMIT": "100",
    "CELERY_AGENTS_SUSPECT_ATTEMPTS": "90",
}


def kill_writers(directory: Path, streams: int, seed: int, *, kill_seconds: float, timeout: float = 120.0) -> Verdict:
    """Follow streams by three readers each, while workers are killed; what each reader has is judged at the end.

    Args:
        kill_seconds: Between two kills, on average.
        timeout: Seconds in which workers are killed for one lot of `AT_ONCE` streams, at most.
    """
    verdict, chance = Verdict(), random.Random(seed)
    with Lab(directory, agents="support.live_agents", env=_ENV) as lab:
        for number in range(2):
            lab.worker(wait=number == 0)
        while verdict.counts["streams"] < streams:
            count = min(AT_ONCE, streams - verdict.counts["streams"])
            verdict.add(_run_lot(lab, count, chance, kill_seconds, timeout))
    return verdict


def _run_lot(lab: Lab, count: int, chance: random.Random, kill_seconds: float, timeout: float) -> Verdict:
    verdict = Verdict()
    sessions = [lab.client.submit("writing", "write").session_id for _ in range(count)]
    readers = [
        _Reader(lab, session, random.Random(chance.random()), kind) for session in sessions for kind in _Reader.KINDS
    ]
    ends = time.monotonic() + timeout
    while any(reader.is_reading for reader in readers) and time.monotonic() < ends:
        time.sleep(chance.uniform(0.5, 1.5) * kill_seconds)
        doomed = chance.choice([worker for worker in lab.workers if worker.alive])
        doomed.kill()
        verdict.counts["kills"] += 1
        lab.worker(wait=False)
    quiet = time.monotonic() + _QUIET_SECONDS  # on a machine that is busy, workers die faster than they write
    while any(reader.is_reading for reader in readers) and time.monotonic() < quiet:
        time.sleep(0.2)
    for reader in readers:
        reader.judge(lab, verdict)
    verdict.counts["streams"] += count
    return verdict


class _Reader:
    """A reader of one stream, in a thread of its own.

    Attributes:
        KINDS: "stays" from the first event on, "late" comes in the middle, "leaves" again and again.
    """

    KINDS = ("stays", "late", "leaves")

    def __init__(self, lab: Lab, session_id: str, chance: random.Random, kind: str) -> None:
        self.session_id, self.kind = session_id, kind
        self._chance = chance
        self._job = lab.client.job(session_id)
        self._shown = Transcript()
        self._written: dict[tuple[str, int], list[LiveDelta]] = {}
        self._counts = {"pieces": 0, "voids": 0, "returns": 0}
        self._error = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_reading(self) -> bool:
        return self._thread.is_alive()

    def judge(self, lab: Lab, verdict: Verdict) -> None:
        """Compare what it shows with what is stored."""
        self._thread.join(0.1)
        about = f"{self.kind} reader of {self.session_id}"
        verdict.expect(not self.is_reading and not self._error, "reader", f"{about}: {self._error or 'reads on'}")
        execution = lab.client.show(self.session_id).state.execution
        assert execution is not None
        stored = {
            (execution.execution_id, each.step.number): each.step.inference_response.content
            for each in execution.step_executions
        }
        verdict.expect(self._shown.committed == stored, "equal", f"{about}: {self._shown.committed} != {stored}")
        verdict.expect(self._shown.written() == "", "void", f"{about} shows {self._shown.written()!r}")
        for place, text in stored.items() if self.kind == "stays" else ():
            pieces = self._written.get(place, [])
            said = "".join(each.text for each in pieces if each.attempt == pieces[-1].attempt)
            verdict.expect(not pieces or said == text, "missing", f"{about}, step {place[1]}: {said!r} != {text!r}")
            verdict.counts["steps seen while written"] += bool(pieces)
        for name, number in self._counts.items():
            verdict.counts[name] += number

    def _run(self) -> None:
        try:
            if self.kind == "late":
                time.sleep(self._chance.uniform(0.2, 3.0))
            cursor: str | None = None
            while not self._read(cursor):
                cursor = self._cursor
                self._counts["returns"] += 1
                time.sleep(self._chance.uniform(0.0, 1.0))
        except Exception as error:
            self._error = f"{type(error).__name__}: {error}"

    def _read(self, cursor: str | None) -> bool:
        """Read until the end; False when it left before."""
        left = self._chance.randint(1, 25) if self.kind == "leaves" else -1
        self._cursor = cursor
        for item in self._job.stream(cursor, timeout=200):
            self._take(item)
            left -= 1
            if not left:
                return False
        return True

    def _take(self, item: StreamItem) -> None:
        self._shown.apply(item)
        self._cursor = item.cursor
        if item.delta is not None and item.delta.part == "text":
            self._counts["pieces"] += 1
            self._written.setdefault((item.delta.execution_id, item.delta.step), []).append(item.delta)
        if item.event is not None and item.event.type == "attempt_voided":
            self._counts["voids"] += 1
