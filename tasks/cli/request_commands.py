"""Commands for the person in the loop: requests, approve, deny, answer."""

from __future__ import annotations

import json as json_module
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..client.json_values import answer_value, found_value
from .answer_form import ask_value, fill_form
from .options import AsJson, By, Cursor, RedisUrl, SessionArgument, client_for, find_session, login
from .request_views import REQUESTS_HEAD, answer_line, request_lines, request_row
from .views import as_json, table

if TYPE_CHECKING:
    from ...worker.state.execution.answers import GivenAnswer
    from ...worker.state.execution.requests import Request
    from ...worker.store.requests.records import FoundRequest
    from ..client.client import AgentClient


class Kind(StrEnum):
    """Kind of a request, as `requests` shows it."""

    APPROVAL = "approval"
    QUESTION = "question"
    EXTERNAL = "external"
    CHILD = "child"


class RequestState(StrEnum):
    """Status of a request, as `requests` shows it."""

    OPEN = "open"
    ANSWERED = "answered"
    DENIED = "denied"
    EXPIRED = "expired"
    PASSED_ON = "passed_on"
    CANCELLED = "cancelled"
    USED = "used"


class Lasting(StrEnum):
    """For how long an approval counts."""

    CALL = "call"
    EXECUTION = "execution"
    SESSION = "session"


RequestArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="REQUEST",
        help="Id of the request, or its beginning; not needed where only one is open.",
        show_default=False,
    ),
]
Note = Annotated[str, typer.Option(help="For the record; the model does not read it.", show_default=False)]


def requests(
    session: Annotated[
        str | None,
        typer.Argument(metavar="SESSION", help="Only of this session. Default: of all.", show_default=False),
    ] = None,
    to: Annotated[str | None, typer.Option(help="Only those to this addressee.", show_default=False)] = None,
    kind: Annotated[Kind | None, typer.Option(help="Only of this kind.", show_default=False)] = None,
    status: Annotated[
        RequestState | None, typer.Option(help="Only with this status; needs a SESSION unless it is open.")
    ] = RequestState.OPEN,
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
    client = client_for(redis_url)
    page = client.requests(
        None if session is None else find_session(client, session),
        to=to,
        kind=None if kind is None else kind.value,
        status=None if all_ or status is None else status.value,
        limit=limit,
        cursor=cursor,
    )
    if json:
        values = [found_value(found) for found in page.requests]
        if page.cursor and values:
            values[-1]["cursor"] = page.cursor
        lines = [as_json(value) for value in values]
    else:
        lines = table(REQUESTS_HEAD, [request_row(found) for found in page.requests])
        lines += [f"more with: --cursor {page.cursor}"] if page.cursor else []
    for line in lines:
        print(line)


def approve(
    session: SessionArgument,
    request: RequestArgument = None,
    args: Annotated[
        str | None, typer.Option(metavar="JSON", help="Other arguments for the call.", show_default=False)
    ] = None,
    remember: Annotated[
        Lasting, typer.Option(help="Later calls of the tool do not ask again in this execution or session.")
    ] = Lasting.CALL,
    by: By = None,
    note: Note = "",
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Approve a call that waits. The session goes on.

    \b
    Examples:
      celery-agents approve 3f2a…
      celery-agents approve 3f2a… 9c41 --args '{"account": "A-7", "cents": 400}'
    """
    from ...worker.state.execution.answers import Approve

    client = client_for(redis_url)
    found = _find(client, session, request, Kind.APPROVAL)
    given = Approve(None if args is None else _parse_json("--args", args))
    _give(client, found, given, {"by": by or login(), "note": note, "remember": remember.value}, json=json)


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
        str | None,
        typer.Option(
            "--value", metavar="JSON", help="The values; - reads them from standard input.", show_default=False
        ),
    ] = None,
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
        given: GivenAnswer = Answer(_parse_json("--value", sys.stdin.read() if value == "-" else value))
    elif sys.stdin.isatty():
        given = _ask_person(found.request)
    else:
        raise typer.BadParameter("give --value; only a terminal can show the form")
    _give(client, found, given, {"by": by or login(), "note": note}, json=json)


def _ask_person(request: Request) -> GivenAnswer:
    """Show a request in the terminal and ask for its answer."""
    from ...worker.state.execution.answers import Answer, Approve, Deny
    from ...worker.state.execution.requests import RequestKind
    from ...worker.state.values.frozen import thaw

    for line in request_lines(request):
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
    wanted = None if kind is None else kind.value
    found = client.requests(session, kind=wanted if name is None else None, limit=1000).requests
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
    print(as_json(answer_value(summary.session_id, result)) if json else answer_line(result))


def _parse_json(option: str, text: str) -> Any:
    try:
        return json_module.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option} is no JSON: {error}") from None


def _ask(prompt: str) -> str:
    return str(typer.prompt(prompt, default="", show_default=False, err=True))


def _say(line: str) -> None:
    print(line, file=sys.stderr)
