"""Messages that are lost, doubled, late or old, and broker elements that are no messages of ours."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path

import redis

from support.lab import Lab
from support.verdict import Verdict
from support.wait import wait_until

STEPS_QUEUE = "celery_agents.steps"
CONTROL_QUEUE = "celery_agents.control"


def chaos(directory: Path, jobs: int, seed: int) -> Verdict:
    """A fifth doubled, a tenth dropped, a tenth late, and all of them once more at the end."""
    chance = random.Random(seed)
    env = {"CELERY_AGENTS_CONCURRENCY": "3"}  # few slots, so that there is a queue to play with
    with Lab(directory, env=env) as lab:
        lab.worker()
        lab.worker()
        meddler = _Meddler(lab, chance)
        with meddler:
            at_once = max(50, jobs // 10)
            for start in range(0, jobs, at_once):
                for _ in range(min(at_once, jobs - start)):
                    lab.submit(["keyed", "pure"], ["unsafe"], ["keyed_async"])
                lab.wait_for_jobs(120)
        verdict = lab.verdict()
        with lab.broker() as broker:
            for element in meddler.seen:
                broker.lpush(STEPS_QUEUE, element)
        wait_until(lambda: lab.queue_length() == 0, "the old messages are consumed", 120)
        time.sleep(0.5)
        again = lab.verdict()
        verdict.expect(again.counts == verdict.counts, "I1", f"old messages changed {again.counts - verdict.counts}")
        verdict.violations += again.violations
        verdict.counts.update(meddler.done)
        verdict.counts["replayed"] = len(meddler.seen)
    return verdict


class _Meddler:
    """Takes messages out of the queue before a worker does."""

    def __init__(self, lab: Lab, chance: random.Random) -> None:
        self._lab = lab
        self._chance = chance
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meddler", daemon=True)
        self.seen: set[bytes] = set()
        self.done: dict[str, int] = {"doubled": 0, "dropped": 0, "delayed": 0, "reordered": 0, "passed": 0}

    def __enter__(self) -> _Meddler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(10)

    def _run(self) -> None:
        late: list[tuple[float, bytes]] = []
        mine: set[bytes] = set()
        with self._lab.broker() as broker:
            while not self._ended.is_set() or late:
                for moment, element in list(late):
                    if moment <= time.monotonic() or self._ended.is_set():
                        broker.lpush(STEPS_QUEUE, element)
                        late.remove((moment, element))
                fresh = [e for e in broker.lrange(STEPS_QUEUE, 0, -1) if e not in mine]  # type: ignore[union-attr]
                self.seen.update(fresh)
                mine.update(fresh)
                for element in fresh:
                    self._meddle(broker, element, late)
                self._ended.wait(0.002)

    def _meddle(self, broker: redis.Redis, element: bytes, late: list[tuple[float, bytes]]) -> None:
        dice = self._chance.random()
        if dice < 0.2:
            broker.lpush(STEPS_QUEUE, element)
            self.done["doubled"] += 1
        elif dice < 0.5:
            if not broker.lrem(STEPS_QUEUE, 1, element):
                return
            if dice < 0.3:
                self.done["dropped"] += 1
            elif dice < 0.4:
                late.append((time.monotonic() + self._chance.uniform(0.2, 3), element))
                self.done["delayed"] += 1
            else:
                broker.rpush(STEPS_QUEUE, element)
                self.done["reordered"] += 1
        else:
            self.done["passed"] += 1


def hostile(directory: Path, random_elements: int, seed: int) -> Verdict:
    """Everything that ends a stock worker: each is quarantined with its reason, and the worker goes on."""
    chance = random.Random(seed)
    verdict = Verdict()
    with Lab(directory) as lab:
        worker = lab.worker()
        lab.submit(["keyed"])
        lab.wait_for_jobs(30)
        real = _real_message(lab)
        elements = _hostile(real)
        for number, (name, element) in enumerate(elements.items(), 1):
            _push(lab, [element])
            wait_until(
                lambda number=number: len(lab.client.store.housekeeping.list_dead(1000)) == number, f"{name} is quarantined", 20,
                details=worker.tail,
            )  # fmt: skip
        entries = lab.client.store.housekeeping.list_dead(1000)
        verdict.expect(
            len(entries) == len(elements), "quarantine", f"{len(entries)} entries of {len(elements)} elements"
        )
        verdict.expect(all(entry["reason"] for entry in entries), "quarantine", "an entry has no reason")
        verdict.expect(
            all(len(json.dumps(entry)) < 10_000 for entry in entries), "quarantine", "an entry is not capped"
        )
        verdict.counts["quarantined"] += len(entries)
        # The queue of control tasks is acknowledged late, which takes another way through kombu.
        _push(lab, list(elements.values()), CONTROL_QUEUE)
        with lab.broker() as broker:
            wait_until(lambda: broker.llen(CONTROL_QUEUE) == 0, "the control queue is empty", 60, details=worker.tail)
        verdict.expect(worker.alive, "workers", "the worker has ended")
        for start in range(0, random_elements, 500):
            count = min(500, random_elements - start)
            _push(lab, [_mutated(chance, real) for _ in range(count)])
            wait_until(lambda: lab.queue_length() == 0, "random elements are consumed", 120, details=worker.tail)
            verdict.counts["random_elements"] += count
            verdict.expect(worker.alive, "workers", "the worker has ended")
        lab.submit(["keyed"], ["unsafe"])
        lab.wait_for_jobs(60)
        verdict.expect(worker.alive, "workers", "the worker has ended")
        verdict.add(lab.verdict())
    return verdict


def _push(lab: Lab, elements: list[bytes], queue: str = STEPS_QUEUE) -> None:
    with lab.broker() as broker:
        broker.lpush(queue, *elements)


def _real_message(lab: Lab) -> bytes:
    """A message as it is, of a session that has nothing to do."""
    from celery_agents.tasks.app import create_app
    from celery_agents.tasks.publishing import StepPublisher
    from celery_agents.worker.store import StepRef

    publisher = StepPublisher(create_app(lab.client.settings), lab.client.settings)
    ((_, _, text),) = publisher.commands(StepRef("nobody", "nothing", 1), 0)
    return str(text).encode()


def _hostile(real: bytes) -> dict[str, bytes]:
    message = json.loads(real)

    def changed(**parts: object) -> bytes:
        return json.dumps({**message, **parts}).encode()

    def headed(**headers: object) -> bytes:
        return changed(headers={**message["headers"], **headers})

    def bodied(args: object, kwargs: object) -> bytes:
        import base64

        body = json.dumps([args, kwargs, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
        return changed(body=base64.b64encode(body.encode()).decode())

    return {
        "text": b"not json",
        "empty": b"",
        "list": b"[]",
        "object": b"{}",
        "number": b"17",
        "null": b"null",
        "string": b'"celery"',
        "nan": b"NaN",
        "invalid utf-8": b"\xff\xfe\x00" + real[:20],
        "nul bytes": b"\x00" * 100,
        "cut": real[: len(real) // 2],
        "depth bomb": b"[" * 100_000,
        "depth bomb closed": b"[" * 100_000 + b"]" * 100_000,
        "deep object": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        "huge": b'{"body": "' + b"x" * 6_000_000 + b'"}',
        "huge number": b'{"body": 1' + b"0" * 10_000 + b"}",
        "record": b"[1, 2, 3]",
        "record of nonsense": b'[{"body": 1}, "a", "b"]',
        "no headers": changed(headers=None),
        "headers a list": changed(headers=[]),
        "properties a text": changed(properties="x"),
        "no tag": changed(properties={**message["properties"], "delivery_tag": None}),
        "no delivery information": changed(properties={**message["properties"], "delivery_info": None}),
        "no id": headed(id=None),
        "id a list": headed(id=["x"]),
        "unknown task": headed(task="os.system"),
        "task a number": headed(task=7),
        "task an object": headed(task={"a": 1}),
        "pickle": changed(**{"content-type": "application/x-python-serialize", "body": "gASVAAAAAAAAAIwFcG9zaXg="}),
        "yaml": changed(**{"content-type": "application/x-yaml"}),
        "body not base64": changed(body="%%%"),
        "body not json": changed(body="bm90IGpzb24="),
        "body a number": changed(body="MQ=="),
        "body a deep list": changed(body=__import__("base64").b64encode(b"[" * 50_000).decode()),
        "bad encoding": changed(**{"content-encoding": "rot13"}),
        "no keywords": bodied([], {}),
        "positional": bodied(["nobody", "nothing", 1], {}),
        "wrong keywords": bodied([], {"session": "a"}),
        "step a text": bodied([], {"session_id": "nobody", "execution_id": "nothing", "step": "1"}),
        "step huge": bodied([], {"session_id": "nobody", "execution_id": "nothing", "step": 10**30}),
        "step true": bodied([], {"session_id": "nobody", "execution_id": "nothing", "step": True}),
        "path": bodied([], {"session_id": "../../x", "execution_id": "nothing", "step": 1}),
        "surrogate": bodied([], {"session_id": "\ud800", "execution_id": "nothing", "step": 1}),
        "session an object": bodied([], {"session_id": {"a": []}, "execution_id": "nothing", "step": 1}),
    }


def _mutated(chance: random.Random, real: bytes) -> bytes:
    """A message with bytes changed, cut out, doubled, or something else altogether."""
    dice = chance.random()
    if dice < 0.1:
        return chance.randbytes(chance.randrange(1, 200))
    data = bytearray(real)
    for _ in range(chance.randrange(1, 6)):
        place = chance.randrange(len(data))
        kind = chance.randrange(4)
        if kind == 0:
            data[place] = chance.randrange(256)
        elif kind == 1:
            del data[place : place + chance.randrange(1, 30)]
        elif kind == 2:
            data[place:place] = data[place : place + chance.randrange(1, 30)]
        else:
            data[place:place] = chance.choice([b'"', b"{", b"[", b"null", b"1e999", b"\\ud800", b"\x00", b"-1"])
        if not data:
            return b""
    return bytes(data)
