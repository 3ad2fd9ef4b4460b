"""Substitutions by hypothesis: each field of what a worker reads from outside, by a value of each type.

Elements of both queues, records of unacknowledged messages, remote control messages and stored values are drawn from
what is real, with one or two fields replaced. Real workers take them from a real Redis. No worker may end, grow or touch
the jobs of others, and what is not taken is named where doctor looks.
"""

from __future__ import annotations

import base64
import copy
import dataclasses
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

from celery_agents.tasks.app import create_app
from celery_agents.tasks.message_template import MessageTemplate
from celery_agents.tasks.observability.doctor.checks import examine
from celery_agents.worker.errors import CeleryAgentsError
from celery_agents.worker.store import StepRef, keys

from .inputs.examples import run_examples
from .inputs.extremes import json_values
from .waiting_prey import WaitingPrey
from support.agents import call, plan
from support.lab import Lab
from support.verdict import Verdict
from support.wait import wait_until
from support.waiting_agents import TOKEN_SECRET
from support.worker_process import WorkerProcess

KINDS: Final = ("step", "control", "unacked", "command", "stored")
WANTED: Final = (
    *(f"substituted_{kind}" for kind in KINDS), "named_in_doctor", "jobs_completed", "damaged_requests_refused",
)  # fmt: skip
"""Counts without which a run has shown nothing."""

STEPS, CONTROL = "celery_agents.steps", "celery_agents.control"
RECORDS, TIMES = f"{CONTROL}.unacked", f"{CONTROL}.unacked_index"
MOST_MEMORY: Final = 512 * 1024 * 1024
_AT_ONCE: Final = 200
_PREY: Final = "prey"  # a session that may be damaged
_THEIRS: Final = "theirs"
_FAR, _PAST = "2099-01-01T00:00:00+00:00", "2001-01-01T00:00:00+00:00"
_EMBED: Final = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}

Way = tuple[Any, ...]


@dataclass(frozen=True)
class Substitution:
    """One example.

    Attributes:
        kind: One of KINDS.
        base: Number of the real value; it is taken modulo their count.
        changes: For each the number of a field, modulo their count, and what stands there instead.
    """

    kind: str
    base: int
    changes: tuple[tuple[int, Any], ...]


_VICTIM: Final = "@victim"  # stands for the execution of an innocent job
_TEXTS: Final = (
    f"{_VICTIM}.1", f"{_VICTIM}.2", f"{_VICTIM}.3", f"{_VICTIM}.2.r1", _VICTIM,
    "celery.chord_unlock", "celery.group", "celery_agents.step", "celery_agents.submit",
    STEPS, CONTROL, "ca:{0}:due", "ca:agents", "_kombu.binding.celery", "celery.pidbox", "unacked", "celery", "foreign", "application/x-gzip", "application/x-python-serialize", "base64",
    _FAR, _PAST, "nobody.1", "x.2.r1", "\ud800", "\0", "../../x", "x" * 5_000, "{}", "inf", "nan", "-1", "1e999",
)  # fmt: skip
_SPECIAL: Final = st.sampled_from(
    (float("nan"), float("inf"), 2**63, -(2**31), 10**400, [], {}, [[]], {"": {}}, [None] * 3, {"__type__": "datetime"},
     {"__type__": "uuid", "__value__": "x"}, [1, None], [0.001, 0.001], [{"task": "celery.group", "args": [[]]}])
)  # fmt: skip
VALUES: Final = json_values | st.sampled_from(_TEXTS) | _SPECIAL
# Records come back ten in a second, so there are fewer of them.
_KINDS: Final = st.sampled_from(("step",) * 24 + ("control",) * 12 + ("command",) * 8 + ("stored",) * 5 + ("unacked",))
SUBSTITUTIONS: Final = st.builds(
    Substitution,
    _KINDS,
    st.integers(0, 1000),
    st.lists(st.tuples(st.integers(0, 10_000), VALUES), min_size=1, max_size=2).map(tuple),
)


