"""Commands for the person in the loop: requests, approve, deny, answer."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import typer
from pydantic_core import from_json

from ...worker.moments import moment, unix_ms
from ..client.json_values import answer_value, found_value
from ..observability.request_reasons import describe_time
from .answer_form import ask_value, fill_form
from .options import AsJson, By, Cursor, RedisUrl, SessionArgument, client_for, find_session, login, read_stdin
from .views import age, as_json, clean, one_line, print_table, print_values, say_unread

if TYPE_CHECKING:
    from ...worker.state.execution.answers import GivenAnswer
    from ...worker.state.execution.requests import Request
    from ...worker.store.requests.records import AnswerResult, FoundRequest
    from ..client.client import AgentClient

_HEAD: Final = ("SESSION", "REQUEST", "KIND", "CALL", "TO", "STATUS", "ASKED", "EXPIRES", "MESSAGES", "TEXT")
_SHORT_ID: Final = 12
_CALL_CHARS: Final = 60
_MESSAGE_CHARS: Final = 1_000

Kind = Literal["approval", "question", "external", "child"]
RequestState = Literal["open", "answered", "denied", "expired", "passed_on", "cancelled", "used"]
RequestArgument = Annotated[
    str | None,
    typer.Argument(metavar="REQUEST", help="Id of the request, or its beginning; not needed where only one is open."),
]
Seen = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Number of the newest message that you have seen, as `requests` shows it; refused where a further one "
        "has come.",
        show_default=False,
    ),
]
Note = Annotated[str, typer.Option(help="For the record; the model does not read it.", show_default=False)]


def requests(
    session: Annotated[
        str | None, typer.Argument(metavar="SESSION", help="Only of this session. Default: of all.")
    ] = None,
    to: Annotated[str | None, typer.Option(help="Only those to this addressee.")] = None,
    kind: Annotated[Kind | None, typer.Option(help="Only of this kind.")] = None,
    status: Annotated[
        RequestState | None,
        typer.Option(help="Only with this status, open by default; others need a SESSION."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="With a SESSION: whatever became of them.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Most requests.")] = 50,
    cursor: Cursor = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """List the approvals, questions and results that sessions wait for.

    The oldest comes first.

    With --json each request is an object on a line; where there are more, the last one holds the cursor.

    \b
    Examples:
      celery-agents requests
      celery-agents requests --to managers --kind approval
      celery-agents requests 3f2a… --all --json
    """
    if all_ and status is not None:
        raise typer.BadParameter("give one of --all and --status")
    client = client_for(redis_url)
    page = client.requests(
        None if session is None else find_session(client, session),
        to=to,
        kind=kind,
        status=None if all_ else status or "open",
        limit=limit,
        cursor=cursor,
    )
    say_unread(page.unread)
    if json:
        print_values([found_value(found) for found in page.requests], page.cursor)
    else:
        print_table(_HEAD, [_row(found) for found in page.requests], page.cursor)
        for found in page.requests:
            for line in _message_lines(found):
                print(f"{found.summary.id[:_SHORT_ID]}  {line}")


def approve(
    session: SessionArgument,
    request: RequestArgument = None,
    args: Annotated[str | None, typer.Option(metavar="JSON", help="Other arguments for the call.")] = None,
    remember: Annotated[
        Literal["call", "execution", "session"],
        typer.Option(help="Later calls of the tool do not ask again in this execution or session."),
    ] = "call",
    seen: Seen = None,
    by: By = None,
    note: Note = "",
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Approve a call that waits. The session goes on.

    \b
    Examples:
      celery-agents approve 3f2a…
      celery-agents approve 3f2a… --seen 2
      celery-agents approve 3f2a… 9c41 --args '{"account": "A-7", "cents": 400}'
    """
    from ...worker.state.execution.answers import Approve

    given = Approve(None if args is None else _parse_json("--args", args))
    client = client_for(redis_url)
    found = _find(client, session, request, "approval")
    _give(client, found, given, {"by": by or login(), "note": note, "remember": remember, "seen": seen}, json=json)


