"""The verbs of a client that read trees of sessions, stop them, and hold them."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Final

from ...worker.engine.transitions import stop_transition
from ...worker.errors import ActionRefused, SessionConflict, SessionNotFound, StateUnreadable
from ...worker.state.values.ids import read_session_id
from ...worker.store.children.trees import TreeNode
from ...worker.store.event_records import Event, EventType
from ...worker.store.session_records import Header
from .connection import ClientConnection
from .inputs import check_seconds

ACTIVE: Final = ("pending", "in_progress", "waiting")
_PAUSE_SECONDS: Final = 0.05
_BLOCK_MS: Final = 200
_BATCH: Final = 200


@dataclass(frozen=True, slots=True)
class TreeEvent:
    """An event of a tree, with the place it comes from.

    Attributes:
        path: Ids of the sessions from the root down to the one of the event.
        agent: The agent of that session.
    """

    path: tuple[str, ...]
    agent: str
    event: Event


@dataclass(slots=True)
class _Followed:
    """A session whose events are followed, and how far they have been read."""

    path: tuple[str, ...]
    agent: str
    execution_id: str
    position: str = "0"


class TreeVerbs(ClientConnection):
    """Reads a session together with the sessions below it, and acts on all of them."""

    def tree(self, session_id: str) -> TreeNode:
        """Read a session and the sessions that its agents have started, with what all of them have used.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
        """
        return self.store.trees.tree(read_session_id(session_id))

    def tree_events(self, session_id: str, *, timeout: float | None = None) -> Generator[TreeEvent]:
        """Follow the events of a session's execution and of all sessions below it, as one stream, until it ends.

        Events of one session are in their order; those of several sessions follow each other by Redis's time, as far as
        they were read together.

        Args:
            timeout: Seconds in all; None waits as long as it takes.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            TimeoutError: The execution has not ended in time, and is not stopped.
        """
        check_seconds(timeout)
        header = self.store.sessions.header(read_session_id(session_id))
        deadline = None if timeout is None else time.monotonic() + timeout
        root = _Followed((header.session_id,), header.agent, header.execution_id or "")
        return self._follow_tree(root, deadline)

    def _follow_tree(self, root: _Followed, deadline: float | None) -> Generator[TreeEvent]:
        followed = {root.path[-1]: root}
        while True:
            has_ended = not self._is_active(root.path[-1])  # asked before the read, which then finds the last events
            found = self._read_events(followed)
            yield from found
            if has_ended and not found:
                return
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"session {root.path[-1]} has not ended in time; it goes on")
            if not found:
                self.store.sessions.watch(root.path[-1], root.position, _BLOCK_MS)

    def _read_events(self, followed: dict[str, _Followed]) -> list[TreeEvent]:
        """The new events of these sessions; sessions that they start are followed from now on."""
        found: list[TreeEvent] = []
        for each in list(followed.values()):
            for event in self.store.sessions.events(each.path[-1], each.position, _BATCH):
                each.position = event.id
                if event.execution_id != each.execution_id:
                    continue
                found.append(TreeEvent(each.path, each.agent, event))
                if event.type == EventType.CHILD_STARTED:
                    child = str(event.data.get("session", ""))
                    agent = str(event.data.get("agent", ""))
                    followed[child] = _Followed((*each.path, child), agent, str(event.data.get("execution", "")))
        return sorted(found, key=lambda each: each.event.at_ms)

    def _stop_below(self, session_id: str, by: str | None) -> set[str]:
        """Stop the sessions below one that was stopped just now, parents first.

        Returns:
            Ids of the sessions that were told to stop.
        """

        def stop(child: str) -> None:
            applied = self.store.sessions.stop(child, None, stop_transition, by=by)
            self._publish(applied.publish)

        return self._walk(session_id, stop)

    def _walk(self, session_id: str, act: Callable[[str], object]) -> set[str]:
        """Act on each active session below this one, parents first, until a listing shows no further one.

        A session that is stopped or held starts no children, so the listing comes to an end.
        """
        done: set[str] = set()
        for header in self.store.trees.active_below(session_id):
            done.add(header.session_id)
            try:
                act(header.session_id)
            except (SessionNotFound, ActionRefused, StateUnreadable):
                continue  # it has ended or expired since it was listed, or cannot be read, so that no worker goes on
        return done

    def _act_on_each(self, found: Iterable[Header], act: Callable[[Header], bool], dry_run: bool) -> Generator[str]:
        """Act on each of these sessions when its id is asked for, and yield the ids of those that changed.

        Args:
            dry_run: Yield all ids, and act on none.
        """
        for each in found:
            try:
                changed = dry_run or act(each)
            except (ActionRefused, SessionConflict, SessionNotFound, StateUnreadable, TimeoutError):
                continue  # it has changed or gone since it was listed, cannot be read, or what is below it runs on
            if changed:
                yield each.session_id

    def _wait_for_ends(self, sessions: set[str], deadline: float | None) -> None:
        """Wait until none of these sessions has an execution that runs or waits.

        Args:
            deadline: `time.monotonic()` until which it waits; None: as long as it takes.
        Raises:
            TimeoutError: One has not ended yet; it will be stopped all the same.
        """
        left = set(sessions)
        while left:
            left = {each for each in left if self._is_active(each)}
            if not left:
                return
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{len(left)} sessions of the tree have not ended yet, such as {min(left)}")
            time.sleep(_PAUSE_SECONDS)

    def _is_active(self, session_id: str) -> bool:
        try:
            return self.store.sessions.header(session_id).status in ACTIVE
        except SessionNotFound:
            return False
