"""Changing the labels of a session, in one transaction with their index."""

from __future__ import annotations

from collections.abc import Mapping

from .. import fields
from ..context import SessionScope, StorePart
from ..database import Command
from ..labels import LABELS, check_number, index_commands, read_labels
from .loading import missing_error


class LabelVerbs(StorePart):
    """Labels of sessions."""

    def label(self, session_id: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set labels of a session, and remove those whose value is None; the others stay.

        Returns:
            All labels that it has now.
        Raises:
            SessionNotFound: There is no such session, or it has expired.
            InvalidInput: It would have too many; nothing was changed.
        """
        scope = self._context.session(session_id)
        return scope.act_once(lambda: _label(scope, changes), "be labelled")


def _label(scope: SessionScope, changes: Mapping[str, str | None]) -> dict[str, str]:
    keys = scope.keys
    reads: list[Command] = [("HMGET", keys.session, "version", LABELS)]
    with scope.database.watch("label.read", (keys.session,), reads) as watched:
        ((version, stored),) = watched.replies
        if version is None:
            raise missing_error(scope.context, scope.session_id)
        before = read_labels(stored)
        after = {key: value for key, value in {**before, **changes}.items() if value is not None}
        check_number(len(after))
        if after != before:
            watched.commit(
                "label.exec",
                [("HSET", keys.session, LABELS, fields.to_json(after)), *index_commands(keys, before, after)],
            )
        return after
