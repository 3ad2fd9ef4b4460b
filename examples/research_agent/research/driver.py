"""The research without a model: a deterministic function of the state, as `FunctionDriver` takes it.

First it lists the files and searches for the question and its words, then it reads the best places side by side, then
it answers with what it read. A message that arrives meanwhile makes it look again, for both questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from celery_agents.worker.drivers import CallTool
from celery_agents.worker.state import AgentState, Message, Role, ToolExecution, ToolOutcome

from .answer import ENOUGH, answered, best_quotes, nothing_found
from .findings import Range, Search, Weights, read_passages, worth_reading
from .words import query_terms, stem, terms, words

MAX_READS: Final = 5
_MAX_QUESTION_CHARS: Final = 2_000
_WORD_SEARCHES: Final = 3
_WORD_HITS: Final = 4


@dataclass(frozen=True)
class Findings:
    """The results of the tools since the last question."""

    file_count: int
    searches: tuple[Search, ...]
    reads: tuple[Mapping[str, Any], ...]
    problems: tuple[str, ...]
    """What failed, in the tools' words."""
    calls: int

    def about(self, question: str) -> tuple[Search, ...]:
        """The search for the question, then those for its words; empty when it was not searched for."""
        single = {word.lower() for word in words(question)}
        whole = [search for search in self.searches if search.query == question]
        return (*whole[:1], *(each for each in self.searches if each.query.lower() in single)) if whole else ()


def research(state: AgentState) -> str | list[CallTool]:
    """The next step: calls of tools, or the answer."""
    questions, found = open_questions(state), findings(state)
    return next_calls(questions, found) or final_answer(questions, found)


def next_calls(questions: Sequence[str], found: Findings) -> list[CallTool]:
    """Tools to call next; none when it is time to answer."""
    if not questions or found.reads or found.problems:
        return []
    if found.calls == 0:
        searches = [call for question in questions for call in _searches(question)]
        return [CallTool("list_files"), *searches]
    ranges = [each for question in questions for each in _ranges(found.about(question))]
    return [
        CallTool("read_file", file=each.file, first_line=each.first, last_line=each.last)
        for each in dict.fromkeys(ranges)
    ]


def final_answer(questions: Sequence[str], found: Findings) -> str:
    """The answer to what was read; says so where nothing was found or a tool failed."""
    if not questions:
        return "Ask me something about the files of the folder."
    if found.problems and not found.reads:
        return f"I could not look into the files: {found.problems[0]}"
    return "\n\n".join(_answer(question, found) for question in questions)


def open_questions(state: AgentState) -> tuple[str, ...]:
    """The user's messages that no answer has followed yet. One without a telling word means the question before it."""
    asked: list[str] = []
    before = ""
    for message in _conversation(state):
        if message.role is Role.USER:
            text = message.content.strip()[:_MAX_QUESTION_CHARS]
            before = text if terms(text) or not before else f"{before} {text}"
            asked.append(before)
        elif message.role is Role.ASSISTANT and not message.tool_calls:
            asked = []
    return tuple(question for question in dict.fromkeys(asked) if words(question))


def findings(state: AgentState) -> Findings:
    """Results of the tools that were called since the user spoke last."""
    answered_calls: set[str] = set()
    for message in _conversation(state):
        if message.role is Role.USER:
            answered_calls.clear()
        elif message.tool_call_id is not None:
            answered_calls.add(message.tool_call_id)
    executions = [each for step in state.steps for each in step.tool_executions if each.tool_call.id in answered_calls]
    return Findings(
        file_count=max((value["count"] for value in _values(executions, "list_files")), default=0),
        searches=tuple(Search.of(value) for value in _values(executions, "search_files")),
        reads=_values(executions, "read_file"),
        problems=tuple(each.error_message() for each in executions if each.outcome is not ToolOutcome.OK),
        calls=len(executions),
    )


def _searches(question: str) -> list[CallTool]:
    """For the question, and for each of its longest words where there are several: mostly they are the telling ones."""
    wanted = set(query_terms(question))
    by_term = {stem(word): word for word in words(question) if stem(word) in wanted}
    longest = sorted(by_term.values(), key=len, reverse=True)[:_WORD_SEARCHES]
    single = [CallTool("search_files", query=word, limit=_WORD_HITS) for word in longest]
    return [CallTool("search_files", query=question), *(single if len(wanted) > 1 else [])]


def _ranges(searches: Sequence[Search]) -> list[Range]:
    if not searches or searches[0].coverage < ENOUGH:
        return []
    return worth_reading(searches, MAX_READS)


def _answer(question: str, found: Findings) -> str:
    searches = found.about(question)
    weights = Weights.of(question, searches)
    quotes = best_quotes(question, read_passages(found.reads, searches), weights)
    if not quotes or searches[0].coverage < ENOUGH:
        return nothing_found(question, weights, found.file_count)
    quoted = {quote.statement.file for quote in quotes}
    read = [
        f"{read['file']}:{read['first_line']}-{read['last_line']}" for read in found.reads if read["file"] in quoted
    ]
    return answered(question, quotes, weights, read, found.file_count)


def _conversation(state: AgentState) -> Sequence[Message]:
    return state.store.section().messages


def _values(executions: Sequence[ToolExecution], name: str) -> tuple[Mapping[str, Any], ...]:
    return tuple(
        cast(Mapping[str, Any], each.value)
        for each in executions
        if each.tool_call.name == name and each.outcome is ToolOutcome.OK
    )
