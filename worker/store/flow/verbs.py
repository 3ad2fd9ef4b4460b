"""Limits and pauses as clients and workers change and read them, and bringing forward the steps that they put off.

The values are fields of one hash. Every change of it is published, so workers know it at once; a worker that has missed
the message reads it with its next registration. Clients run no scripts, so none of these verbs does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ...errors import StateUnreadable
from ...flow.caps import CapStatus, SpendCap
from ...flow.concurrency import ConcurrencyLimit, ConcurrencyStatus, LimitPart, PartStatus, is_concurrency
from ...flow.shares import PRIORITIES, FairShares
from ...flow.values import (
    DIMENSIONS,
    BucketStatus,
    FleetValue,
    FlowView,
    LearnedLimit,
    ModelEndpoint,
    Pause,
    PauseKind,
    ProviderLimit,
    is_limit,
    is_pause,
    limit_field,
    pause_field,
)
from .. import fields
from ..context import StoreContext
from ..database import Command, Reply
from ..keys import FLOW_CHANNEL, BucketKeys
from ..lanes import lane_key, lanes_key, lanes_of
from ..records import StepRef
from .caps import CapVerbs
from .forwarding import bring_forward
from .holders import HolderVerbs
from .reservations import ReservationVerbs
from .stored_values import read_stored

_LEARNED: Final = (
    *(f"{kind}:{dimension}" for kind in ("at", "learned") for dimension in DIMENSIONS),
    "window", "window_at", "refused", "refusals", "row", "passed", "line_rate",
)  # fmt: skip
"""The fields of a bucket that an operator's limit makes void."""
_LEARNED_MS: Final = 3_600_000
_MOST_LINES: Final = 100
_MOST_SHARES: Final = 1_000


