"""The store of sessions and steps: a class for each of its users, on one database.

The methods of such a class are the verbs; each is in the file of its group, with its contract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ...config.redis_urls import uses_cluster, uses_sentinels
from ...config.settings import Settings
from ..archive.archive import open_archive
from .archiving.moving import Archiver
from .archiving.reaching import ArchivedSessions
from .archiving.through import ThroughArchive, TreesThroughArchive
from .cache import SessionCache
from .children.trees import Trees
from .clock import RedisClock
from .confirming import Confirmer
from .context import Publisher, StoreContext
from .database import Database
from .flow.bursts import BurstVerbs
from .flow.schedules import ScheduleVerbs
from .flow.verbs import FlowVerbs
from .housekeeping.callbacks import CallbackVerbs
from .housekeeping.dead_list import DeadListVerbs
from .housekeeping.histories import HistoryVerbs
from .housekeeping.inspection import FactVerbs, InspectVerbs
from .housekeeping.provider_jobs import ProviderJobListVerbs
from .housekeeping.pruning import PruneVerbs
from .housekeeping.registry import WorkerRegistry
from .housekeeping.sweeps import SweepVerbs
from .housekeeping.upgrading import UpgradeVerbs
from .live.streams import LiveVerbs
from .memory.database import MemoryDatabase
from .redis.cluster import connect_cluster
from .redis.connection import PlainSocket
from .redis.database import RedisDatabase, connect
from .redis.sentinel_views import KnownServers
from .requests.answering import AnswerVerbs
from .requests.listing import RequestListVerbs
from .sessions.acting import ActVerbs
from .sessions.budgets import BudgetVerbs
from .sessions.deleting import DeleteVerbs
from .sessions.execution_reads import ExecutionReadVerbs
from .sessions.job_charges import JobChargeVerbs
from .sessions.labelling import LabelVerbs
from .sessions.listing import ListVerbs
from .sessions.loading import LoadVerbs
from .sessions.messages import MessageVerbs
from .sessions.parking import ParkVerbs, QuarantineVerbs
from .sessions.part_reads import PartReadVerbs
from .sessions.past_reads import PastReadVerbs
from .sessions.reads import ReadVerbs
from .sessions.retrying import RetryVerbs
from .sessions.rewinding import RewindVerbs
from .sessions.spending import SpendingVerbs
from .sessions.stopping import HoldVerbs, StopVerbs
from .sessions.submitting import SubmitVerbs
from .sessions.summaries import SummaryVerbs
from .sessions.waiting_reads import WaitingReadVerbs
from .sessions.whole_sessions import WholeSessionVerbs
from .steps.claims import ClaimVerbs
from .steps.commits import CommitVerbs
from .steps.journals import JournalVerbs
from .steps.leases import LeaseVerbs
from .steps.provider_jobs import ProviderJobVerbs
from .steps.step_requests import StepRequestVerbs
from .steps.waits import WaitVerbs
from .tool_lists import ToolLists

if TYPE_CHECKING:
    from ..archive.sql_archive import Archive


class StepStore(
    ClaimVerbs,
    JournalVerbs,
    ProviderJobVerbs,
    StepRequestVerbs,
    WaitVerbs,
    CommitVerbs,
    LeaseVerbs,
    ParkVerbs,
):
    """The store as the engine needs it to run one step."""


class SessionActions(
    SubmitVerbs,
    ActVerbs,
    StopVerbs,
    MessageVerbs,
    HoldVerbs,
    BudgetVerbs,
    JobChargeVerbs,
    RetryVerbs,
    RewindVerbs,
    DeleteVerbs,
    WholeSessionVerbs,
    LoadVerbs,
    ListVerbs,
    LabelVerbs,
    SummaryVerbs,
    SpendingVerbs,
    ReadVerbs,
    PartReadVerbs,
    PastReadVerbs,
    ExecutionReadVerbs,
    WaitingReadVerbs,
):
    """Actions of clients on sessions, and reads. Each action is one transaction and is applied once."""


class RequestActions(AnswerVerbs, RequestListVerbs):
    """Answering, listing and finding the requests of sessions that wait."""


class Housekeeping(
    SweepVerbs,
    PruneVerbs,
    CallbackVerbs,
    HistoryVerbs,
    InspectVerbs,
    FactVerbs,
    QuarantineVerbs,
    UpgradeVerbs,
    DeadListVerbs,
    ProviderJobListVerbs,
):
    """The work of workers besides their steps, and the facts that operators look at."""


class Flow(FlowVerbs, ScheduleVerbs, BurstVerbs):
    """Limits and pauses, reservations of requests to providers, schedules, and the sessions of bursts."""


class LiveText(LiveVerbs):
    """Provisional text besides the committed events."""


class Store:
    """Sessions and steps on one database.

    Attributes:
        steps: What the engine needs to run a step.
        sessions: What clients do to sessions and read of them.
        requests: What clients do to requests of sessions that wait.
        housekeeping: Sweep, callbacks, pruning, and what operators look at.
        registry: What workers tell about themselves.
        tool_lists: Lists of tools of remote servers.
        live: Text that is written while a step runs.
        flow: Limits and pauses, reservations of requests to providers, schedules, and the sessions of bursts.
        trees: Sessions with those that their agents have started.
        archived: Sessions in the archive, which the verbs of the other parts reach; None without an archive.
        archiver: What moves sessions there; None without one.
        context: What the parts share.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        *,
        clock: RedisClock,
        publisher: Publisher,
        confirmer: Confirmer | None = None,
        confirms_actions: bool = False,
    ) -> None:
        self.context = StoreContext(
            database=database,
            clock=clock,
            settings=settings,
            publisher=publisher,
            cache=SessionCache(settings.cache_bytes),
            confirmer=confirmer,
            confirms_actions=confirms_actions,
        )
        self.steps = StepStore(self.context)
        self.sessions = SessionActions(self.context)
        self.requests = RequestActions(self.context)
        self.housekeeping = Housekeeping(self.context)
        self.registry = WorkerRegistry(self.context)
        self.tool_lists = ToolLists(self.context)
        self.live = LiveText(self.context)
        self.flow = Flow(self.context)
        self.trees = Trees(self.context)
        self.archived: ArchivedSessions | None = None
        self.archiver: Archiver | None = None

    def reach(self, archive: Archive) -> None:
        """Let the verbs of this store reach the sessions in an archive."""
        found = self.archived = ArchivedSessions(self.context, archive)
        self.archiver = Archiver(self.context, archive)
        self.trees = TreesThroughArchive(self.context, found)
        self.sessions = cast("SessionActions", ThroughArchive(self.sessions, found))
        self.requests = cast("RequestActions", ThroughArchive(self.requests, found))
        self.live = cast("LiveText", ThroughArchive(self.live, found))

    def close(self) -> None:
        """Close the connections of the database; a later call opens new ones."""
        self.context.database.close()
        if self.archived is not None:
            self.archived.archive.close()


