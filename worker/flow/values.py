"""The values of flow: limits, pauses, buckets, and what a provider tells about its limits.

Requests to one model, at one address and with one key, are counted together, in a *bucket*.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Final, Literal, Self, get_args

from ..errors import InvalidInput
from ..moments import unix_ms
from ..state.values.field_types import Amount, Count, Flag, Text, UtcDatetime
from ..state.values.value import Value, skip_when_reading
from .caps import CapPart, SpendCap
from .concurrency import ConcurrencyLimit
from .names import check_name
from .shares import FairShares

Dimension = Literal["requests", "tokens", "input_tokens", "output_tokens"]
"""What a limit counts; `tokens` are those of input and output together."""
DIMENSIONS: Final[tuple[Dimension, ...]] = get_args(Dimension)
PauseKind = Literal["provider", "model", "agent", "tool", "queue"]
PAUSE_KINDS: Final[tuple[PauseKind, ...]] = get_args(PauseKind)

_LIMIT: Final = "limit:"
_PAUSE: Final = "pause:"
_REASON_CHARS: Final = 500
_LIMITS: Final[Mapping[str, Dimension]] = {
    "rpm": "requests", "tpm": "tokens", "input_tpm": "input_tokens", "output_tpm": "output_tokens"
}  # fmt: skip


class ProviderLimit(Value):
    """How much a fleet asks of a model each minute. At least one limit is set; None is unlimited.

    A limit of 0 admits no request at all until it is raised or removed: sessions wait, without an attempt.

    Attributes:
        model: Id of the model, such as `openai:gpt-5-mini`.
        rpm: Requests a minute.
        tpm: Tokens a minute, input and output together.
        input_tpm: Input tokens a minute.
        output_tpm: Output tokens a minute.
        group: The group of agents whose requests it limits (`Agent(provider_group=…)`). None: each group, and each key
            without a group, that has no limit of its own; each of them has the whole limit.
        by: Who has set it; "" while it is not set.
        since_ms: When it was set (Redis ms).
    """

    model: Text
    rpm: Amount | None = None
    tpm: Amount | None = None
    input_tpm: Amount | None = None
    output_tpm: Amount | None = None
    group: Text | None = None
    by: Text = ""
    since_ms: Count = 0

    @skip_when_reading
    def __init__(
        self,
        model: str,
        *,
        rpm: float | None = None,
        tpm: float | None = None,
        input_tpm: float | None = None,
        output_tpm: float | None = None,
        group: str | None = None,
    ) -> None:
        """Raises `InvalidInput`, which names the field, for a value that is no limit or when there is none."""
        check_name("ProviderLimit.model", model, "give the id of a model, such as openai:gpt-5-mini")
        if group:
            check_name("ProviderLimit.group", group, "give the name of a group, or None")
        numbers = {"rpm": rpm, "tpm": tpm, "input_tpm": input_tpm, "output_tpm": output_tpm}
        super().__init__(model=model, group=group, **numbers)
        if not self.per_minute:
            raise InvalidInput("ProviderLimit", None, "set at least one of rpm, tpm, input_tpm and output_tpm.")

    @property
    def per_minute(self) -> dict[Dimension, float]:
        """The limits that are set, by what they count."""
        found: dict[Dimension, float | None] = {d: getattr(self, name) for name, d in _LIMITS.items()}
        return {dimension: limit for dimension, limit in found.items() if limit is not None}

    @property
    def field(self) -> str:
        """Its name among the stored values of flow."""
        return limit_field(self.model, self.group)

    def set_by(self, by: str, since_ms: int) -> Self:
        """The limit as it is stored."""
        return self._with(by=by, since_ms=since_ms)


FleetValue = ProviderLimit | ConcurrencyLimit | SpendCap | FairShares
"""What holds for all workers until it is set anew or removed, stored by its `field`."""


class Pause(Value):
    """Holds all steps that would use a provider, a model, an agent, a tool or a queue.

    A step that would use it is put off and counts no attempt. It comes back when the pause ends.

    Attributes:
        kind: What has the name.
        name: Of a provider the part of a model's id before the colon, such as `openai`; of the common queue "".
        reason: Why, for people and, with `tell`, for the model; up to 500 characters.
        until: When it ends by itself. None: when it is ended by hand.
        by: Who paused it.
        tell: Of a tool: a call does not wait; its result says that the tool is paused, and why.
        since_ms: When it was paused (Redis ms).
    """

    kind: PauseKind
    name: Text
    reason: Text
    until: UtcDatetime | None = None
    by: Text = ""
    tell: Flag = False
    since_ms: Count = 0

    @skip_when_reading
    def __init__(
        self,
        kind: PauseKind,
        name: str,
        *,
        reason: str,
        until: datetime | None = None,
        by: str = "",
        tell: bool = False,
    ) -> None:
        """Raises `InvalidInput`, which names the field, when it names nothing or there is no reason."""
        check_name(f"Pause.{kind}", name, f"give the name of the {kind}", may_be_empty=kind == "queue")
        super().__init__(kind=kind, name=name, reason=reason, until=until, by=by, tell=tell)
        if not reason.strip() or len(reason) > _REASON_CHARS:
            raise InvalidInput("Pause.reason", reason, f"say why, in 1 to {_REASON_CHARS} characters.")
        if tell and kind != "tool":
            raise InvalidInput("Pause.tell", tell, "only a tool's pause is told to the model; leave it out.")

    @property
    def field(self) -> str:
        """Its name among the stored values of flow; also what a step that it holds was put off by."""
        return pause_field(self.kind, self.name)

    @property
    def until_ms(self) -> int | None:
        """When it ends by itself (Redis ms); None: by hand."""
        return None if self.until is None else unix_ms(self.until)

    def set_at(self, since_ms: int) -> Self:
        """The pause as it is stored."""
        return self._with(since_ms=since_ms)

    def holds(self, now_ms: int) -> bool:
        """Whether it has not ended by itself."""
        return self.until_ms is None or now_ms < self.until_ms


@dataclass(frozen=True)
class ModelEndpoint:
    """Names a bucket: the requests to one model, at one address and with one key.

    Attributes:
        model: Id of the model, such as `openai:gpt-5-mini`.
        endpoint: Base URL without credentials; "" is the provider's own.
        group: The group that an agent names, else `~` and 8 hex digits of the SHA-256 of the API key; "" without both.
    """

    model: str
    endpoint: str = ""
    group: str = ""

    @cached_property
    def digest(self) -> str:
        """16 hex digits that stand for the three; part of the bucket's keys."""
        text = "\n".join((self.model, self.endpoint, self.group))
        return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]

    @cached_property
    def names(self) -> str:
        """The three as JSON; stored with what workers have to know of a bucket."""
        return json.dumps([self.model, self.endpoint, self.group])


