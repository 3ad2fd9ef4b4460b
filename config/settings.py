"""Every constant of the protocol and of its workers, in one frozen value.

Built once at an entry point (`Settings.from_environment()`) and handed down; nothing else in the package reads the
environment. Durations carry their unit in the name. A wrong or unknown value stops the process with a sentence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from .archive_urls import ArchiveUrl
from .environment import PREFIX, describe_unknown, read_variables
from .networks import AllowedNetworks
from .redis_urls import CLUSTERS, ONE_SERVER, SENTINELS, canonical_url, check_url, uses_cluster
from .urls import check_origins, hide_password, is_host

_MOST: Final = 2**53
"""Redis and its scripts count exactly up to this."""
_MOST_SECONDS: Final = 3_155_760_000
"""A hundred years, which timers of every platform can wait for."""

_LEAST_SECONDS: Final = 0.001
_GROWING: Final = ("due", "retry_delay", "retry_later", "job_poll")
"""Times that begin at `…_seconds` and grow up to `…_max_seconds`."""

_URLS: Final = ("redis_url", "broker_url", "archive_url")

_BROKER_QUEUE: Final = r"^[^\s,]+$"
"""A queue that a worker's -Q can name."""

QUEUE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
"""The name that an agent gives its queue."""

DEFAULT_QUEUE: Final = "default"
"""The name of the common queue where queues are listed; agents with no queue of their own have it."""

GROUP_MARK: Final = "@"
"""Begins the name of the queue of a worker group, so that no agent's queue has the same."""

CONTROL_TASKS: Final = (
    "submit", "send_message", "retry", "stop", "answer", "answer_by_token", "complete", "fail", "suspend", "resume",
    "delete", "fork", "clear", "change_budget", "rewind", "withdraw_message", "set_message_mode", "release_queue",
)  # fmt: skip
"""What callers may ask for by a Celery task, as `control_tasks` names it. `send_message` is part of the task submit."""


class SettingsError(ValueError):
    """A setting is missing, unknown or wrong. The message names it, its value and what to do."""