class FlowVerbs(ReservationVerbs, HolderVerbs, CapVerbs):
    """Limits, pauses and buckets as data that changes while workers run."""

    def view(self) -> FlowView:
        """Read all limits, pauses and buckets; one round trip. A value that cannot be read is left out."""
        return _read_view(self._context)[0]

    def set_value(self, value: FleetValue, *, by: str = "") -> None:
        """Set a limit, a spend cap or the fair shares, in place of the value of the same field.

        What buckets have learned under a limit of their model is forgotten. Who may go by a higher concurrency limit is
        called by the sweep. What was spent under a cap in the present period stays counted.

        Then bring forward what it lets go: of a concurrency limit, what waits for it to be defined
        (`undefined_cause`); of fair shares, nothing; else what the field has put off.
        """
        stored = value.set_by(by, self._context.now_ms("flow.now"))
        self._change_value(value.field, ("HSET", self._context.fleet.flow, value.field, stored.to_json()))

    def remove_value(self, field: str) -> bool:
        """Remove such a value by its field; False: there was none. Then bring forward what the field has put off."""
        flow = self._context.fleet.flow
        if not is_concurrency(field):
            return bool(self._change_value(field, ("HDEL", flow, field)))
        if not self._context.database.pipeline("flow.known", [("HGET", flow, field)])[0]:
            return False
        # Kept as a name that limits nothing: a limit that nobody has defined is waited for.
        self._change_value(field, ("HSET", flow, field, b""))
        return True

    def shares_waiting(self, queue_keys: Sequence[str]) -> dict[str, dict[str, int]]:
        """Count the steps of each share that wait in some queues, by priority, of up to 1 000 shares; for people."""
        ask, found = self._context.ask_queues, dict[str, dict[str, int]]()
        reads: list[Command] = [
            ("ZRANGEBYSCORE", lanes_key(each), "-inf", "+inf", "LIMIT", 0, _MOST_SHARES) for each in queue_keys
        ]
        names = ask("flow.shares", reads) if reads else []
        lanes = [
            (lane_key(key, lane), share, priority)
            for key, shares in zip(queue_keys, names, strict=True)
            for share in map(fields.name, shares)
            for lane, priority in zip(lanes_of(share), PRIORITIES, strict=True)
        ]
        replies = ask("flow.lanes", [("LLEN", key) for key, *_ in lanes]) if lanes else []
        for (_, share, priority), length in zip(lanes, replies, strict=True):
            if length:
                waiting = found.setdefault(share, {})
                waiting[priority] = waiting.get(priority, 0) + length
        return found

    def caps(self) -> list[CapStatus]:
        """All spend caps by name, with what was spent in the present period; for people."""
        view = self.view()
        return self.spending_of([cap for _, cap in sorted(view.caps.items())], view.at_ms)

    def concurrency(self) -> list[ConcurrencyStatus]:
        """All concurrency limits, with who holds and waits now; for people."""
        view, database, fleet = self.view(), self._context.database, self._context.fleet
        read: Command = ("ZRANGEBYSCORE", fleet.lines, "-inf", "+inf", "LIMIT", 0, _MOST_LINES)
        (names,) = database.pipeline("flow.lines", [read])
        parts = [LimitPart.parse(fields.name(name)) for name in names]
        limits = sorted((each for each in view.concurrency.values() if each is not None), key=lambda each: each.name)
        found: list[ConcurrencyStatus] = []
        for limit in limits:
            total = (LimitPart(limit.name),) if limit.total is not None else ()
            own = [*total, *sorted(part for part in parts if part.name == limit.name and part.label)]
            reads: list[Command] = []
            for part in own:
                keys = fleet.holders(str(part))
                reads += [("ZCOUNT", keys.held, view.at_ms, "+inf"), ("ZCARD", keys.line)]
            replies = database.pipeline("flow.holders", reads) if reads else []
            counts = zip(own, replies[::2], replies[1::2], strict=True)
            status = (PartStatus(str(part).partition("|")[2], held, line) for part, held, line in counts)
            found.append(ConcurrencyStatus(limit, tuple(status)))
        return found

    def pause(self, pause: Pause) -> bool:
        """Pause, in place of an earlier pause of the same.

        Returns:
            There was an earlier one: bring forward what its field has put off, which may end sooner by now.
        """
        stored = pause.set_at(self._context.now_ms("flow.now"))
        write: Command = ("HSET", self._context.fleet.flow, pause.field, stored.to_json())
        return not self._change("flow.pause", pause.field, [write])[0]

    def unpause(self, kind: PauseKind, name: str) -> bool:
        """End a pause; of a model, its used-up quotas too. False: nothing was paused.

        Then bring forward what it has put off: by the pause's field, and of a model by the field of its limit.
        """
        field, ended = pause_field(kind, name), list[Command]()
        for status in self.buckets() if kind == "model" else ():
            if status.bucket.model == name and status.why == "quota":
                keys = self._context.fleet.rate(status.bucket.digest)
                ended += [("HDEL", keys.bucket, "not_before", "why", "probe", "probe_at"), ("DEL", keys.line)]
        writes: list[Command] = [("HDEL", self._context.fleet.flow, field), *ended]
        return bool(self._change("flow.unpause", field, writes)[0] or ended)

    def buckets(self) -> list[BucketStatus]:
        """All buckets that have asked or learned something, then the limits without a bucket; for people."""
        view, known = _read_view(self._context)
        reads = [
            command
            for bucket in known
            for command in _status_reads(self._context.fleet.rate(bucket.digest), view.at_ms)
        ]
        replies = self._context.database.pipeline("flow.buckets", reads) if reads else []
        found = [_status(bucket, view, replies[i * 3 : i * 3 + 3]) for i, bucket in enumerate(known)]
        used = {status.limit.field for status in found if status.limit is not None}
        unused = (limit for field, limit in view.limits.items() if field not in used)
        found += [BucketStatus(ModelEndpoint(each.model, "", each.group or ""), limit=each) for each in unused]
        return sorted(found, key=lambda status: (status.bucket.model, status.bucket.group, status.bucket.endpoint))

    def bring_forward(self, *put_off: str) -> list[StepRef | None]:
        """Let all steps that were put off by these become due now, in the order in which they would have been.

        Args:
            put_off: Digests of buckets, as given to `release`, and fields of limits, caps and pauses. The field of a
                model's limit stands for the buckets that it limits.
        Returns:
            For each of these steps: the step to publish, or None where the transaction has published it.
        Raises:
            StoreUnavailable: No answer in time. Those that are left come at their own time; asking again is safe.
        """
        return bring_forward(self._context, [each for cause in put_off for each in self._limited_by(cause) or (cause,)])

    def _limited_by(self, field: str) -> list[str]:
        """List the digests of the buckets that a limit of this field may limit; none where it is no such field."""
        known = _read_view(self._context)[1] if is_limit(field) else ()
        return [each.digest for each in known if field in {limit_field(each.model, g) for g in (None, each.group)}]

    def _change_value(self, field: str, write: Command) -> Reply:
        """Write a value, and forget what the buckets of a limit have learned under the old one."""
        commands = [write]
        for digest in self._limited_by(field):
            keys = self._context.fleet.rate(digest)
            commands += [("HDEL", keys.bucket, *_LEARNED), ("DEL", keys.line)]
        return self._change(f"flow.{field.partition(':')[0]}", field, commands)[0]

    def _change(self, point: str, field: str, commands: Sequence[Command]) -> list[Reply]:
        """Change the value of a field, as a client's action, and tell the workers."""
        with self._context.acknowledging(self._context.fleet):
            return self._context.database.transaction(point, [*commands, ("PUBLISH", FLOW_CHANNEL, field)])