FactKind = Literal["ok", "rate_limit", "quota", "outage", "other"]


@dataclass(frozen=True, slots=True)
class ProviderFacts:
    """The limits of a provider as an answer or a refusal tells them.

    Attributes:
        limits: Limits of a minute, by dimension, as the headers or the text tell them.
        remaining: What is left of them; more than the limit of a minute counts as nothing used.
        reset_seconds: Seconds until the limit is whole again.
        used: What the answer has used; nothing for a dimension that is not known.
        retry_after: Seconds that the provider asks to wait; None where it did not say.
        kind: "ok" for an answer, "rate_limit" for a 429, "quota" for a used-up quota, "outage" for a provider that is
            overloaded (529), fails or cannot be reached, "other" for a refusal that tells nothing of this, as a 400.
        source: Where `limits` come from.
    """

    limits: Mapping[Dimension, float] = field(default_factory=dict[Dimension, float])
    remaining: Mapping[Dimension, float] = field(default_factory=dict[Dimension, float])
    reset_seconds: Mapping[Dimension, float] = field(default_factory=dict[Dimension, float])
    used: Mapping[Dimension, float] = field(default_factory=dict[Dimension, float])
    retry_after: float | None = None
    kind: FactKind = "ok"
    source: Literal["header", "text"] = "header"


@dataclass(frozen=True, slots=True)
class LearnedLimit:
    """A limit that the fleet has learned. It fades: an hour after `at_ms` it is forgotten.

    Attributes:
        source: "header" and "text": the provider has named it. "refusals": concluded from what it refused.
        at_ms: When it was learned or confirmed last (Redis ms).
    """

    dimension: Dimension
    per_minute: float
    source: Literal["header", "text", "refusals"]
    at_ms: int


