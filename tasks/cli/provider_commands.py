"""Commands on what holds steps back: limits of providers, concurrency limits, spend caps, fair shares, pauses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import typer

from .options import AsJson, By, RedisUrl, client_for, login, now, time_option
from .views import as_json, clean, one_line, print_done, print_found, print_notes, print_removed, print_table

if TYPE_CHECKING:
    from ...worker.flow.caps import CapStatus
    from ...worker.flow.concurrency import ConcurrencyStatus
    from ...worker.flow.shares import SharesStatus, ShareStatus
    from ...worker.flow.values import BucketStatus

N = TypeVar("N", int, float)

_CAPS_HEAD: Final = ("NAME", "CAP", "SPENT", "UNTIL", "BY")
_MOST_SPENT: Final = 5
_CONCURRENCY_HEAD: Final = ("NAME", "LIMITS", "NOW", "BY")
_SHARES_HEAD: Final = ("SHARE", "WEIGHT", "WAITING")
_LIMITS_HEAD: Final = ("MODEL", "GROUP", "LIMITS", "REQUESTS", "NOW")

Kind = Annotated[Literal["provider", "model", "agent", "tool", "queue"], typer.Argument(help="What kind of thing.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name; of a model its id, of the common queue default.")]


def limits(
    action: Annotated[Literal["list", "set", "remove"], typer.Argument(help="What to do.")] = "list",
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="Id of the model, with set and remove.")] = None,
    rpm: Annotated[float | None, typer.Option(help="Requests a minute.")] = None,
    tpm: Annotated[float | None, typer.Option(help="Tokens a minute, input and output together.")] = None,
    input_tpm: Annotated[float | None, typer.Option(help="Input tokens a minute.")] = None,
    output_tpm: Annotated[float | None, typer.Option(help="Output tokens a minute.")] = None,
    group: Annotated[str | None, typer.Option(help="Of this group; default: each group that has none.")] = None,
    by: By = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """List, set and remove limits of model providers, for all workers together.

    The list also shows what the workers have learned from the providers. A change holds at once.

    \b
    Examples:
      celery-agents limits
      celery-agents limits set openai:gpt-5-mini --rpm 500 --tpm 200000
      celery-agents limits remove openai:gpt-5-mini --group batch
    """
    numbers = {"rpm": rpm, "tpm": tpm, "input_tpm": input_tpm, "output_tpm": output_tpm}
    if (action == "list") != (model is None):
        raise typer.BadParameter("give it with set and with remove, and not with list", param_hint="MODEL")
    if action != "set" and any(value is not None for value in (*numbers.values(), by)):
        raise typer.BadParameter(f"--rpm, --tpm, --input-tpm, --output-tpm and --by go with set, not with {action}")
    if action == "list" and group is not None:
        raise typer.BadParameter("goes with set and with remove, not with list", param_hint="--group")
    client = client_for(redis_url)
    if model is None:
        _print_limits(client.limits.list(), json)
    elif action == "remove":
        print_removed(client.limits.remove(model, group), "no such limit was set", json)
    else:
        from ...worker.flow.values import ProviderLimit

        print_notes(client.limits.set(ProviderLimit(model, group=group, **numbers), by=by or login()), "set", json)


def concurrency(
    action: Annotated[Literal["list", "set", "remove"], typer.Argument(help="What to do.")] = "list",
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Of the limit, with set and remove.")] = None,
    total: Annotated[int | None, typer.Option(help="Most at a time.")] = None,
    per: Annotated[
        list[str] | None, typer.Option(metavar="LABEL=N", help="Most for each value of a label; may be repeated.")
    ] = None,
    by: By = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """List, set and remove concurrency limits, for all workers together.

    Agents and tools name them; the list shows what runs and waits. A change holds at once for what has not begun.

    \b
    Examples:
      celery-agents concurrency
      celery-agents concurrency set crm --total 20 --per customer=2
      celery-agents concurrency remove crm
    """
    if (action == "list") != (name is None):
        raise typer.BadParameter("give it with set and with remove, and not with list", param_hint="NAME")
    if action != "set" and (total is not None or per or by is not None):
        raise typer.BadParameter(f"--total, --per and --by go with set, not with {action}")
    client = client_for(redis_url)
    if name is None:
        _print_concurrency(client.concurrency.list(), json)
    elif action == "remove":
        print_removed(client.concurrency.remove(name), "no such limit was set", json)
    else:
        from ...worker.flow.concurrency import ConcurrencyLimit

        limit = ConcurrencyLimit(name, total=total, per=_read_numbers("--per", per or (), _whole, "LABEL=N"))
        print_notes(client.concurrency.set(limit, by=by or login()), "set", json)


def caps(
    action: Annotated[Literal["list", "set", "remove"], typer.Argument(help="What to do.")] = "list",
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Of the cap, with set and remove.")] = None,
    usd: Annotated[float | None, typer.Option(help="US dollars in each period.")] = None,
    per: Annotated[Literal["hour", "day", "month"] | None, typer.Option(help="The period.")] = None,
    zone: Annotated[str | None, typer.Option(help="By whose clock; default: UTC.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only executions of this agent.")] = None,
    label: Annotated[str | None, typer.Option(help="Each value of this label has the amount for itself.")] = None,
    value: Annotated[
        list[str] | None, typer.Option(metavar="VALUE=USD", help="Another amount for a value; may be repeated.")
    ] = None,
    then: Annotated[
        Literal["wait", "stop"] | None, typer.Option(help="What a step does that gets no money; default: wait.")
    ] = None,
    by: By = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """List, set and remove spend caps: most dollars for models in a period.

    The list shows what was spent in the present period. A change holds at once for calls that have not begun.

    \b
    Examples:
      celery-agents caps
      celery-agents caps set customers --usd 20 --per day --label customer --value acme=100
      celery-agents caps remove customers
    """
    given: dict[str, Any] = {"usd": usd, "per": per, "zone": zone, "agent": agent, "label": label, "then": then}
    given = {option: each for option, each in given.items() if each is not None}
    if value:
        given["values"] = _read_numbers("--value", value, float, "VALUE=USD")
    if (action == "list") != (name is None):
        raise typer.BadParameter("give it with set and with remove, and not with list", param_hint="NAME")
    if action != "set" and (given or by is not None):
        named = ", ".join(f"--{'value' if each == 'values' else each}" for each in given) or "--by"
        raise typer.BadParameter(f"{named} go with set, not with {action}")
    if action == "set" and per is None:
        raise typer.BadParameter("give hour, day or month", param_hint="--per")
    client = client_for(redis_url)
    if name is None:
        _print_caps(client.caps.list(), json)
    elif action == "remove":
        print_removed(client.caps.remove(name), "no such cap was set", json)
    else:
        from ...worker.flow.caps import SpendCap

        print_notes(client.caps.set(SpendCap(name, **given), by=by or login()), "set", json)


def shares(
    action: Annotated[Literal["list", "set", "remove"], typer.Argument(help="What to do.")] = "list",
    label: Annotated[str | None, typer.Argument(metavar="LABEL", help="Key of the label, with set.")] = None,
    weight: Annotated[
        list[str] | None, typer.Option(metavar="VALUE=N", help="The weight of a value, default 1; may be repeated.")
    ] = None,
    by: By = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Share the slots among the values of a label, such as customers.

    The list shows whose steps wait. What a value does not use goes to the others.

    \b
    Examples:
      celery-agents shares
      celery-agents shares set customer --weight acme=2
      celery-agents shares remove
    """
    if (action == "set") != (label is not None):
        raise typer.BadParameter("give it with set, and not with list and remove", param_hint="LABEL")
    if action != "set" and (weight or by is not None):
        raise typer.BadParameter(f"--weight and --by go with set, not with {action}")
    client = client_for(redis_url)
    if label is not None:
        from ...worker.flow.shares import FairShares

        given = FairShares(label, weights=_read_numbers("--weight", weight or (), float, "VALUE=N"))
        client.shares.set(given, by=by or login())
        print_done({"changed": True}, "set", json)
    elif action == "remove":
        print_removed(client.shares.remove(), "no fair shares were set", json)
    else:
        _print_shares(client.shares.get(), json)


