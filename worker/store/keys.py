"""Every Redis key of the product in one place, with its type, life and writer.

All keys of a session share the hash tag `{k}`, so that a transaction over them stays in one slot. In a cluster, keys
of the fleet begin with `ca:{fleet}:` instead of `ca:`.

| key | type | life | written by |
|---|---|---|---|
| `ca:{k}:s:<sid>` | hash | session | every commit and action |
| `ca:{k}:s:<sid>:ctl` | hash | session | claim, commit, actions |
| `ca:{k}:s:<sid>:m:<section>:<generation>` | list | session | commit, actions (append) |
| `ca:{k}:s:<sid>:p:<part>:<generation>` | list | session | commit (append); `<part>` of an execution ends in `.x` |
| `ca:{k}:s:<sid>:x:<eid>` | list | session | commit (append) |
| `ca:{k}:s:<sid>:j:<eid>:<n>` | hash | until its commit, then a minute or the retention; a failed one's stays | step |
| `ca:{k}:s:<sid>:h` | hash | session | the save that replaces a value which a committed step had |
| `ca:{k}:s:<sid>:inbox` | list | session | actions push, commit trims |
| `ca:{k}:s:<sid>:events` | stream, capped | session | every transaction of the session |
| `ca:{k}:s:<sid>:live` | stream, capped | minutes after its last entry | live text, outside all transactions |
| `ca:{k}:lease:<claim>` | string | lease | claim, heartbeat |
| `ca:{k}:due` | zset | permanent | the transaction that makes or ends work |
| `ca:{k}:delayed` | zset | permanent | session → next try of a delayed step; the release, pruned by the sweep |
| `ca:{k}:sessions` | zset | permanent | the transaction that saves; pruned by the sweep |
| `ca:{k}:failed` | zset | permanent | the transaction that fails or retries an execution; pruned by the sweep |
| `ca:{k}:ending` | zset | permanent | session → when its keys expire; from it the sweep prunes the indexes |
| `ca:{k}:callbacks` | zset | permanent | `<sid> <eid> <kind> <retries>` → when due, for an end or a request |
| `ca:{k}:unoffered` | zset | permanent | `<agent> <sid>` of sessions whose agent no live worker offers, score 0 |
| `ca:{k}:requests` | zset | permanent | open requests → when asked; wait, answer, expiry and every end |
| `ca:{k}:children` | zset | permanent | children of all trees, score 0; the wait that makes one, pruned by the sweep |
| `ca:{k}:archive` | zset | permanent | `<sid> <created>` of deleted sessions → when the archive may forget them |
| `ca:{k}:jobs` | hash | permanent | id of an open job at a provider → its step; the step, and who cleans up |
| `ca:{k}:old_jobs` | hash | permanent | jobs with an answer, until who cleans up has deleted what the provider keeps |
| `ca:{k}:labels` | zset | permanent | labels of sessions and sessions of labels, score 0; see `labels` |
| `ca:{k}:schedules` | hash | permanent | schedules by name, of the first shard alone; clients, and workers at a slot |
| `ca:{k}:scheduled` | zset | permanent | schedule → when to look at it (Redis ms), of the first shard alone |
| `ca:{k}:dead` | stream, capped | permanent | parked steps, quarantined messages |
| `ca:{k}:sweeper` | string | seconds | the sweep's lock |
| `ca:{k}:confirm`, `ca:confirm` | hash | 40 days after its last use | confirmations; it holds nothing |
| `ca:{k}:server` | string | permanent | replication id of the primary, and since when; a sweep or takeover |
| `ca:agents`, `ca:workers` | hash | permanent | workers, about themselves |
| `ca:tools:<server>` | string | 40 days | digest of the newest list of tools of a remote server; a worker that got it |
| `ca:tools:<server>:fresh` | string | as long as the list is used | a worker that got it |
| `ca:tool-list:<digest>` | string | 40 days, renewed by steps | a list of tools; a worker that got it |
| `ca:shards` | string | permanent | the first process |
| `ca:flow` | hash | permanent | limits, pauses, known buckets; clients, and workers that learn |
| `ca:burst:<name>` | hash | 30 days | the session that takes the messages under a debounce key; clients |
| `ca:burst:<name>:<operation>` | hash | a day | session of an idempotency key, or the time of its run; clients |
| `ca:cap:<name>:<period>:spent`, `:held` | zset, hash | a day behind the period | money spent; money reserved |
| `ca:rate:<digest>` | hash | an hour, or until its *not before* and an hour | a bucket; the script `bucket` |
| `ca:rate:<digest>:held` | zset | the longest lease | reservation → end of its lease; the script |
| `ca:rate:<digest>:line` | zset | a minute after the last appointment | session → its appointment; the script |
| `ca:rate:<digest>:failures`, `:calls` | zset, hash | a minute | failed calls, and those of each worker; the script |
| `ca:{fleet}:alive` | zset | an hour | in a cluster: worker → until when its reservations count |

*session* life: no TTL while an execution is active or waiting, the retention afterwards; a parked one is pruned.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Iterator
from typing import Final

# A pub/sub channel, never stored: each worker subscribes to its own.
WAKE_CHANNEL: Final = "ca:wake:"
# A pub/sub channel that tells all workers of a change of `FleetKeys.flow`. No worker has this name.
FLOW_CHANNEL: Final = "ca:wake:flow"
PERMANENT: Final = re.compile(
    r"^ca:((\{fleet\}:)?(agents|workers|shards|flow|primary)|\{\d+\}:(due|delayed|sessions|failed|ending|callbacks|requests|unoffered|children|labels|archive|dead|server|lost|schedules|scheduled|jobs|old_jobs))$"
)


class FleetKeys:
    """Keys of the whole fleet: agents, workers, limits, lists of tools. In a cluster, all are in one slot.

    Attributes:
        alive: In a cluster, the workers that have reserved requests, which a bucket cannot tell by their leases.
        confirm: Written by a confirmation of what the fleet's keys hold.
        lines: The parts of concurrency limits in whose lines somebody stands.
        none: Never stored: deleting it tells whether Redis takes writes.
        primary: The replication id of the server of these keys, and since when it is known.
    """

    def __init__(self, *, is_apart: bool = False) -> None:
        """
        Args:
            is_apart: The store is a cluster, where no transaction spans these keys and those of sessions.
        """
        self.is_apart = is_apart
        self.prefix = "ca:{fleet}:" if is_apart else "ca:"
        self.agents = self.prefix + "agents"
        self.workers = self.prefix + "workers"
        self.shards = self.prefix + "shards"
        self.flow = self.prefix + "flow"
        self.alive = self.prefix + "alive"
        self.confirm = self.prefix + "confirm"
        self.none = self.prefix + "none"
        self.lines = self.prefix + "lines"
        self.primary = self.prefix + "primary"

    def newest_tools(self, server: str) -> str:
        """The digest of the newest list of tools of a remote server."""
        return f"{self.prefix}tools:{server}"

    def fresh_tools(self, server: str) -> str:
        """The key that exists as long as the server need not be asked for its list again."""
        return f"{self.prefix}tools:{server}:fresh"

    def tool_list(self, digest: str) -> str:
        """A list of tools by its digest."""
        return f"{self.prefix}tool-list:{digest}"

    def rate(self, digest: str) -> BucketKeys:
        """Name the keys of a bucket by its digest."""
        return BucketKeys(f"{self.prefix}rate:{digest}")

    def burst(self, name: str) -> str:
        """The session that takes the messages under a debounce key, by the name of the burst."""
        return f"{self.prefix}burst:{name}"

    def cap(self, name: str, window: str) -> CapKeys:
        """Name the keys of a spend cap in one period."""
        return CapKeys(f"{self.prefix}cap:{name}:{window}")

    def holders(self, part: str) -> HolderKeys:
        """Name the keys of a part of a concurrency limit, by its text."""
        return HolderKeys(f"{self.prefix}holders:{part}")


class CapKeys:
    """Keys of a spend cap in one period.

    Attributes:
        spent: Money that is spent and reserved, by the value of the cap's label.
        held: What is reserved, by reservation.
        all: In the order in which the script `caps` takes them.
    """

    def __init__(self, prefix: str) -> None:
        self.spent = prefix + ":spent"
        self.held = prefix + ":held"
        self.all = (self.spent, self.held)


class HolderKeys:
    """Keys of one part of a concurrency limit.

    Attributes:
        held: Who counts, by the end of its lease.
        line: The sessions that wait, by their arrival.
        called: Those that may go, by the time at which they were called.
        claims: Those that wait, by the time of the claim that stands in the line.
        all: In the order in which the script `holders` takes them.
    """

    def __init__(self, prefix: str) -> None:
        self.held = prefix + ":held"
        self.line = prefix + ":line"
        self.called = prefix + ":called"
        self.claims = prefix + ":claims"
        self.all = (self.held, self.line, self.called, self.claims)


class BucketKeys:
    """Keys of one bucket of requests to a provider.

    Attributes:
        all: In the order in which the script `bucket` takes them.
    """

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        self.held = self.bucket + ":held"
        self.line = self.bucket + ":line"
        self.failures = self.bucket + ":failures"
        self.calls = self.bucket + ":calls"
        self.all = (self.bucket, self.held, self.line, self.failures, self.calls)


FLEET: Final = FleetKeys()
"""The keys of the fleet where the store is one server."""


def root_of(session_id: str) -> str:
    """The id of the session at the root of a tree: children and forks are called `<root>.<32 hex>`."""
    return session_id.partition(".")[0]


def failed_sinks_field(execution_id: str) -> str:
    """The field of a session that says why sinks failed at the trace of an execution after its last commit."""
    return f"t:{execution_id}"


def joined_field(operation_id: str) -> str:
    """The field of a session's hash with the execution that a message has joined."""
    return f"o:{operation_id}"


