"""Describes what a step asks its model, so that it can be read later: agent, model, prompt, tools, settings, messages.

The usual messages are not described: the record of the step tells which ones were there.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Final

from pydantic_core import to_json

from ..concurrency.fibers import bounded
from ..known_secrets import redact_known, redact_known_in, redact_known_json
from ..redaction import describe_exception
from ..state.conversation.compilers import ConversationWithCurrentToolTrace
from ..state.past.chosen_messages import describe_chosen
from ..store.asked import Asked
from ..tools.toolset import ToolSpec
from .run import Run
from .run_values import Question

log = logging.getLogger(__name__)

NOT_ASKED: Final = Asked(to_json({"not_asked": True}), {})
"""A step without a question to the model."""

_UNKNOWN: Final = Asked(to_json({"unknown": True}), {})

_NO_SETTINGS: Final[Mapping[str, Any]] = {}
_MOST_CHOSEN: Final = 100_000
"""Bytes of messages that are nowhere else, such as those of a hook; more are not kept."""


class _Tools:
    """A tuple of tools that is found again by its identity: it is the same in each step, and long to compare."""

    __slots__ = ("specs",)

    def __init__(self, specs: tuple[ToolSpec, ...]) -> None:
        self.specs = specs

    def __hash__(self) -> int:
        return id(self.specs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Tools) and self.specs is other.specs


def describe_asked(run: Run) -> Asked:
    """Describe the question of a run."""
    question = run.obtained.question
    if isinstance(question, Asked):
        return question
    if question is None or run.obtained.response is None or run.obtained.is_given or not question.is_asked:
        return NOT_ASKED
    return describe_question(run, question)


def describe_question(run: Run, question: Question) -> Asked:
    """Describe a question of a run, whether it is answered or not."""
    try:
        return _describe_with(run, question, bounded(_choose_messages, run, question))
    except Exception as error:  # noqa: BLE001 - of a compiler of the user's, for a driver that reads no messages
        described = describe_exception(error).message
        log.warning("what session %s has asked its model cannot be described: %s", run.ref.session_id, described)
        return _UNKNOWN


def _describe_with(run: Run, question: Question, chosen: bytes | None) -> Asked:
    if chosen is None and question.sent is None and not question.is_of_another and _has_usual_settings(question):
        request = question.request
        return _describe_usual(request.state.system_prompt, _Tools(request.tools), run.agent.name, run.model)
    facts, texts = _describe(question)
    facts |= {"agent": run.agent.name, "model": facts.get("model") or run.model}
    if chosen is not None and len(chosen) > _MOST_CHOSEN:
        facts["too_long"] = True
    elif chosen is not None:
        texts.append(_digest(chosen))
        facts["messages"] = texts[-1][0]
    if question.is_of_another:
        facts["again"] = True
    return Asked(to_json(facts), dict(texts))


def _has_usual_settings(question: Question) -> bool:
    """Whether a question has the settings of its agent, and asks for a text."""
    request = question.request
    return request.settings is None and request.state.context.response_format is None


@lru_cache(maxsize=256)
def _describe_usual(prompt: str, tools: _Tools, agent: str, model: str) -> Asked:
    """Describe a question of which all else is usual: steps ask the same again and again."""
    texts = [_digest_of_text(prompt), _digest_of_tools(tools)]
    facts = {"model": model, "prompt": texts[0][0], "tools": texts[1][0], "agent": agent}
    return Asked(to_json(facts), dict(texts))


def _describe(question: Question) -> tuple[dict[str, Any], list[tuple[str, bytes]]]:
    """The facts of a question, apart from its messages, and the texts that they name."""
    sent, request = question.sent, question.request
    if sent is not None:
        prompt, tools = _digest_of_text(sent.prompt), _digest(redact_known_json(to_json(sent.tools).decode()).encode())
        model, settings, shape = sent.model, sent.settings, sent.response_format
    else:
        prompt, tools = _digest_of_text(request.state.system_prompt), _digest_of_tools(_Tools(request.tools))
        wanted, own = request.state.context.response_format, request.settings
        model, settings = (own.model, own.settings) if own is not None else (None, _NO_SETTINGS)
        shape = None if wanted is None else wanted.to_dict()
    facts = {
        "model": model,
        "prompt": prompt[0],
        "tools": tools[0],
        **({"settings": redact_known_in(settings)} if settings else {}),
        **({"response_format": shape} if shape else {}),
    }
    return facts, [prompt, tools]


def _choose_messages(run: Run, question: Question) -> bytes | None:
    """Describe the messages; None for the usual ones of those that the record of the step tells."""
    request, sent = question.request, question.sent
    store, seen = request.state.store, run.seen_extents
    if sent is not None and sent.messages is not None:
        messages = sent.messages
    elif (
        request.replaced_messages is None
        and type(request.compiler) is ConversationWithCurrentToolTrace
        and store.extents == seen
    ):
        return None
    else:
        messages = request.messages
    return redact_known_json(to_json(describe_chosen(messages, store, seen)).decode()).encode()


@lru_cache(maxsize=256)
def _digest_of_text(text: str) -> tuple[str, bytes]:
    return _digest(to_json(redact_known(text)))


@lru_cache(maxsize=256)
def _digest_of_tools(tools: _Tools) -> tuple[str, bytes]:
    return _digest(redact_known_json(to_json([asdict(each) for each in tools.specs]).decode()).encode())


def _digest(content: bytes) -> tuple[str, bytes]:
    return hashlib.sha256(content).hexdigest()[:16], content