@dataclass(frozen=True, slots=True)
class BucketStatus:
    """A bucket as people see it. Times are Redis ms; 0 is none.

    Attributes:
        limit: The limit that was set for it; None: none was.
        in_flight: Requests that were admitted and not settled.
        window: Most requests in flight, after a refusal; None: no such limit.
        waiting: Sessions with an appointment.
        not_before_ms: No request before this time, but for one probe each 15 minutes. `why` is "quota" where a quota is
            used up, else "not_before".
        away_since_ms: Since when the breaker is open.
        probe_ms: The next probe, while the breaker is open or `not_before_ms` is ahead.
    """

    bucket: ModelEndpoint
    limit: ProviderLimit | None
    learned: tuple[LearnedLimit, ...] = ()
    in_flight: int = 0
    window: int | None = None
    waiting: int = 0
    not_before_ms: int = 0
    why: str = ""
    away_since_ms: int = 0
    probe_ms: int = 0


@dataclass(frozen=True, slots=True)
class FlowView:
    """The limits, pauses and buckets as they were at one moment.

    Attributes:
        limits: By `limit_field`.
        pauses: By `Pause.field`; those that had not ended by themselves at `at_ms`.
        buckets: Those that have learned something or hold requests back, by digest.
        concurrency: The concurrency limits by name; None for one that was removed.
        caps: The spend caps by name.
        shares: The fair shares; None: none are set.
        at_ms: When they were read (Redis ms).
    """

    limits: Mapping[str, ProviderLimit] = field(default_factory=dict[str, ProviderLimit])
    pauses: Mapping[str, Pause] = field(default_factory=dict[str, Pause])
    buckets: Mapping[str, ModelEndpoint] = field(default_factory=dict[str, ModelEndpoint])
    concurrency: Mapping[str, ConcurrencyLimit | None] = field(default_factory=dict[str, "ConcurrencyLimit | None"])
    caps: Mapping[str, SpendCap] = field(default_factory=dict[str, "SpendCap"])
    shares: FairShares | None = None
    at_ms: int = 0

    @property
    def is_empty(self) -> bool:
        """Nothing is set and nothing was learned about providers: no request has to ask for anything."""
        return not (self.limits or self.pauses or self.buckets)

    def limit_of(self, bucket: ModelEndpoint) -> ProviderLimit | None:
        """The limit of a bucket: that of its group, else the one for every group; None: none is set."""
        own = self.limits.get(limit_field(bucket.model, bucket.group))
        return own or self.limits.get(limit_field(bucket.model, None))

    def must_reserve(self, bucket: ModelEndpoint) -> bool:
        """Whether a request has to be reserved: a limit is set, or the bucket has learned something."""
        return bucket.digest in self.buckets or self.limit_of(bucket) is not None

    def cap_parts(self, agent: str, labels: Mapping[str, str], now_ms: int) -> tuple[CapPart, ...]:
        """The parts of all caps that an execution spends from now."""
        found = (cap.part_for(agent, labels, now_ms) for cap in self.caps.values())
        return tuple(part for part in found if part is not None)

    def cap_parts_to_settle(self, agent: str, labels: Mapping[str, str], now_ms: int) -> tuple[CapPart, ...]:
        """The parts of all caps from which an execution may have spent."""
        return tuple(cap.part_to_settle(agent, labels, now_ms) for cap in self.caps.values())

    def pause_of(self, kind: PauseKind, name: str, now_ms: int) -> Pause | None:
        """The pause of what has this name, unless it has ended by itself; None: it is not paused."""
        found = self.pauses.get(pause_field(kind, name))
        return found if found is not None and found.holds(now_ms) else None


EMPTY_VIEW: Final = FlowView()


def provider_of(model: str) -> str:
    """The provider of a model: the part of its id before the colon."""
    return model.partition(":")[0]


def limit_field(model: str, group: str | None) -> str:
    """The name of a limit among the stored values of flow."""
    return f"{_LIMIT}{model}" if group is None else f"{_LIMIT}{model}|{group}"


def is_limit(field: str) -> bool:
    """Whether a name among the stored values is that of a model's limit."""
    return field.startswith(_LIMIT)


def pause_field(kind: PauseKind, name: str) -> str:
    """The name of a pause among the stored values of flow."""
    return f"{_PAUSE}{kind}:{name}"


REPLICAS: Final = "replicas"
"""What puts a step off whose call with effects was not confirmed; nothing brings it forward."""


AT_PROVIDER: Final = "job"
"""The cause of a step that waits for a job at a provider; a webhook or an interrupt brings it forward."""
BACKGROUND: Final = "background"
"""The window of an answer that is received at once, and that another worker can attach to."""


def is_pause(put_off: str) -> bool:
    """Whether a name among the stored values, or what puts a step off, is a pause."""
    return put_off.startswith(_PAUSE)