def redis_store(
    settings: Settings,
    *,
    name: str,
    publisher: Publisher | None = None,
    database: RedisDatabase | None = None,
    plain_socket: PlainSocket | None = None,
    confirms_actions: bool = False,
) -> Store:
    """Make a store on the Redis of the settings; nothing is sent yet.

    Args:
        name: Shown by `CLIENT LIST`.
        publisher: Publishes next steps inside the store's transactions. None: the caller publishes them.
        database: Used instead of a new connection pool.
        plain_socket: Lets the fibers of a loop share one connection; see `PlainSocket`.
        confirms_actions: Its actions are acknowledged outside; with `replicas` they are confirmed before.
    """
    chosen = database or (connect_cluster if uses_cluster(settings.redis_url) else connect)(
        settings.redis_url,
        timeout_seconds=settings.redis_timeout_seconds,
        connections=max(settings.redis_connections, 2 * settings.concurrency + 16),
        name=name,
        plain_socket=plain_socket,
        asks_primary=settings.replicas > 0,
    )
    ask_servers = KnownServers(settings.redis_url).ask if uses_sentinels(settings.redis_url) else list
    confirmer = Confirmer(chosen, settings, ask_servers) if settings.replicas else None
    store = Store(
        chosen, settings, clock=RedisClock(), publisher=publisher or Publisher(),
        confirmer=confirmer, confirms_actions=confirms_actions,
    )  # fmt: skip
    if settings.archive_url is not None:
        store.reach(open_archive(settings.archive_url))
    chosen.on_lost = store.context.forget_server
    return store


def memory_store(settings: Settings) -> Store:
    """Make a store that lives as long as the object."""
    return Store(MemoryDatabase(), settings, clock=RedisClock(), publisher=Publisher())