def deny(
    session: SessionArgument,
    request: RequestArgument = None,
    reason: Annotated[str, typer.Option("--reason", "-r", help="The model reads it.", show_default=False)] = "",
    by: By = None,
    note: Note = "",
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Deny a call that waits, or decline a question. The model reads the reason, and the session goes on.

    \b
    Example:
      celery-agents deny 3f2a… --reason "a duplicate of order 11"
    """
    from ...worker.state.execution.answers import Deny

    client = client_for(redis_url)
    found = _find(client, session, request)
    _give(client, found, Deny(reason), {"by": by or login(), "note": note}, json=json)


def answer(
    session: SessionArgument,
    request: RequestArgument = None,
    value: Annotated[
        str | None, typer.Option(metavar="JSON", help="The values; - reads them from standard input.")
    ] = None,
    seen: Seen = None,
    by: By = None,
    note: Note = "",
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Answer a question or an approval. In a terminal, without --value, a form asks for each field.

    \b
    Examples:
      celery-agents answer 3f2a…
      celery-agents answer 3f2a… --value '{"Which currency?": "EUR"}'
    """
    from ...worker.state.execution.answers import Answer

    client = client_for(redis_url)
    found = _find(client, session, request)
    assert found.request is not None
    if value is not None:
        given: GivenAnswer = Answer(_parse_json("--value", read_stdin() if value == "-" else value))
    elif sys.stdin.isatty():
        given = _ask_person(found)
        seen = found.newest_message if seen is None else seen
    else:
        raise typer.BadParameter("give --value; only a terminal can show the form")
    _give(client, found, given, {"by": by or login(), "note": note, "seen": seen}, json=json)


def _ask_person(found: FoundRequest) -> GivenAnswer:
    """Show a request in the terminal, with the messages behind it, and ask for its answer."""
    from ...worker.state.execution.answers import Answer, Approve, Deny
    from ...worker.state.execution.requests import RequestKind
    from ...worker.state.values.frozen import thaw

    request = found.request
    assert request is not None
    for line in [*_request_lines(request), *(f"  {line}" for line in _message_lines(found))]:
        print(line, file=sys.stderr)
    if request.kind is RequestKind.QUESTION:
        return Answer(fill_form(request, _ask, _say))
    ways = "yes, no, edit" if request.edits_allowed else "yes, no"
    while True:
        match _ask(f"approve it? ({ways})").strip().lower():
            case "yes" | "y":
                return Approve()
            case "no" | "n":
                return Deny(_ask("reason, for the model"))
            case "edit" | "e" if request.edits_allowed:
                current = {name: thaw(each) for name, each in request.args.items()}
                _say(f"  now: {as_json(current)}")
                return Approve(ask_value(request.answer_schema or {}, _ask, _say, "arguments"))
            case _:
                _say("  write yes or no")


def _find(client: AgentClient, session: str, name: str | None, kind: Kind | None = None) -> FoundRequest:
    """Find the request that is meant: the one that is named, or the only one that is open.

    Raises:
        ActionRefused: None is open.
        typer.BadParameter: Several are open.
        InvalidInput: Several begin like this.
    """
    from ...worker.errors import ActionRefused, InvalidInput, RequestNotFound

    session = find_session(client, session)
    found = client.requests(session, kind=kind if name is None else None, limit=1000).requests
    open_ids = ", ".join(each.summary.id for each in found) or "(none)"
    if name is None:
        if len(found) > 1:
            raise typer.BadParameter(f"name one of the open requests: {open_ids}", param_hint="REQUEST")
        chosen = next((each.summary for each in found), None)
        if chosen is None:
            raise ActionRefused(f"nothing of session {session} waits for an answer")
    else:
        matching = [each for each in found if each.summary.id.startswith(name.rstrip(".…"))]
        if len(matching) > 1:
            raise InvalidInput("REQUEST", name, f"several begin like this: {open_ids}; write more of it.")
        if not matching:
            return client.request(session, name)
        chosen = matching[0].summary
    complete = client.request(chosen.session_id, chosen.id)
    if complete.request is None:
        raise RequestNotFound(session, chosen.id)
    return complete


def _give(client: AgentClient, found: FoundRequest, given: GivenAnswer, about: dict[str, Any], *, json: bool) -> None:
    """Answer the request as it was looked at, and print what came of it."""
    summary = found.summary
    expect = None if found.request is None else found.request.digest
    result = client.answer(summary.session_id, {summary.id: given}, expect=expect, **about)
    print(as_json(answer_value(summary.session_id, result)) if json else _answer_line(result))


def _parse_json(option: str, text: str) -> Any:
    try:
        return from_json(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option} is no JSON: {error}") from None


def _ask(prompt: str) -> str:
    return str(typer.prompt(prompt, default="", show_default=False, err=True))


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _row(found: FoundRequest) -> list[str]:
    summary = found.summary
    expires = (
        "" if summary.expires_at_ms is None else f"{_format_time(summary.expires_at_ms)}: {summary.on_expiry.value}"
    )
    return [
        summary.session_id,
        summary.id[:_SHORT_ID],
        summary.kind.value,
        one_line(summary.call, _CALL_CHARS),
        summary.to or "",
        found.status.value,
        age(moment(summary.asked_at_ms)),
        expires,
        str(found.newest_message or ""),
        one_line(summary.text, 60),
    ]


def _message_lines(found: FoundRequest) -> list[str]:
    """The messages behind a request, for the person who answers it."""
    return [f"message {each.number}: {one_line(each.text, _MESSAGE_CHARS)}" for each in found.messages]


def _answer_line(result: AnswerResult) -> str:
    return {
        "woken": "answered; the session goes on",
        "recorded": "answered; the session takes it up when it goes on",
        "again": "this was answered before",
    }[result.outcome]


def _request_lines(request: Request) -> list[str]:
    """A request in full, for the person who answers it."""
    lines = [
        f"{request.kind.value} {request.id[:_SHORT_ID]}  of agent {clean(request.agent)}, session {request.session_id}"
    ]
    lines += [f"  {clean(line)}" for line in request.text.splitlines()]
    lines.append(f"  {clean(request.tool)}")
    lines += [
        f"    {clean(name)} = {as_json(value)}"
        for name, value in cast("Mapping[str, Any]", request.to_dict()["args"]).items()
    ]
    if request.to:
        lines.append(f"  to {clean(request.to)}")
    if request.expires_at_ms is not None:
        lines.append(f"  until {_format_time(request.expires_at_ms)}, then: {request.on_expiry.then.value}")
    return lines


def _format_time(at_ms: int) -> str:
    """A time for people, as reasons have it: only the time of day when it is today."""
    return describe_time(at_ms, unix_ms(datetime.now(UTC)))
