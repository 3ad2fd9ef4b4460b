"""Answers of models drawn at random, against a provider that refuses what the real ones refuse.

Each run is a session of an agent of ours or of pydantic-ai, on OpenAI's or Anthropic's interface, followed or not. Its
model gives odd ids, names, arguments, texts and reasons, and streams that are cut at any byte. Then must hold:

    nothing refused      the provider takes every request
    no dead session      `retry` or a message brings each session to an answer
    no call of its own   every tool call that ran was in an answer that came whole
    watching is free     the same answers come to the same end, streamed or not
"""

from __future__ import annotations

import json
import os
import random
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from celery_agents import Job
from celery_agents.worker.engine import Done, RetryLater
from celery_agents.worker.store import Result

from support.answer_agents import KEYS, PLAIN, own_agents, pydantic_agents
from support.engine import Bench
from support.lab import Lab as RealProcesses
from support.odd_tools import HALF
from support.pydantic_found import found
from support.strict_provider import Body, Call, Reply, StrictProvider, is_anthropic
from support.verdict import Verdict

KINDS: Final = ("own_openai", "own_anthropic", "pai_openai", "pai_anthropic")
WANTED: Final = (
    *(f"runs_{kind}_{how}" for kind in KINDS for how in ("streamed", "whole")),
    "calls_run", "cut_answers", "continued_by_retry", "continued_by_message", "compared", "in_worker_processes",
)  # fmt: skip
_RUNS_OF_A_LAB: Final = 40
"""Few enough that many tools are drawn."""
_MARK: Final = re.compile(r"run (\d+)")

_TEXTS: Final = (
    None, "", " ", "\n\n", "ok", "ü 😀", f"half {HALF}", f"{HALF}\ude00", "\x00", "{", "NaN", "x" * 3000, "<|channel|>",
)  # fmt: skip
_IDS: Final = (
    "same",
    "same",
    "call_0",
    "functions.note:0",
    "a b",
    "",
    "ü",
    f"i{HALF}",
    "i" * 90,
    "same_2",
    "x|y",
    "0",
)
_NAMES: Final = (
    *("note",) * 12, "look", "look", *(f"odd {n}" for n in range(12)), "browser.tabs.open", "$note", "note<|channel|>json", "note ", "", "n" * 200,
    "1", "ü", f"n{HALF}", "final_result", "answer_again",
)  # fmt: skip
_NUMBERS: Final = (
    "1",
    "NaN",
    "-Infinity",
    "1e999",
    "[1, 1e400]",
    "1" + "0" * 5000,
    "[" * 150 + "]" * 150,
    "null",
    '"NaN"',
)
_FINISHES: Final = {
    False: ("stop", "tool_calls", "length", "content_filter", "brand_new", "function_call", None),
    True: ("end_turn", "tool_use", "max_tokens", "refusal", "stop_sequence", "model_context_window_exceeded", "brand_new"),
}  # fmt: skip


@dataclass
class Plan:
    """What the model of one session answers, request by request; afterwards it says "done".

    Attributes:
        asked: The marks of calls in answers that came whole.
    """

    replies: list[Reply]
    asked: set[str] = field(default_factory=set[str])

    def next(self, body: Body) -> Reply:
        reply = self.replies.pop(0) if self.replies else Reply("done", finish=_end(body))
        reply = replace(reply, calls=tuple(_as_sent(each, body) for each in reply.calls))
        if reply.cut is not None:
            reply = replace(reply, cut=reply.cut % max(1, len(reply.written(body))))
        is_whole = reply.says_its_end(body) or (reply.cut is None and not body.get("stream"))
        if is_whole:
            self.asked |= {mark for each in reply.calls for mark in re.findall(r"mark-[\d-]+", each.args)}
        return reply


def _end(body: Body) -> str:
    return "end_turn" if is_anthropic(body) else "stop"


def _as_sent(call: Call, body: Body) -> Call:
    """A call of an odd tool by the names that the request has for it and its first argument."""
    if not call.name.startswith("odd "):
        return call
    tools = [each.get("function", each) for each in body.get("tools") or ()]
    odd = [each for each in tools if each["name"] not in PLAIN]
    given = odd[int(call.name.removeprefix("odd ")) % len(odd)]
    keys = list((given.get("parameters") or given.get("input_schema") or {}).get("properties") or ["text"])
    key = "text" if "text" in keys else keys[0]
    return Call(call.id, given["name"], call.args.replace('"text"', json.dumps(key)))