def placement_field(operation_id: str) -> str:
    """The field of a session's hash that says where a message with an idempotency key went."""
    return f"p:{operation_id}"


def fingerprint_field(operation_id: str) -> str:
    """The field of a session's hash with the digest of what was sent under an idempotency key."""
    return f"f:{operation_id}"


def forget_operations(keys: SessionKeys, known: Iterable[str], kept: Collection[str]) -> Iterator[tuple[str, ...]]:
    """Commands that delete what is stored of operations that are not kept any more."""
    for each in known:
        if each not in kept:
            yield ("HDEL", keys.session, joined_field(each), fingerprint_field(each), placement_field(each))


def tree_range(root: str) -> tuple[str, str]:
    """The bounds in which the index `children` holds the sessions below a root, for ZRANGEBYLEX and ZLEXCOUNT."""
    return f"[{root}.", f"({root}/"  # "/" follows "."


def shard_of(session_id: str, shards: int) -> int:
    """The shard of a session, which is its root's: a transaction may cover a parent and its child."""
    return zlib.crc32(root_of(session_id).encode()) % shards


class ShardKeys:
    """Keys that the sessions of one shard share."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.prefix = f"ca:{{{shard}}}:"
        self.due = self.prefix + "due"
        self.delayed = self.prefix + "delayed"
        self.sessions = self.prefix + "sessions"
        self.failed = self.prefix + "failed"
        self.ending = self.prefix + "ending"
        self.callbacks = self.prefix + "callbacks"
        self.requests = self.prefix + "requests"
        self.children = self.prefix + "children"
        self.labels = self.prefix + "labels"
        self.archive = self.prefix + "archive"
        self.dead = self.prefix + "dead"
        self.sweeper = self.prefix + "sweeper"
        self.primary = self.prefix + "server"
        self.confirm = self.prefix + "confirm"
        self.lost = self.prefix + "lost"
        self.unoffered = self.prefix + "unoffered"
        self.schedules = self.prefix + "schedules"
        self.scheduled = self.prefix + "scheduled"
        self.jobs = self.prefix + "jobs"
        self.old_jobs = self.prefix + "old_jobs"
        # Those that a save writes to.
        self.indexes = frozenset((self.sessions, self.callbacks, self.failed, self.ending, self.due, self.labels))

    def lease(self, claim: str) -> str:
        """A claim's lease; the key exists as long as the claim is alive."""
        return f"{self.prefix}lease:{claim}"

    def session(self, session_id: str) -> SessionKeys:
        """Name the keys of one session of this shard."""
        return SessionKeys(self, session_id)


