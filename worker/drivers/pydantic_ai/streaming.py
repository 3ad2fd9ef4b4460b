"""Streaming an answer of pydantic-ai: its text is emitted while it arrives, and the whole is the same answer."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import AsyncIterable, Callable
from typing import TYPE_CHECKING, Any, Final

from ...errors import DriverError
from ..answers import answer_too_large
from ..protocol import Delta, InferenceRequest
from .provider_rules import rules_of
from .received import INTERRUPTED, check_is_whole, interrupted_stream

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters

STREAM_OVERHEAD: Final = 64
"""How many times longer than its answer a stream may be: each piece has a frame of its own."""

_MOST_MISSING: Final = 2
"""Streams without a finish reason after which a model is asked without."""

_HAS_REASONS: Final = -(10**9)
"""The count of a model that has ended a stream with a reason: its streams without one were cut."""

_HALF: Final = re.compile("[\ud800-\udbff]")
"""The first half of a surrogate pair."""

_logger = logging.getLogger(__name__)

_BETWEEN_PARTS: Final = "\n\n"
CANNOT_STREAM: Final = (NotImplementedError, AssertionError)
"""The errors of models that cannot stream, raised before they ask anybody."""


class EmittedText:
    """Emits the text of an answer's parts, joined as the finished answer joins them.

    Args:
        emit: Takes the pieces.
        kinds: Kinds of parts that are emitted, of "text" and "thinking".
        most_bytes: A longer answer is not read to its end.
        name: Of the driver, for the error.

    Attributes:
        has_begun: The model has answered something.
    """

    def __init__(self, emit: Callable[[Delta], None], *, kinds: tuple[str, ...], most_bytes: int, name: str) -> None:
        self._emit = emit
        self._kinds = kinds
        self._most_bytes = most_bytes
        self._name = name
        self._size = 0
        self.has_begun = False
        self._last: dict[str, int] = {}
        self._of: dict[int, str] = {}
        self._half: dict[int, str] = {}

    async def emit_all(self, events: AsyncIterable[Any]) -> None:
        """Emit what a stream of events tells, until its end.

        Raises:
            DriverError: The answer is too large.
        """
        async for event in events:
            self.has_begun = True
            if event.event_kind == "part_start":
                self._of[event.index] = event.part.part_kind
                self._take(event.index, getattr(event.part, "content", None))
            elif event.event_kind == "part_delta":
                self._count(getattr(event.delta, "args_delta", None))
                self._take(event.index, getattr(event.delta, "content_delta", None))

    def _take(self, index: int, text: object) -> None:
        if not isinstance(text, str) or not text:
            return
        self._count(text)
        text = self._half.pop(index, "") + text
        if _HALF.fullmatch(text[-1]):  # the provider cut between the halves of a character
            text, self._half[index] = text[:-1], text[-1]
            if not text:
                return
        kind = self._of.get(index, "")
        if kind not in self._kinds:
            return
        before = self._last.get(kind)
        self._last[kind] = index
        self._emit(Delta(text if before in (None, index) else _BETWEEN_PARTS + text, kind))

    def _count(self, piece: object) -> None:
        self._size += len(piece) if isinstance(piece, str) else 0
        if self._size > self._most_bytes:
            raise answer_too_large(self._name, self._most_bytes)


async def ask_streaming(
    model: Model,
    asked: tuple[list[ModelMessage], Any, ModelRequestParameters],
    text: EmittedText,
) -> ModelResponse:
    """Ask a model once, as a stream; a model that cannot stream is asked without.

    Args:
        asked: Messages, settings and parameters of the request.
    Raises:
        DriverError: The stream ended before the answer was whole.
    """
    from pydantic_ai.exceptions import UnexpectedModelBehavior

    async with contextlib.AsyncExitStack() as stack:
        try:
            stream = await stack.enter_async_context(model.request_stream(*asked))
        except CANNOT_STREAM:
            return await model.request(*asked)
        except UnexpectedModelBehavior:
            raise interrupted_stream(model.model_id) from None  # it ended before it began, or is no stream
        await text.emit_all(stream)
        response = stream.get()
    check_is_whole(response, rules_of(model, response), model.model_id, streamed=True)
    return response


class StreamEnds:
    """Remembers which models are asked without a stream, because their servers never say that a stream is whole.

    A stream without a finish reason was cut, and is asked again. Some servers of OpenAI's interface give none at all:
    where two streams in a row had none and none before them had one, this process asks for whole answers.
    """

    def __init__(self) -> None:
        self._missing: dict[str, int] = {}

    def may_stream(self, model: str) -> bool:
        """Whether to ask a model for a stream."""
        return self._missing.get(model, 0) < _MOST_MISSING

    def count(self, model: str, error: Exception | None = None) -> None:
        """Take notice of how a stream ended."""
        if error is None:
            self._missing[model] = _HAS_REASONS
        elif isinstance(error, DriverError) and error.kind == INTERRUPTED:
            missing = self._missing.get(model, 0) + 1
            self._missing[model] = missing
            if missing == _MOST_MISSING:
                _logger.warning("%s ends streams without a finish reason; it is asked for whole answers", model)


def emitted_text(request: InferenceRequest, name: str, *, is_shaped: bool = False) -> EmittedText | None:
    """Make the emitter of the answer to a request; None when no client watches.

    Args:
        is_shaped: The text is JSON of a shape, and the answer says it in another way.
    """
    if request.emit is None:
        return None
    kinds = ("thinking",) if is_shaped else ("text", "thinking")
    return EmittedText(request.emit, kinds=kinds, most_bytes=request.max_answer_bytes, name=name)
