"""The verbs of a client that read trees of sessions, stop them, and hold them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ...worker.engine.transitions import stop_transition
from ...worker.errors import ActionRefused, SessionNotFound
from ...worker.state import read_session_id
from ...worker.store import Header
from ...worker.store.children.trees import TreeNode
from .connection import ClientConnection

ACTIVE: Final = ("pending", "in_progress", "waiting")
_PAUSE_SECONDS: Final = 0.05


class TreeVerbs(ClientConnection):
    """Reads a session together with the sessions below it, and acts on all of them."""

    def tree(self, session_id: str) -> TreeNode:
        """Read a session and the sessions that its agents have started, with what all of them have used.

        Raises:
            SessionNotFound: There is no such session, or it has expired.
        """
        return self.store.trees.tree(read_session_id(session_id))

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
        while True:
            fresh = [each.session_id for each in self._active_below(session_id) if each.session_id not in done]
            if not fresh:
                return done
            for child in fresh:
                done.add(child)
                try:
                    act(child)
                except (SessionNotFound, ActionRefused):
                    continue  # it has ended or expired since it was listed

    def _active_below(self, session_id: str) -> list[Header]:
        try:
            return [header for header in self.store.trees.below(session_id) if header.status in ACTIVE]
        except SessionNotFound:
            return []

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