def everything(directory: Path, examples: int, seed: int, *, pools: Sequence[str] = ("greenlets",)) -> Verdict:
    """So many substitutions, in batches, while jobs of others run."""
    verdict = Verdict()
    env = {"CELERY_AGENTS_TOKEN_SECRET": TOKEN_SECRET, "CELERY_AGENTS_CONTROL_TASKS": "all"}
    with Lab(directory, agents="support.agents,support.waiting_agents", env=env) as lab:
        lab.redis.set("ca:shards", 1)  # as in a store that is older than the default of today
        workers = [lab.worker(CELERY_AGENTS_POOL=pool) for pool in pools]
        siege = Siege(lab, workers, verdict)
        run_examples(verdict, "substitutions", examples, seed, SUBSTITUTIONS, siege.add)
        siege.flush()
        siege.end()
        verdict.add(lab.verdict(planned=False))
    return verdict


@dataclass
class Siege:
    """Writes batches of substitutions and looks at workers, innocent jobs and doctor after each."""

    lab: Lab
    workers: Sequence[WorkerProcess]
    verdict: Verdict
    batch: list[Substitution] = field(default_factory=list[Substitution])

    def __post_init__(self) -> None:
        settings = self.lab.client.settings
        self._material = Material(MessageTemplate(create_app(settings), settings, has_parent=False))
        self._broker = self.lab.broker()
        self._prey = self.lab.client.submit("planned", plan(), session_id=_PREY)
        self._prey.result(timeout=30)
        self._waiting = WaitingPrey(self.lab, self.verdict)
        self._innocent()

    def add(self, example: Substitution) -> None:
        """Judge one example together with the others of its batch."""
        self.batch.append(example)
        if len(self.batch) >= _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Write what was collected, and look what became of it."""
        # What is written over a key comes last: nobody else could write to it.
        for example in sorted(self.batch, key=_replaces_a_key):
            self._write(example)
            self.verdict.counts[f"substituted_{example.kind}"] += 1
        self.batch.clear()
        time.sleep(0.2)  # the workers meet what was written over a key
        self._mend()
        self._waiting.meet()
        self._innocent()
        wait_until(self._is_taken, "the elements are taken", 60, details=self._about)
        for worker in self.workers:
            self.verdict.expect(worker.alive, "workers", f"{worker.name} has ended: {worker.tail(30)}")
            self.verdict.expect(
                _memory(worker.pid) < MOST_MEMORY, "memory", f"{worker.name}: {_memory(worker.pid)} bytes"
            )
        assert all(worker.alive for worker in self.workers), self._about()

    def end(self) -> None:
        """Wait for the jobs of the others, and look where doctor looks."""
        self.lab.wait_for_jobs(60)
        wait_until(self._are_records_gone, "no record is left", 100, interval=0.5, details=self._about)
        time.sleep(6)  # the registry is renewed every five seconds
        refused = self._refused()
        dead = self.lab.client.store.housekeeping.list_dead(20_000)
        messages = [entry for entry in dead if entry["kind"] == "message"]
        self.verdict.expect(all(entry["reason"] for entry in dead), "named", "an entry has no reason")
        named = {finding.name for finding in examine(self.lab.client.settings)}
        left = self._strangers()
        for wanted in ("refused", "quarantined message", *(["index entry"] if left else [])):
            self.verdict.expect(wanted in named, "named", f"doctor does not say {wanted!r}: {sorted(named)}")
        if left:
            self._broker.zrem(keys.ShardKeys(0).due, *left)  # their time never comes
        limit = self.lab.client.settings.dead_kept
        others = len(dead) - len(messages)  # parked sessions, which take places of a full list
        lost = min(refused.get("element", 0), limit - others) - len(messages)
        self.verdict.expect(lost <= 0, "named", f"{lost} of {refused} refused elements are not in the dead list")
        self.verdict.counts["named_in_doctor"] += len(messages)
        for source, count in refused.items():
            self.verdict.counts[f"refused_{source.replace(' ', '_')}"] += count
        self._waiting.close()
        self._settle_victims()
        # What is written for nobody has no life of its own.
        self._broker.delete(
            keys.ShardKeys(0).session(_PREY).live,
            keys.FLEET.newest_tools(_THEIRS),
            keys.FLEET.tool_list(_THEIRS),
            *self._broker.keys(f"{_THEIRS}*"),
        )
        self._broker.close()

    def _settle_victims(self) -> None:
        """Stop what only substitutions keep due, or take its entry away where even a stop is refused.

        Fields that were written over may say that the prey runs, or is held for years. A submit that is still one may
        name an agent that no worker offers.
        """
        due, callbacks = keys.ShardKeys(0).due, keys.ShardKeys(0).callbacks
        stopped: list[bytes] = []
        innocent = {job.session_id for job in self.lab.jobs} | set(self._waiting.session_ids)
        for session_id in (member.decode() for member in self._broker.zrange(due, 0, -1)):
            if session_id in innocent:
                continue
            try:
                self.lab.client.stop(session_id, timeout=15)
                stopped.append(session_id.encode())
            except (CeleryAgentsError, TimeoutError):
                self.verdict.counts["damaged_prey_named"] += 1
                self._broker.zrem(due, session_id)
        # Their ends are told, too, and what is told to nobody is deleted below.
        wait_until(
            lambda: not any(name in entry for entry in self._broker.zrange(callbacks, 0, -1) for name in stopped),
            "the ends of what was stopped are told", 30, details=self._about,
        )  # fmt: skip

    def _are_records_gone(self) -> bool:
        """End the visibility timeout, an hour, of messages whose acknowledgement met a key that was written over."""
        is_left = False
        for records, times in (("unacked", "unacked_index"), (RECORDS, TIMES)):
            left: list[Any] = list(self._broker.hkeys(records))  # pyright: ignore[reportUnknownArgumentType]
            if left:
                self._broker.zadd(times, dict.fromkeys(left, 0))
            is_left = is_left or bool(left)
        return not is_left

    def _innocent(self) -> None:
        self.lab.submit(["keyed", "pure"], [call("unsafe", work=uuid.uuid4().hex, before=0.05)])

    def _strangers(self) -> list[bytes]:
        """Entries of the due index that were written for no session."""
        known = {job.session_id.encode() for job in self.lab.jobs} | {_PREY.encode()}
        known |= {session.encode() for session in self._waiting.session_ids}
        known |= {key.rpartition(b":s:")[2] for key in self._broker.scan_iter("ca:{0}:s:*", count=10_000)}  # forks
        return [member for member in self._broker.zrange(keys.ShardKeys(0).due, 0, -1) if member not in known]

    def _is_taken(self) -> bool:
        return not self._broker.llen(STEPS) and not self._broker.llen(CONTROL)

    def _refused(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for facts in self.lab.client.store.registry.workers().values():
            for source, found in facts["refused"].items():
                total[source] = total.get(source, 0) + found["count"]
        return total

    def _about(self) -> str:
        return "\n".join(worker.tail(30) for worker in self.workers)

    def _write(self, example: Substitution) -> None:
        match example.kind:
            case "step" | "control":
                queue = STEPS if example.kind == "step" else CONTROL
                self._broker.lpush(queue, self._material.element(self._aimed(example)))
            case "unacked":
                tag = uuid.uuid4().hex
                self._broker.hset("unacked", tag, self._material.record(example))
                self._broker.zadd("unacked_index", {tag: 1.0})
            case "command":
                self._broker.publish("/0.celery-agents.pidbox", self._material.command(example))
            case _:
                self._damage(example)

    def _aimed(self, example: Substitution) -> Substitution:
        """Aim a step at a job that runs. A wish may name it, too, and would be carried out: it goes astray."""
        victim = self.lab.jobs[-1].execution_id if example.kind == "step" else "nobody"
        changes = tuple(
            (number, value.replace(_VICTIM, victim) if isinstance(value, str) else value)
            for number, value in example.changes
        )
        return dataclasses.replace(example, changes=changes)

    def _damage(self, example: Substitution) -> None:
        """Write a value of any type into a field, an entry or a key of what is stored."""
        (number, value), *_ = example.changes
        raw = _raw(value)
        shard, prey = keys.ShardKeys(0), keys.ShardKeys(0).session(_PREY)
        score = value if type(value) in (int, float) and value == value and abs(value) < 1e300 else float("inf")
        writes: tuple[Callable[[], object], ...] = (  # the last one is that of `_replaces_a_key`
            lambda: self._broker.hset(prey.ctl, _PREY_FIELDS[number % len(_PREY_FIELDS)], raw),
            lambda: self._broker.zadd(shard.due, {raw: float(score)}),
            lambda: self._broker.zadd(shard.due, {_PREY: min(float(score), 1e12)}),
            lambda: self._broker.zadd(shard.sessions, {raw: float(score)}),
            lambda: self._broker.zadd(shard.callbacks, {raw: min(float(score), 1e12)}),
            lambda: self._broker.zadd(shard.ending, {raw: min(float(score), 1e12)}),
            lambda: self._broker.zadd(shard.delayed, {raw: float(score)}),
            lambda: self._broker.zadd(shard.unoffered, {raw: float(score)}),
            *(lambda damage=damage: damage(number, raw) for damage in self._waiting.damages),
            lambda: self._broker.zadd(shard.children, {raw: float(score)}),
            lambda: self._broker.zadd(shard.failed, {raw: float(score)}),
            lambda: self._broker.xadd(prey.live, {raw[:50] or b"x": raw}),
            lambda: self._broker.hset(prey.session, _PREY_HEADER[number % len(_PREY_HEADER)], raw),
            lambda: self._broker.set(keys.FLEET.newest_tools(_THEIRS), raw),
            lambda: self._broker.set(keys.FLEET.tool_list(_THEIRS), raw),
            lambda: self._broker.xadd(shard.dead, {raw[:50] or b"x": raw}),
            lambda: self._broker.xadd(prey.events, {raw[:50] or b"x": raw}),
            lambda: self._broker.hset(keys.FLEET.workers, raw[:50], raw),
            lambda: self._broker.hset(
                keys.FLEET.workers, "forged", json.dumps({"seen": time.time_ns() // 10**6, "agents": value})
            ),
            lambda: self._broker.hset(keys.FLEET.agents, raw[:50], raw),
            lambda: self._retype(_REPLACED[number % len(_REPLACED)], raw),
        )
        assert len(writes) == _DAMAGES
        writes[example.base % len(writes)]()

    def _retype(self, key: str, raw: bytes) -> None:
        self._broker.delete(key)
        self._broker.set(key, raw)

    def _mend(self) -> None:
        """Take away what was written over a key: the next batch is to find it as it was."""
        for key in _REPLACED:
            if self._broker.type(key) == b"string":
                self._broker.delete(key)


_DAMAGES: Final = 26


def _replaces_a_key(example: Substitution) -> bool:
    return example.kind == "stored" and example.base % _DAMAGES == _DAMAGES - 1


_PREY_FIELDS: Final = ("execution", "step", "claim", "phase", "attempts", "delays", "not_before", "published", "nudges",
                       "retries", "cancel", "delayed", "started", "worker", "legs", "held", "watched", "live",
                       "unoffered", "queue", "tasks")  # fmt: skip
_PREY_HEADER: Final = ("status", "version", "agent", "parent", "notify", "llm", "head", "rest", "definition", "result")
_REPLACED: Final = ("unacked", "unacked_index", RECORDS, TIMES, "ca:{0}:failed", "ca:{0}:callbacks", CONTROL, STEPS)


class Material:
    """Real messages, and the same with fields replaced."""

    def __init__(self, template: MessageTemplate) -> None:
        step = json.loads(template.message(StepRef("nobody", "nothing", 1), 0))
        self._steps = (step, {**step, "body": _body([], {}, _EMBED)})
        wishes = (
            ("celery_agents.stop", {"session_id": "nobody"}),
            ("celery_agents.retry", {"session_id": "nobody", "budget": {"max_steps": 3}}),
            ("celery_agents.submit", {"agent": "planned", "message": plan(), "idempotency_key": "fuzz"}),
            ("celery_agents.answer", {"session_id": "nobody", "answers": {"r": {"approve": True}}, "by": "x"}),
            ("celery_agents.answer_by_token", {"token": "x.y", "answer": {"deny": "no"}, "note": "z"}),
            ("celery_agents.complete", {"token": "x.y", "value": {"a": [1]}, "by": "x"}),
            ("celery_agents.fail", {"token": "x.y", "error": "e"}),
            ("celery_agents.suspend", {"session_id": "nobody", "reason": "r", "until": _FAR}),
            ("celery_agents.resume", {"session_id": "nobody", "by": "x"}),
            ("celery_agents.delete", {"session_id": "nobody", "expected_version": 1, "by": "x"}),
            ("celery_agents.fork", {"session_id": _PREY, "idempotency_key": "fuzz", "expected_version": None}),
            ("celery_agents.clear", {"session_id": _PREY, "expected_version": None}),
            (
                "celery_agents.submit",
                {
                    "agent": "planned",
                    "message": plan(),
                    "idempotency_key": "told",
                    "on_complete": {"task": "x", "options": {"queue": _THEIRS, "priority": 3}},
                },
            ),
        )
        self._wishes = tuple(
            {**step, "headers": {**step["headers"], "task": name, "id": "wish", "kwargsrepr": "x"},
             "body": _body([], kwargs, _EMBED)}
            for name, kwargs in wishes
        )  # fmt: skip

    def element(self, example: Substitution) -> str:
        """A message of a queue; one in ten has something else in its body."""
        bases = self._steps if example.kind == "step" else self._wishes
        base = copy.deepcopy(bases[example.base % len(bases)])
        base["properties"]["delivery_tag"] = uuid.uuid4().hex
        base["body"] = json.loads(base64.b64decode(base["body"]))
        changed = _substitute(base, example.changes)
        if isinstance(changed, dict) and not isinstance(changed.get("body"), str):
            changed["body"] = base64.b64encode(json.dumps(changed.get("body")).encode()).decode()
        return json.dumps(changed)

    def record(self, example: Substitution) -> str:
        """A record of an unacknowledged message."""
        message = copy.deepcopy(self._wishes[0])
        return json.dumps(_substitute([message, CONTROL, CONTROL], example.changes))

    def command(self, example: Substitution) -> str:
        """A remote control message. A shutdown is carried out, and stands in none of them."""
        method, arguments = _COMMANDS[example.base % len(_COMMANDS)]
        body = {
            "method": method, "arguments": dict(arguments), "destination": None, "pattern": None, "matcher": None,
            "reply_to": {"exchange": "reply.celery-agents.pidbox", "routing_key": "nobody"}, "ticket": "1",
        }  # fmt: skip
        message = {
            "body": body, "content-type": "application/json", "content-encoding": "utf-8", "headers": {"clock": 1},
            "properties": {"body_encoding": "base64", "delivery_tag": uuid.uuid4().hex, "priority": 0,
                           "delivery_info": {"exchange": "celery-agents.pidbox", "routing_key": ""}},
        }  # fmt: skip
        changed = _substitute(message, example.changes)
        if isinstance(changed, dict) and not isinstance(changed.get("body"), str):
            changed["body"] = base64.b64encode(json.dumps(changed.get("body")).encode()).decode()
        return json.dumps(changed)


_COMMANDS: Final[Sequence[tuple[str, Mapping[str, Any]]]] = (
    ("ping", {}), ("revoke", {"task_id": "nobody.1", "terminate": True, "signal": "SIGTERM"}),
    ("terminate", {"signal": "SIGTERM", "task_id": ["nobody.2"]}), ("add_consumer", {"queue": "foreign"}),
    ("rate_limit", {"task_name": "celery_agents.step", "rate_limit": "1/h"}), ("pool_grow", {"n": 10**9}),
    ("time_limit", {"task_name": "celery_agents.step", "soft": 1, "hard": 2}), ("pool_shrink", {"n": 10**9}),
    ("query_task", {"ids": ["nobody.1"]}), ("autoscale", {"max": 10**9, "min": 10**9}), ("active", {"safe": True}),
    ("registered", {"taskinfoitems": ["name"]}), ("hello", {"from_node": "x", "revoked": {"nobody.1": 1}}),
    ("election", {"id": "x", "topic": "y", "action": None}), ("conf", {"with_defaults": True}), ("stats", {}),
    ("revoke_by_stamped_headers", {"headers": {"x": ["y"]}}), ("enable_events", {}), ("nothing", {"a": 1}),
)  # fmt: skip


def _body(args: object, kwargs: object, embed: object) -> str:
    return base64.b64encode(json.dumps([args, kwargs, embed]).encode()).decode()


def _paths(value: Any, at: Way = ()) -> list[Way]:
    """Where something can be replaced: every key of every object, every item of every list, and one new key each."""
    found: list[Way] = []
    if isinstance(value, dict):
        found += [(*at, name) for name in ("expires", "embed", "new", *value)]
        for name, inner in value.items():
            found += _paths(inner, (*at, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += [(*at, index), *_paths(inner, (*at, index))]
    return found


def _substitute(value: Any, changes: Sequence[tuple[int, Any]]) -> Any:
    for number, replacement in changes:
        paths = _paths(value)
        if not paths:
            return value
        *way, last = paths[number % len(paths)]
        holder = value
        for part in way:
            holder = holder[part]
        holder[last] = copy.deepcopy(replacement)
    return value


def _raw(value: Any) -> bytes:
    """A value as somebody would write it to Redis."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    return json.dumps(value).encode()


def _memory(pid: int) -> int:
    """Resident bytes of a process; 0 when it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:")), 0)