def draw_plan(draw: random.Random, number: int, *, anthropic: bool, odd_ends: bool) -> Plan:
    """What a model answers.

    Args:
        odd_ends: Streams are cut, and reasons are missing.
    """
    replies: list[Reply] = []
    for turn in range(draw.randint(1, 3)):
        calls = tuple(
            _draw_call(draw, f"mark-{number}-{turn}-{index}") for index in range(draw.choice((0, 1, 1, 2, 3)))
        )
        finish = (
            draw.choice(_FINISHES[anthropic]) if draw.random() < 0.4 else ("tool_use" if anthropic else "tool_calls")
        )
        if finish is None and not odd_ends:
            finish = "stop"
        whole = Reply(draw.choice(_TEXTS), calls, finish)
        if odd_ends and draw.random() < 0.5:
            again = tuple(replace(each, args=each.args.replace("mark-", "mark-9")) for each in calls)
            replies.append(replace(whole, calls=again, cut=draw.randrange(10**6), is_clean_cut=draw.random() < 0.5))
        replies.append(whole)
    return Plan(replies)


def _draw_call(draw: random.Random, mark: str) -> Call:
    text = json.dumps(draw.choice((mark, mark, mark, f"{mark} {HALF}", f" {mark}")))
    args = f'{{"text": {text}}}'
    if draw.random() < 0.3:
        args = f'{{"text": {text}, "n": {draw.choice(_NUMBERS)}}}'
    if draw.random() < 0.2:
        args = draw.choice(
            (args[: draw.randrange(len(args))], "", "[]", "null", f"[{text}]", text, args + "}", f"```{args}")
        )
    return Call(draw.choice(_IDS), draw.choice(_NAMES), args)


class _AskedProvider:
    """The provider, which answers each session by its plan.

    Attributes:
        plans: By the number of the session.
        ran: What the calls that ran were given.
    """

    def __init__(self) -> None:
        self.plans: dict[int, Plan] = {}
        self.ran: list[str] = []
        self.provider = StrictProvider(self._answer, keeps_requests=False).__enter__()

    def _answer(self, body: Body) -> Reply:
        numbers = _MARK.findall(json.dumps(body["messages"]))
        return self.plans[int(numbers[-1])].next(body)

    def close(self) -> None:
        self.provider.__exit__()