def forget_past_flow(context: StoreContext) -> None:
    """Remove pauses that have ended by themselves, and buckets that nothing is known of any more."""
    now_reply, flat = context.database.pipeline("flow.past", [context.clock.now(), ("HGETALL", context.fleet.flow)])
    now_ms = context.clock.milliseconds(now_reply)
    for name, raw in fields.named_pairs(flat).items():
        if name.startswith("bucket:"):
            # Guarded: a worker may tell the fleet of the bucket at this moment.
            is_past = _until(raw) < now_ms
            keys = context.fleet.rate(name.removeprefix("bucket:"))
            unused = (("EXISTS", keys.bucket, keys.line), ("0",))
        else:
            pause = read_stored(Pause, raw) if is_pause(name) else None
            is_past, unused = pause is not None and not pause.holds(now_ms), None
        if is_past:
            guards = [(("HGET", context.fleet.flow, name), (raw,)), *([unused] if unused else [])]
            context.database.compare_and_apply("flow.forget", guards, [("HDEL", context.fleet.flow, name)])


def _read_view(context: StoreContext) -> tuple[FlowView, list[ModelEndpoint]]:
    """The view, and all buckets that have asked, also those that no request has to ask."""
    now_reply, flat = context.database.pipeline("flow.view", [context.clock.now(), ("HGETALL", context.fleet.flow)])
    now_ms = context.clock.milliseconds(now_reply)
    limits, pauses, buckets = dict[str, ProviderLimit](), dict[str, Pause](), dict[str, ModelEndpoint]()
    concurrency, caps = dict[str, ConcurrencyLimit | None](), dict[str, SpendCap]()
    shares: FairShares | None = None
    known: list[ModelEndpoint] = []
    for name, raw in fields.named_pairs(flat).items():
        kind = name.partition(":")[0]
        if kind == "limit" and (limit := read_stored(ProviderLimit, raw)) is not None:
            limits[name] = limit
        elif kind == "pause" and (pause := read_stored(Pause, raw)) is not None and pause.holds(now_ms):
            pauses[name] = pause
        elif kind == "concurrency":
            found = read_stored(ConcurrencyLimit, raw) if raw else None
            if found is not None or not raw:  # b"": it was removed
                concurrency[name.partition(":")[2]] = found
        elif kind == "cap" and (cap := read_stored(SpendCap, raw)) is not None:
            caps[cap.name] = cap
        elif kind == "shares":
            shares = read_stored(FairShares, raw)
        elif kind == "bucket" and (bucket := _parse_bucket(raw)) is not None:
            known.append(bucket)
            if _until(raw) > now_ms:
                buckets[bucket.digest] = bucket
    view = FlowView(
        limits=limits, pauses=pauses, buckets=buckets, concurrency=concurrency, caps=caps, shares=shares,
        at_ms=now_ms,
    )  # fmt: skip
    return view, known


def _parse_bucket(raw: bytes) -> ModelEndpoint | None:
    """Parse the announcement of a bucket: until when it has to be asked, a blank, its names."""
    try:
        return ModelEndpoint(*fields.strings(raw.partition(b" ")[2]))
    except (StateUnreadable, TypeError):
        return None


def _until(raw: bytes) -> int:
    return fields.or_else(fields.milliseconds, raw.partition(b" ")[0], 0)


def _status_reads(keys: BucketKeys, now_ms: int) -> list[Command]:
    return [("HGETALL", keys.bucket), ("ZCOUNT", keys.held, now_ms, "+inf"), ("ZCARD", keys.line)]


def _status(bucket: ModelEndpoint, view: FlowView, replies: Sequence[Reply]) -> BucketStatus:
    flat, in_flight, waiting = replies
    stored, now_ms = {name: fields.any_text(raw) for name, raw in fields.named_pairs(flat).items()}, view.at_ms

    def number(name: str) -> int:
        return fields.or_else(fields.number, stored.get(name, "").encode(), 0)

    not_before_ms = number("not_before") if number("not_before") > now_ms else 0
    is_held_back = bool(not_before_ms or number("away"))
    return BucketStatus(
        bucket,
        view.limit_of(bucket),
        learned=tuple(_learned(stored, now_ms)),
        in_flight=in_flight,
        window=number("window") or None,
        waiting=waiting,
        not_before_ms=not_before_ms,
        why=stored.get("why", "") if not_before_ms else "",
        away_since_ms=number("away"),
        probe_ms=number("probe_at") if is_held_back else 0,
    )


def _learned(stored: Mapping[str, str], now_ms: int) -> Iterator[LearnedLimit]:
    for dimension in DIMENSIONS:
        rate, _, rest = stored.get(f"learned:{dimension}", "").partition(" ")
        source, _, at = rest.partition(" ")
        with contextlib.suppress(ValueError):
            if source in ("header", "text", "refusals") and now_ms - int(at) < _LEARNED_MS:
                yield LearnedLimit(dimension, float(rate), source, at_ms=int(at))