class SessionKeys:
    """Keys of one session."""

    __slots__ = ("ctl", "events", "inbox", "live", "next", "old_values", "session", "session_id", "shard")

    def __init__(self, shard: ShardKeys, session_id: str) -> None:
        self.shard = shard
        self.session_id = session_id
        self.session = f"{shard.prefix}s:{session_id}"
        self.ctl = self.session + ":ctl"
        self.inbox = self.session + ":inbox"
        self.next = self.session + ":next"
        self.old_values = self.session + ":h"
        self.events = self.session + ":events"
        self.live = self.session + ":live"

    @property
    def lasting(self) -> list[str]:
        """The keys with a fixed name that live as long as the session."""
        return [self.session, self.ctl, self.inbox, self.next, self.old_values, self.events]

    def section(self, section: str, generation: int) -> str:
        """The list of messages of one generation of a section."""
        return f"{self.session}:m:{section}:{generation}"

    def part(self, name: str, generation: int) -> str:
        """Items of one generation of a part that grows, by the name of `AgentState.part_lists`."""
        return f"{self.session}:p:{name}:{generation}"

    def steps(self, execution_id: str) -> str:
        """The list of committed steps of an execution."""
        return f"{self.session}:x:{execution_id}"

    def journal(self, execution_id: str, step: int) -> str:
        """The journal of a step: what it has obtained and not yet committed."""
        return f"{self.session}:j:{execution_id}:{step}"


def callback_note(session_id: str, execution_id: str, kind: str, retries: int) -> str:
    """The outbox entry for one end of an execution; the end after a retry has another one."""
    return f"{session_id} {execution_id} {kind} {retries}"


def archive_note(session_id: str, created_ms: int) -> str:
    """The entry of the archive's outbox for a session that was deleted."""
    return f"{session_id} {created_ms}"


def request_note(session_id: str, execution_id: str, kind: str, about: tuple[str, str]) -> str:
    """The outbox entry for one request that is open.

    Args:
        about: Id of the request, and of the operation that started its execution.
    """
    return f"{session_id} {execution_id} {kind} {' '.join(about)}"


def shard_keys(shards: int) -> tuple[ShardKeys, ...]:
    """Name the keys of all shards, by number."""
    return tuple(ShardKeys(number) for number in range(shards))