def pause(
    kind: Kind,
    name: Name,
    reason: Annotated[str, typer.Option("--reason", "-r", help="Shown with everything that it holds.")],
    during: Annotated[timedelta | None, time_option("End it after this; default: by unpause.", "--for")] = None,
    tell: Annotated[
        bool, typer.Option("--tell", help="Of a tool: the model reads the reason instead of waiting.")
    ] = False,
    by: By = None,
    json: AsJson = False,
    redis_url: RedisUrl = None,
) -> None:
    """Hold what would use a provider, model, agent, tool or queue.

    Such steps take no slot and count no attempt. They continue when the pause ends.

    \b
    Examples:
      celery-agents pause tool refund --reason "the bank is down"
      celery-agents pause provider openai --reason "the invoice is disputed" --for 2h
    """
    client = client_for(redis_url)
    until = None if during is None else now(client) + during
    named: dict[str, Any] = {kind: name}
    notes = client.pause(**named, reason=reason, until=until, by=by or login(), tell=tell)
    print_notes(notes, "paused", json)


def unpause(kind: Kind, name: Name, by: By = None, json: AsJson = False, redis_url: RedisUrl = None) -> None:
    """End a pause; what it held continues at once.

    A used-up quota of a model counts as raised.

    \b
    Examples:
      celery-agents unpause tool refund
      celery-agents unpause model openai:gpt-5-mini
    """
    named: dict[str, Any] = {kind: name}
    ended = client_for(redis_url).unpause(**named, by=by or login())
    print_done({"changed": ended}, "unpaused" if ended else "it was not paused", json)