class Settings(BaseSettings):
    """Settings of workers, clients and monitors.

    Every field can be set as `CELERY_AGENTS_<NAME>` in the environment.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False,
        hide_input_in_errors=True,
    )  # fmt: skip

    # --- where things are -------------------------------------------------------------------------------------
    redis_url: str = Field(
        "redis://127.0.0.1:6379/0",
        description="The store, and the broker unless broker_url says otherwise: redis://, rediss://, unix://, "
        "valkey://, valkeys://, Sentinels that know the primary, redis+sentinel://host:26379,host,host/name/0 "
        "(rediss+sentinel://, valkey+sentinel://), or nodes of a cluster, redis+cluster://host:7000,host,host "
        "(rediss+cluster://, valkey+cluster://), which is no broker.",
    )
    broker_url: str | None = Field(
        None,
        description="Celery broker, which may be Sentinels as well. None: the store's Redis, which lets a commit "
        "publish the next step itself.",
    )
    agents: str = Field("", description="Modules that define agents, comma separated; each worker imports them.")
    queue: str = Field(
        "celery_agents.steps",
        pattern=_BROKER_QUEUE,
        description="Queue of the step messages. An agent with queue='gpu' has its own: this name with '.gpu'.",
    )
    queues: str = Field(
        "",
        description="Queues that this worker takes, comma separated, by the names that agents give them; 'default' is "
        "the common one. It offers no agent of another queue. Empty: the queues of all its agents.",
    )
    control_queue: str = Field(
        "celery_agents.control", pattern=_BROKER_QUEUE, description="Queue of submit, retry and stop by task name."
    )
    control_tasks: str = Field(
        "submit,answer_by_token,complete,fail",
        description="Control tasks that workers take from that queue, comma separated, or 'all': submit (new sessions "
        "only), send_message (submit may also continue a session), answer_by_token, complete and fail (they need a "
        "token), answer, retry, stop, suspend, resume, delete, fork, clear. Whoever may write to the queue does what "
        "is named here to every session whose id he knows; workers put the other tasks into quarantine.",
    )
    shards: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Parts of the sessions, which a cluster spreads over its servers. Fixed for the life of a store, "
        "which keeps their number. None: the stored one; 64 in an empty store.",
    )
    redis_timeout_seconds: float = Field(
        5.0, gt=0, description="An answer of Redis later than this counts as lost; longer than any script we run."
    )
    redis_connections: int = Field(
        256, ge=1, description="Most connections of one process to the store; more than its slots."
    )
    replicas: int = Field(
        0,
        ge=0,
        le=8,
        description="Replicas that must have what is acknowledged to clients, given to programs, or the beginning of a "
        "call with effects: all that there are, in a cluster all of a primary, or 1 where each of three hosts runs one "
        "server and one Sentinel. 0: replication is not waited for.",
    )
    replica_timeout_seconds: float = Field(
        1.0, gt=0, description="Too few replicas after this time: the action is written, and refused as not confirmed."
    )

    # --- lease, due index, sweep (PROTOCOL: a killed worker's step runs elsewhere within 10 s) --------------------
    lease_seconds: float = Field(6.0, gt=0, description="Life of a claim's lease without renewal.")
    lease_renew_seconds: float = Field(1.5, gt=0, description="Between renewals: three may fail before a lease ends.")
    lease_grace_seconds: float = Field(0.5, ge=0, description="After a lease's end before the sweep looks again.")
    sweep_seconds: float = Field(0.5, gt=0, description="Between two looks at what is due.")
    sweep_batch: int = Field(1000, ge=1, description="Most due sessions looked at in one pass.")
    due_seconds: float = Field(6.0, gt=0, description="A published step that nobody claimed is looked at after this.")
    due_max_seconds: float = Field(
        60.0, gt=0, description="The wait after each further publication doubles up to this."
    )

    # --- one step ---------------------------------------------------------------------------------------------
    step_timeout_seconds: float = Field(900.0, gt=0, description="Deadline of a step: driver call, tools and commit.")
    tool_timeout_seconds: float = Field(300.0, gt=0, description="Deadline of one tool call, unless the tool has one.")
    max_parallel_tools: int = Field(5, ge=1, description="Tool calls of one step that run side by side.")
    lookup_margin_seconds: float = Field(
        5.0, ge=0, description="Added to a tool's timeout before its lookup is believed when it says 'did not happen'."
    )
    max_result_chars: int = Field(32_000, ge=100, description="Longer tool results are cut, with a marker.")
    max_result_bytes: int = Field(
        256_000, ge=1000, description="No tool result is stored longer, whatever its tool allows; cut, with a marker."
    )
    max_answer_bytes: int = Field(
        4_000_000, ge=1000, description="A longer answer of a model is not read to its end; the execution fails."
    )
    max_calls: int = Field(
        128, ge=1, description="Tool calls of one answer that run; the model reads that the others did not."
    )
    default_max_steps: int = Field(
        100,
        ge=0,
        description="Most steps of an execution for which neither agent nor submit gives a budget. 0: no limit.",
    )
    max_message_bytes: int = Field(1_000_000, ge=1000, description="Longer user messages are refused at submit.")
    attempts_limit: int = Field(
        5, ge=1, description="Attempts at one step before it fails. A claim given back for a reason outside it is none."
    )
    suspect_attempts: int = Field(
        3, ge=1, description="From this attempt on a step runs alone in its process, so it takes no neighbours along."
    )
    driver_attempts: int = Field(4, ge=1, description="Requests for one answer within a step before it retries later.")
    retry_delay_seconds: float = Field(0.25, gt=0, description="First pause between driver attempts; full jitter.")
    retry_delay_max_seconds: float = Field(
        2.0,
        gt=0,
        description="Longest pause between driver attempts in a step. A provider that asks for a longer one delays the "
        "step, which every reader sees.",
    )
    retry_later_seconds: float = Field(5.0, gt=0, description="First 'retry later'; doubles with each.")
    retry_later_max_seconds: float = Field(600.0, gt=0, description="Longest 'retry later'.")
    retry_later_limit_seconds: float = Field(86_400.0, gt=0, description="After this long of retrying later it fails.")
    job_poll_seconds: float = Field(
        30.0,
        gt=0,
        description="After this long a step looks for the answer of a job at a provider; then at twice the age.",
    )
    job_poll_max_seconds: float = Field(600.0, gt=0, description="It looks at least so often.")
    steps_per_task: int = Field(
        1, ge=1, le=1000, description="Steps that one task may carry on with itself. 1: each step is a task of its own."
    )
    burst_milliseconds: int = Field(1000, ge=1, description="A task carries on with further steps no longer than this.")
    sticky_seconds: float = Field(
        1.0,
        ge=0,
        description="A session that finds enough free slots stays with its worker for this time: the messages of its "
        "steps do not travel. 0: they all go through the queue.",
    )

    # --- what is kept -----------------------------------------------------------------------------------------
    retention_seconds: float | None = Field(
        604_800.0,
        gt=0,
        description="Life of a session's keys once no execution is active. None, in the environment none: for ever.",
    )
    archive_url: str | None = Field(
        None,
        description="Where sessions go that ended long ago: sqlite:///<file> or postgresql://…; the same for workers, "
        "clients and the HTTP interface. Sessions that ended stay in Redis until they are stored there. None: there is "
        "no archive.",
    )
    archive_after_seconds: float = Field(
        86_400.0, ge=0, description="A session moves to the archive so long after its end."
    )
    archive_per_second: float = Field(
        50.0, gt=0, description="Sessions that all workers together move to the archive a second."
    )
    archive_settle_seconds: float = Field(
        60.0,
        ge=0,
        description="A row of the archive is replaced or deleted only when what allows it has been in Redis for so "
        "long. Longer than what Redis may lose in a crash or a failover: a second with an append-only file.",
    )
    archive_days: float | None = Field(
        None, gt=0, description="The archive forgets a session so many days after its last change. None: never."
    )
    journal_seconds: float = Field(60.0, gt=0, description="Life of a step's journal after its commit.")
    compression: bool = Field(
        True,
        description="Messages and steps are compressed, in a store that is new or upgraded (celery-agents "
        "upgrade-data). Off: messages are written as plain JSON, and so are steps that have asked; others of 1 000 "
        "bytes or more take no room for what their messages say. What is compressed is read all the same.",
    )
    history_bytes: int = Field(
        1_000_000,
        ge=0,
        description="Bytes of old values and replaced messages kept per session, for its state at earlier steps; the "
        "oldest go first. 0: none are kept.",
    )
    max_session_bytes: int = Field(
        32_000_000,
        ge=100_000,
        description="A longer conversation takes no further message, and its execution fails with its next step.",
    )
    max_event_bytes: int = Field(16_000, ge=1000, description="Data of one event; more is replaced by its size.")
    events_kept: int = Field(1_000, ge=10, description="Events kept per session (approximately).")
    live_kept: int = Field(4_000, ge=100, description="Pieces of live text kept per session (approximately).")
    live_bytes: int = Field(
        8_000_000, ge=100_000, description="Bytes of live text kept per session (approximately): fewer, larger pieces."
    )
    live_seconds: float = Field(600.0, ge=1, description="Life of a session's live text after its last piece.")
    dead_kept: int = Field(10_000, ge=10, description="Parked steps and quarantined messages kept.")
    operations_kept: int = Field(
        128, ge=8, description="Ids of messages that a session remembers, against applying twice."
    )
    executions_kept: int = Field(50, ge=1, description="Executions of a session whose steps are kept.")
    inbox_limit: int = Field(1_000, ge=1, description="Messages that may wait for one running step.")
    max_queued: int = Field(32, ge=1, description="Messages of a session that may wait for executions of their own.")
    max_inbox_bytes: int = Field(
        8_000_000, ge=1000, description="Bytes of the messages that may wait for one running step."
    )
    cache_bytes: int = Field(
        128_000_000,
        ge=0,
        description="Memory for the sessions a worker keeps, estimated. 0: none. Only speed rests on it.",
    )

    # --- the worker -------------------------------------------------------------------------------------------
    concurrency: int = Field(100, ge=1, description="Slots of one worker process: steps that run at the same time.")
    pool: str = Field(
        "greenlets",
        pattern="^(greenlets|threads|prefork|solo)$",
        description="Celery pool. greenlets: our own, where steps share a thread. prefork: for steps that compute.",
    )
    drain_seconds: float = Field(30.0, ge=0, description="After SIGTERM running steps may finish for this long.")
    abandoned_share: float = Field(
        0.1,
        gt=0,
        le=1,
        description="A worker drains and exits 1 when functions that have used up their time hold more than this share "
        "of its slots.",
    )
    loop_blocked_seconds: float = Field(
        60.0, gt=0, description="A worker whose event loop an async driver or tool has blocked for this long exits 1."
    )
    agent_grace_seconds: float = Field(
        86_400.0, gt=0, description="A session whose agent no live worker offers is parked after this time."
    )
    agents_seen_seconds: float = Field(60.0, gt=0, description="A worker not heard of for this long does not count.")
    task_events: bool = Field(True, description="Task events for Flower; about half a millisecond a step.")
    metrics_port: int | None = Field(None, ge=1, le=65535, description="Prometheus metrics of the worker. None: off.")
    metrics_address: str = Field("127.0.0.1", description="Where the metrics listen.")
    traces: bool = Field(False, description="OpenTelemetry spans (exporter settings from OTEL_*).")
    log_format: str = Field("text", pattern="^(text|json)$", description="json: one object a line with session ids.")
    log_level: str = Field("INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="Of our own loggers.")
    webhook_secret: str | None = Field(
        None, min_length=1, description="HMAC key of completion webhooks. None: webhooks are refused."
    )
    token_secret: str | None = Field(
        None,
        min_length=16,
        description="Key of the tokens that answer a request or complete a call. None: asking for one is refused.",
    )
    http_address: str = Field("127.0.0.1:8080", description="Where `celery-agents serve` listens: host:port.")
    http_token_secrets: str | None = Field(
        None,
        description="Bearer tokens of the HTTP interface and what each may do, comma separated: "
        "<token>:<scope>+<scope>, with scopes submit, read, answer, stop, admin; with :<key>=<value> behind them it "
        "reaches the sessions with this label alone. None: only this machine may ask.",
    )
    http_origins: str = Field(
        "", description="Origins whose pages may call the HTTP interface, comma separated. Empty: none but its own."
    )
    provider_webhook_secrets: str | None = Field(
        None,
        description="What providers sign their webhooks with, comma separated: openai=whsec_…, several for a rotation. "
        "None: none are taken.",
    )
    http_max_body_bytes: int = Field(2_000_000, ge=1000, description="Longer bodies of HTTP requests are refused.")
    http_max_bodies_bytes: int = Field(
        64_000_000,
        ge=1000,
        description="Memory that the bodies of all present requests of one HTTP process may take, as they come and "
        "parsed; three quarters for tokens without admin, half for tokens of sessions.",
    )
    http_max_streams: int = Field(1_000, ge=1, description="Streams of events of one HTTP process at the same time.")
    webhook_allow: str = Field(
        "",
        description="Hosts and networks that webhooks may reach although they are not public, comma separated, such as "
        "hooks.internal or 10.2.0.0/16. Public addresses always may.",
    )
    crash: str | None = Field(
        None, description="Fault injection for tests: point:probability:seed[:stop=<seconds>]. Never in production."
    )

    @field_validator("*")
    @classmethod
    def _check_size(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse numbers that Redis, its scripts or a timer cannot hold."""
        is_time = (info.field_name or "").endswith("_seconds")
        most = _MOST_SECONDS if is_time else _MOST
        if isinstance(value, int | float) and value > most:
            raise ValueError(f"give {most} at most")
        if is_time and value and value < _LEAST_SECONDS:
            raise ValueError(f"give {_LEAST_SECONDS} at least: Redis counts milliseconds")
        return value

    @field_validator("retention_seconds", mode="before")
    @classmethod
    def _read_retention(cls, value: object) -> object:
        return None if value == "none" else value

    @field_validator("webhook_secret", "token_secret", "http_token_secrets", "provider_webhook_secrets")
    @classmethod
    def _check_secret(cls, value: str | None) -> str | None:
        if value is not None and not _split_names(value):
            raise ValueError("it is empty, and no secret; give one, or unset it")
        return value

    @field_validator("redis_url", "broker_url")
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        url = canonical_url(value)
        check_url(url)
        return url

    @field_validator("archive_url")
    @classmethod
    def _check_archive(cls, value: str | None) -> str | None:
        if value is not None:
            ArchiveUrl.parse(value)
        return value

    @field_validator("webhook_allow")
    @classmethod
    def _check_allowed(cls, value: str) -> str:
        AllowedNetworks.parse(value)
        return value

    @field_validator("redis_url")
    @classmethod
    def _check_redis(cls, value: str) -> str:
        if not value.startswith((*ONE_SERVER, *SENTINELS, *CLUSTERS)):
            known = ", ".join((*ONE_SERVER, *SENTINELS, *CLUSTERS))
            raise ValueError(f"the store must be a Redis ({known}), not {value.split(':', maxsplit=1)[0]}://")
        return value

    @field_validator("broker_url")
    @classmethod
    def _check_broker(cls, value: str | None) -> str | None:
        if value is not None and uses_cluster(value):
            raise ValueError(
                "Celery has no broker for a Redis Cluster; name one server, Sentinels or RabbitMQ, such as "
                "redis://host:6379/0"
            )
        return value

    @field_validator("http_address")
    @classmethod
    def _check_address(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if not (host and is_host(host) and port.isdecimal() and len(port) <= 5 and int(port) <= 65_535):
            raise ValueError(f"{value!r} is no address; write it like 127.0.0.1:8080 or [::]:8080")
        return value

    @field_validator("http_origins")
    @classmethod
    def _check_origins(cls, value: str) -> str:
        check_origins(_split_names(value))
        return value

    @field_validator("control_tasks")
    @classmethod
    def _check_control_tasks(cls, value: str) -> str:
        for name in _split_names(value):
            if name not in (*CONTROL_TASKS, "all"):
                raise ValueError(f"{name!r} is no control task; choose from all, {', '.join(CONTROL_TASKS)}")
        return value

    @field_validator("queues")
    @classmethod
    def _check_queues(cls, value: str) -> str:
        for name in _split_names(value):
            if name != DEFAULT_QUEUE and not QUEUE_NAME.fullmatch(name):
                raise ValueError(
                    f"{name!r} is no queue of an agent: write 1 to 64 letters, digits, '_' or '-', or {DEFAULT_QUEUE!r}"
                )
        return value

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.lease_renew_seconds * 2 > self.lease_seconds:
            raise ValueError(
                f"lease_renew_seconds={self.lease_renew_seconds} is more than half of lease_seconds="
                f"{self.lease_seconds}; one late renewal would lose the claim. Take a quarter of the lease."
            )
        if self.broker_url is None and uses_cluster(self.redis_url):
            raise ValueError(
                "CELERY_AGENTS_REDIS_URL names a cluster, which Celery cannot use as its broker; set "
                "CELERY_AGENTS_BROKER_URL to one server, Sentinels or RabbitMQ, such as redis://host:6379/0"
            )
        if self.replicas and self.replica_timeout_seconds >= self.redis_timeout_seconds:
            raise ValueError(
                f"replica_timeout_seconds={self.replica_timeout_seconds} is not less than redis_timeout_seconds="
                f"{self.redis_timeout_seconds}; Redis would seem to be away while it waits for its replicas"
            )
        if self.queue_name(self.control_queue) is not None:
            raise ValueError(
                f"control_queue={self.control_queue!r} is a queue of steps, as queue={self.queue!r} names them; "
                "give it a name of its own"
            )
        for name in _GROWING:
            first, most = getattr(self, f"{name}_seconds"), getattr(self, f"{name}_max_seconds")
            if most < first:
                raise ValueError(f"{name}_max_seconds={most} is less than {name}_seconds={first}; raise it, too")
        if self.suspect_attempts > self.attempts_limit:
            raise ValueError(
                f"suspect_attempts={self.suspect_attempts} is more than attempts_limit={self.attempts_limit}; "
                "no step would ever run alone before it fails"
            )
        return self

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        """The settings for people: without secrets, and URLs without passwords."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            if value and (name in _URLS or "secret" in name):
                value = hide_password(value) if name in _URLS else "(hidden)"
            yield name, value

    @property
    def broker(self) -> str:
        """URL of the Celery broker."""
        return self.broker_url or self.redis_url

    @property
    def secrets(self) -> tuple[str | None, ...]:
        """Values that must not be seen: secrets, and URLs whose passwords are."""
        named = (getattr(self, name) for name in type(self).model_fields if "secret" in name)
        tokens = (entry.partition(":")[0] for entry in _split_names(self.http_token_secrets or ""))
        keys = (entry.partition("=")[2] for entry in _split_names(self.provider_webhook_secrets or ""))
        return (self.redis_url, self.broker_url, self.archive_url, *named, *filter(None, (*tokens, *keys)))

    @property
    def allowed_origins(self) -> tuple[str, ...]:
        """The origins whose pages may call the HTTP interface, as browsers send them."""
        return tuple(origin.rstrip("/") for origin in _split_names(self.http_origins))

    @property
    def agent_modules(self) -> tuple[str, ...]:
        """Modules to import for agents, in order."""
        return _split_names(self.agents)

    def takes_control(self, name: str) -> bool:
        """Whether workers take a control task, by its name without the prefix, from the control queue."""
        accepted = _split_names(self.control_tasks)
        return "all" in accepted or name in accepted

    @property
    def chosen_queues(self) -> tuple[str, ...] | None:
        """Queues of agents that this worker is restricted to, "" for the common one; None: no restriction."""
        return tuple("" if name == DEFAULT_QUEUE else name for name in _split_names(self.queues)) or None

    def step_queue(self, name: str) -> str:
        """The broker's name of a queue of agents; "" is the common one."""
        return f"{self.queue}.{name}" if name else self.queue

    def queue_name(self, step_queue: object) -> str | None:
        """The name of a queue of agents by the broker's name of it; None: it is no queue of steps."""
        if step_queue == self.queue:
            return ""
        if not isinstance(step_queue, str) or not step_queue.startswith(f"{self.queue}."):
            return None
        name = step_queue[len(self.queue) + 1 :]
        return name if QUEUE_NAME.fullmatch(name.removeprefix(GROUP_MARK)) else None

    @classmethod
    def from_environment(
        cls,
        environment: Mapping[str, str] | None = None,
        *,
        default_redis_url: str | None = None,
        **overrides: Any,
    ) -> Settings:
        """Read the environment, refuse what is unknown.

        Args:
            default_redis_url: The store where the environment names none. None: the setting's own default.
            overrides: Values that count more than the environment; None is left out.
        Raises:
            SettingsError: A name or a value is wrong; the sentence says which and what to do.
        """
        source = os.environ if environment is None else environment
        values = dict(read_variables(source))
        unknown = sorted(set(values) - set(cls.model_fields))
        if unknown:
            raise SettingsError(describe_unknown(unknown, cls.model_fields))
        if default_redis_url is not None:
            values.setdefault("redis_url", default_redis_url)
        given = {name: value for name, value in overrides.items() if value is not None}
        return cls.build(**{**values, **given})

    @classmethod
    def build(cls, **values: Any) -> Settings:
        """Build settings from explicit values; the environment is not read.

        Raises:
            SettingsError: As for `from_environment`.
        """
        try:
            return _Explicit.model_validate(values)
        except ValidationError as error:
            raise SettingsError(_describe(error)) from None


class _Explicit(Settings):
    """Settings whose only source is the constructor."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)


def shown_queues(names: Iterable[str]) -> list[str]:
    """Name the queues that a worker takes as people know them, without that of its group.

    Args:
        names: As the registry has them: "" is the common queue.
    """
    return sorted(name or DEFAULT_QUEUE for name in names if not name.startswith(GROUP_MARK))


def _split_names(value: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(",") if name.strip())


def _describe(error: ValidationError) -> str:
    parts: list[str] = []
    for item in error.errors(include_url=False):
        name = ".".join(str(part) for part in item["loc"])
        given = item.get("input")
        shown = f"{PREFIX}{name.upper()}={_hide_secret(name, given)}: " if name else ""
        said = item["msg"].removeprefix("Value error, ")
        if isinstance(given, str):  # a URL in the wrong setting
            said = said.replace(repr(given), _hide_secret(name, given))
        parts.append(f"{shown}{said}")
    return "; ".join(parts)


def _hide_secret(name: str, value: object) -> str:
    if "secret" in name:
        return "(hidden)"
    return repr(hide_password(value) if isinstance(value, str) else value)
