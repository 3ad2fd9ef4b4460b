"""The live text of a run: whether somebody follows it, and how a driver or a tool emits."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

from ..drivers import Delta
from ..errors import InvalidInput
from ..known_secrets import SecretStream, redact_known
from ..redaction import whole_unicode
from ..store import Attempt, Claimed, EventType, NewEvent
from .active_lease import ActiveLease
from .live_writer import AttemptText, LiveWriter

_MOST_BYTES: Final = 16_000


class RunText:
    """The live text of one attempt while it runs.

    Shared by all copies of its run. Where nobody follows the session, all of it costs a comparison of two numbers.
    """

    def __init__(
        self, writer: LiveWriter, claimed: Claimed, lease: ActiveLease, monotonic: Callable[[], float]
    ) -> None:
        self._writer = writer
        self._lease = lease
        self._monotonic = monotonic
        self._claimed = claimed
        # Redis's time at this machine's 0, at the earliest.
        self._ahead_ms = claimed.claim.now_ms - monotonic() * 1000
        self._call = 0
        self._secret_streams: dict[int, SecretStream] = {}

    @cached_property
    def _text(self) -> AttemptText:
        """The pieces of this attempt; made when it emits the first one."""
        return AttemptText(Attempt(self._claimed.claim, self._claimed.loaded.legs))

    @property
    def is_followed(self) -> bool:
        """Whether somebody follows the session now."""
        return self._lease.followed_until_ms > self._monotonic() * 1000 + self._ahead_ms

    def begin_call(self) -> Callable[[Delta], None] | None:
        """Begin a driver call: takes its deltas while it runs. None: nobody follows it."""
        self._call += 1
        if not self.is_followed:
            return None
        call = self._call

        def emit(delta: Delta) -> None:
            if delta.text:
                self._writer.add(self._text, call, delta.part, whole_unicode(delta.text))

        return emit

    def void_call(self) -> NewEvent | None:
        """Take back what the last driver call has emitted: it has failed. None: no reader has seen anything of it."""
        if not self._call or not self._writer.void(self._text, self._call):
            return None
        claim, ref = self._claimed.claim, self._claimed.claim.ref
        data = {"attempt": claim.id, "call": self._call, "keeps_answer": False}
        return NewEvent(type=EventType.ATTEMPT_VOIDED, execution_id=ref.execution_id, step=ref.step, data=data)

    def emit_of_tool(self, index: int, value: Any) -> None:
        """Emit a text or a JSON value of a tool call.

        Raises:
            InvalidInput: The value is no text and no JSON, or too large.
        """
        piece = _check_piece(value)
        if isinstance(piece, str):
            stream = self._secret_streams.get(index) or self._secret_streams.setdefault(index, SecretStream())
            piece = stream.feed(piece)
        self._emit(index, piece)

    def end_tool(self, index: int) -> None:
        """Emit what was held back of a tool call's text because a secret might have begun with it."""
        stream = self._secret_streams.pop(index, None)
        if stream is not None:
            self._emit(index, stream.flush())

    def _emit(self, index: int, piece: str | bytes) -> None:
        if piece and self.is_followed:
            self._writer.add(self._text, 0, f"t{index}", piece)


def _check_piece(value: Any) -> str | bytes:
    """The value as it is stored: data without the secrets that are known, text as it is given.

    Raises:
        InvalidInput: It is no text and no JSON, or too large.
    """
    try:
        given = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
        size = len(given.encode())
    except (TypeError, ValueError, RecursionError):
        raise InvalidInput("value", value, "ctx.emit takes a text, or data of JSON.") from None
    if size > _MOST_BYTES:
        raise InvalidInput("value", value, f"ctx.emit takes at most {_MOST_BYTES} bytes; emit it in pieces.")
    return given if isinstance(value, str) else redact_known(given).encode()