class Lab(_AskedProvider):
    """The four agents on an engine in this process, with odd tools that are drawn by the seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._keys = patch.dict(os.environ, KEYS)
        self._keys.start()
        url, draw = self.provider.url, random.Random(seed)
        own = own_agents(url, self.ran.append, draw)
        agents = [*own, *map(found, pydantic_agents(url, self.ran.append, draw))]
        self.agents = dict(zip(KINDS, agents, strict=True))
        self.bench = Bench(*self.agents.values(), driver_attempts=3)
        self.record, self.retry, self.send = self.bench.record, self.bench.retry, self.bench.send

    def close(self) -> None:
        self.bench.close()
        self._keys.stop()
        super().close()

    def submit(self, kind: str, text: str) -> str:
        return self.bench.submit(text, agent=self.agents[kind])

    def advance(self, session: str, *, streamed: bool) -> str | None:
        """Run steps until none is due; what went wrong with the engine, or None."""
        for _ in range(40):
            if self.bench.due(session) is None:
                return None
            if streamed:
                self.bench.store.live.keep_followed(session)
            outcome = self.bench.step(session)
            if isinstance(outcome, RetryLater):
                self.bench.clock.go_on(outcome.seconds)
            elif not isinstance(outcome, Done):
                return f"a step came to {outcome!r}"[:300]
        return "it does not end"


class RealLab(_AskedProvider):
    """The same agents in a worker process, on a Redis."""

    def __init__(self, seed: int, directory: Path) -> None:
        super().__init__()
        self._file = directory.parent / f"{directory.name}.ran"
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text("")
        env = {
            **KEYS,
            "TEST_ANSWERS_URL": self.provider.url,
            "TEST_ANSWERS_RAN": str(self._file),
            "TEST_ANSWERS_SEED": str(seed),
            "CELERY_AGENTS_RETRY_LATER_SECONDS": "0.05",
        }
        self._lab = RealProcesses(directory, agents="support.answer_agents", env=env).__enter__()
        self._worker = self._lab.worker()
        for kind in KINDS:
            self._lab.client.wait_for_agent(kind)
        self._jobs: dict[str, Job] = {}

    def close(self) -> None:
        self._lab.__exit__()
        super().close()

    def submit(self, kind: str, text: str) -> str:
        job = self._lab.client.submit(kind, text)
        self._jobs[job.session_id] = job
        return job.session_id

    def retry(self, session: str) -> None:
        self._jobs[session] = self._lab.client.retry(session)

    def send(self, session: str, text: str) -> None:
        self._jobs[session] = self._lab.client.send_message(session, text)

    def advance(self, session: str, *, streamed: bool) -> str | None:
        """Wait for the end of the newest execution; what went wrong, or None."""
        if streamed:
            self._lab.client.store.live.keep_followed(session)
        try:
            self._jobs[session].result(timeout=60)
        except TimeoutError as late:
            return str(late)
        self.ran += map(json.loads, self._file.read_text().splitlines())
        self._file.write_text("")
        return None if self._worker.alive else "the worker has ended"

    def record(self, session: str) -> Result:
        return self._jobs[session].result(timeout=60)


@dataclass(frozen=True)
class Ended:
    """How a session ended first, as far as watching must not change it."""

    status: str
    answer: str
    finish: str
    usage: Any


@dataclass(frozen=True)
class Run:
    """One session.

    Attributes:
        number: Its mark in what is said.
    """

    lab: Lab | RealLab
    verdict: Verdict
    kind: str
    streamed: bool
    number: int

    def to_end(self, plan: Plan) -> Ended:
        """Run the session and go on with it until the model says "done"."""
        lab, verdict = self.lab, self.verdict
        lab.plans[self.number] = plan
        lab.ran.clear()
        verdict.counts[f"runs_{self.kind}_{'streamed' if self.streamed else 'whole'}"] += 1
        verdict.counts["cut_answers"] += sum(each.cut is not None for each in plan.replies)
        session = lab.submit(self.kind, f"run {self.number}")
        self._advance(session)
        first = lab.record(session)
        finish = str(first.finish_reason)
        ended = Ended(first.status, first.final_response, finish, first.usage)
        self._continue(session, plan)
        self._expect(not lab.provider.refused, "nothing refused", str(lab.provider.refused[:1]))
        lab.provider.refused.clear()
        marks = {mark for text in lab.ran for mark in re.findall(r"mark-[\d-]+", text)}
        self._expect(marks <= plan.asked, "no call of its own", f"{marks - plan.asked}")
        verdict.counts["calls_run"] += len(lab.ran)
        del lab.plans[self.number]
        return ended

    def _continue(self, session: str, plan: Plan) -> None:
        lab = self.lab
        if lab.record(session).status == "failed":
            plan.replies.clear()
            lab.retry(session)
            self._advance(session)
            if lab.record(session).status == "completed":
                self.verdict.counts["continued_by_retry"] += 1
        plan.replies.clear()
        lab.send(session, f"again, run {self.number}")
        self._advance(session)
        last = lab.record(session)
        self._expect(
            last.final_response == "done", "no dead session", f"{last.status} {last.errors} {last.final_response!r}"
        )
        self.verdict.counts["continued_by_message"] += 1

    def _advance(self, session: str) -> None:
        trouble = self.lab.advance(session, streamed=self.streamed)
        self._expect(trouble is None, "no dead session", str(trouble))

    def _expect(self, holds: bool, invariant: str, text: str) -> None:
        self.verdict.expect(
            holds, invariant, f"{self.kind} {'streamed' if self.streamed else 'whole'} {self.number}: {text[:2000]}"
        )


def everything(runs: int, seed: int, directory: Path) -> Verdict:
    """So many sessions, one in a hundred of them in a worker process; the same for the same seed."""
    verdict, number = Verdict(), seed * 10**6
    for first in range(0, max(8, runs // 100), _RUNS_OF_A_LAB):
        lab = RealLab(number + first, directory / f"answers-{first}")
        try:
            for each in range(first, min(first + _RUNS_OF_A_LAB, max(8, runs // 100))):
                _one_real_plan(lab, verdict, number - 1 - each)
        finally:
            lab.close()
    while runs > 0:
        lab = Lab(number)
        try:
            for _ in range(min(runs, _RUNS_OF_A_LAB) // 2 or 1):
                number += 1
                runs -= _one_plan(lab, verdict, number)
        finally:
            lab.close()
        if len(verdict.violations) > 20:
            break
    return verdict


def _one_real_plan(lab: RealLab, verdict: Verdict, number: int) -> None:
    draw = random.Random(number)
    kind, streamed, odd_ends = draw.choice(KINDS), draw.random() < 0.5, draw.random() < 0.5
    plan = draw_plan(draw, number, anthropic="anthropic" in kind, odd_ends=odd_ends)
    Run(lab, verdict, kind, streamed, number).to_end(plan)
    verdict.counts["in_worker_processes"] += 1


def _one_plan(lab: Lab, verdict: Verdict, number: int) -> int:
    """Run one plan, and where it has no cuts, once more with the other way of watching; how many sessions that were."""
    draw = random.Random(number)
    kind, streamed, odd_ends = draw.choice(KINDS), draw.random() < 0.5, draw.random() < 0.5
    state = draw.getstate()

    def plan() -> Plan:
        draw.setstate(state)
        return draw_plan(draw, number, anthropic="anthropic" in kind, odd_ends=odd_ends)

    first = Run(lab, verdict, kind, streamed, number).to_end(plan())
    if odd_ends or not all(_is_object(each.args) for reply in plan().replies for each in reply.calls):
        return 1
    other = Run(lab, verdict, kind, not streamed, number).to_end(plan())
    verdict.counts["compared"] += 1
    verdict.expect(first == other, "watching is free", f"{kind} {number}: {first} {other}"[:2000])
    return 2


def _is_object(args: str) -> bool:
    """Whether both ways of writing an answer can say these arguments."""
    try:
        return isinstance(json.loads(args), dict)
    except ValueError:
        return False
