"""Erasing: everything that is stored of the sessions with a label, until nothing more of it is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import Field

from ...worker.archive.rows import Search
from ...worker.errors import InvalidInput, SessionNotFound, StateUnreadable
from ...worker.store.labels import check_labels
from .deleting import DeletingVerbs
from .inputs import check_caller, check_seconds
from .listing import Filter, iterate_all
from .verbs import BY, LONGEST_SECONDS, verb

_SECONDS: Final = 30.0
_ALL: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """The outcome of an erasure.

    Attributes:
        sessions: Ids of the sessions, with those below them and their forks.
        dead_entries: How many entries of the dead list named one of them.
        left: Sessions that are still there, each with the reason. Nothing: all is erased.
    """

    sessions: tuple[str, ...] = ()
    dead_entries: int = 0
    left: Mapping[str, str] = field(default_factory=dict[str, str])

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return {"sessions": list(self.sessions), "dead_entries": self.dead_entries, "left": dict(self.left)}


class ErasingVerbs(DeletingVerbs):
    """Erases what is stored of a customer or a user."""

    @verb(
        "POST", "/v1/erasures", "erase",
        body=("NewErasure", "The labels of the sessions to erase; a session needs all of them."),
        http={
            "label": Field(description="At least one."),
            "by": BY,
            "timeout": Field(alias="timeout_seconds", ge=0, le=LONGEST_SECONDS, description="For what runs of each."),
        },
    )  # fmt: skip
    def erase(self, *, label: Mapping[str, str], by: str | None = None, timeout: float | None = _SECONDS) -> Erasure:
        """Delete all sessions that have all of these labels, with the sessions below them and their forks.

        What of them runs is stopped first. Sessions that get the label meanwhile are deleted too: it looks again until
        it finds none. Entries of the dead list that name one of them go as well. Of each session its id stays for the
        retention, so that it is not used again.

        Args:
            timeout: Seconds to wait for what runs of one session; None: as long as it takes.
            by: Who asks; kept with the stop of what runs, and nowhere after it.
        Returns:
            What was removed, and what could not be. Erase again for what is left.
        Raises:
            InvalidInput: No label is named, or one is none; nothing was deleted.
        """
        labels = check_labels(label, "label")
        if not labels:
            raise InvalidInput("label", label, "name at least one; without a label there is nothing to erase.")
        check_caller(by)
        check_seconds(timeout)
        erased, left, tried, empty_looks = dict[str, None](), dict[str, str](), set[str](), 0
        while empty_looks < 2:  # the first may have missed a session that was restored while it looked
            listed = [each.session_id for each in iterate_all(self.store, Filter(labels=labels))]
            unlisted = self.store.sessions.find_labelled(labels).difference(listed, tried)  # they cannot be read
            tried |= unlisted
            names = [name for name in (*listed, *unlisted) if name not in left]
            ids = [each for name in names for each in (name, *self._forks_of(name))]
            empty_looks = 0 if ids else empty_looks + 1
            for name in reversed(ids):
                members = [*self._members_below(name), name]
                try:
                    self.delete(name, by=by, timeout=timeout)
                except (TimeoutError, StateUnreadable) as error:
                    left[name] = str(error)
                except SessionNotFound:
                    continue  # it went with another one
                else:
                    erased |= dict.fromkeys(members)
        if self.store.archived is not None:  # sessions whose ids others have by now
            for row in list(self.store.archived.earlier(Search(labels=labels))):
                self.store.archived.delete_earlier(row)
                erased[row.session.key.name] = None
        entries = self.store.housekeeping.forget_dead(erased) if erased else 0
        return Erasure(sessions=tuple(erased), dead_entries=entries, left=left)

    def _forks_of(self, session: str) -> list[str]:
        """Ids of the forks of a session and of those below it, and of their forks; a source comes before its forks."""
        root = session.partition(".")[0]
        below = self.store.sessions.find_matching(f"{root}.", _ALL)
        sources = {each.session_id: each.forked_from for each in self.store.sessions.headers_of(below)}
        tree, forks = {session, *self._members_below(session)}, dict[str, None]()
        while new := [name for name, source in sources.items() if source in tree and name not in forks]:
            forks |= dict.fromkeys(new)
            tree |= {each for name in new for each in (name, *self._members_below(name))}
        return list(forks)