def pauses(json: AsJson = False, redis_url: RedisUrl = None) -> None:
    """List what is paused, and why.

    \b
    Example:
      celery-agents pauses --json | jq .reason
    """
    from ...worker.engine.flow_texts import describe_pause
    from ..client.json_values import pause_value

    for each in client_for(redis_url).pauses():
        print(as_json(pause_value(each)) if json else one_line(describe_pause(each), 1000))


def _whole(text: str) -> int:
    """Read a whole number of decimal digits alone."""
    if text.isdecimal():
        return int(text)
    raise ValueError


def _read_numbers(option: str, pairs: Sequence[str], number: Callable[[str], N], wanted: str) -> dict[str, N]:
    """Read `NAME=NUMBER`, each name once.

    Args:
        number: Reads the number; ValueError where it is none.
        wanted: How a pair is written, for people.
    """
    found: dict[str, N] = {}
    for pair in pairs:
        name, _, text = pair.rpartition("=")
        try:
            if not name or name in found:
                raise ValueError
            found[name] = number(text)
        except ValueError:
            raise typer.BadParameter(f"{pair!r}: give {wanted}, each once", param_hint=option) from None
    return found


def _print_limits(found: Sequence[BucketStatus], json: bool) -> None:
    from ...worker.engine.flow_texts import bucket_state, describe_limits
    from ..client.json_values import bucket_value

    def row(each: BucketStatus) -> list[str]:
        place = f"{each.bucket.model} {each.bucket.endpoint}".rstrip()
        counts = f"{each.in_flight} asked, {each.waiting} wait"
        return [place, each.bucket.group, describe_limits(each), counts, bucket_state(each)[1]]

    print_found(_LIMITS_HEAD, found, json=json, value=bucket_value, row=row)


def _print_caps(found: Sequence[CapStatus], json: bool) -> None:
    from ...worker.engine.flow_texts import describe_cap, describe_moment
    from ...worker.moments import moment
    from ..client.json_values import cap_value

    def row(each: CapStatus) -> list[str]:
        spent = "; ".join(f"{part.value or 'all'}: {part.usd:.4g} $" for part in each.spent[:_MOST_SPENT])
        ends = describe_moment(moment(each.ends_ms))
        return [each.cap.name, describe_cap(each.cap), spent, f"{ends} UTC", each.cap.by]

    print_found(_CAPS_HEAD, found, json=json, value=cap_value, row=row)


def _print_shares(status: SharesStatus, json: bool) -> None:
    from ...worker.engine.flow_texts import describe_shares, describe_waiting
    from ..client.json_values import shares_value

    if json:
        print(as_json(shares_value(status)))
        return
    print(one_line(describe_shares(status.shares), 1000))
    if not status.waiting:
        return

    def row(each: ShareStatus) -> list[str]:
        return [each.share or "(without the label)", f"{each.weight:g}", describe_waiting(each)]

    print_table(_SHARES_HEAD, [[clean(cell) for cell in row(each)] for each in status.waiting])


def _print_concurrency(found: Sequence[ConcurrencyStatus], json: bool) -> None:
    from ...worker.engine.flow_texts import describe_parts
    from ..client.json_values import concurrency_value

    def row(each: ConcurrencyStatus) -> list[str]:
        limits = [] if each.limit.total is None else [f"{each.limit.total} in all"]
        limits += [f"{most} for each {label}" for label, most in each.limit.per.items()]
        return [each.limit.name, ", ".join(limits), "; ".join(describe_parts(each)), each.limit.by]

    print_found(_CONCURRENCY_HEAD, found, json=json, value=concurrency_value, row=row)
