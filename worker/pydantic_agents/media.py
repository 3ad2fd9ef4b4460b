"""Media in the results of tools: kept as media where they fit, so that each later request has them as media, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelRequestPart

_ENVELOPE_BYTES: Final = 1_000
"""Of a result besides its contents: names, times, usage."""

_ITEM_BYTES: Final = 300
"""Of a medium besides its data."""


def holds_media(content: Any) -> bool:
    """Tell whether a result has media in it, also within lists and objects."""
    from pydantic_ai.messages import is_multi_modal_content

    if isinstance(content, str) or content is None:
        return False
    if is_multi_modal_content(content):
        return True
    if isinstance(content, Mapping):
        return any(map(holds_media, cast("Mapping[str, Any]", content).values()))
    return isinstance(content, (list, tuple)) and any(map(holds_media, cast("Sequence[Any]", content)))


def limit_media(parts: Sequence[ModelRequestPart], most_bytes: int) -> list[ModelRequestPart]:
    """Leave out the media that a result has no room for; a sentence in their place says so to the model.

    Args:
        most_bytes: Bytes of the result as it is stored.
    """
    room = _Room(most_bytes)
    return [replace(part, content=room.fit(part.content)) if hasattr(part, "content") else part for part in _any(parts)]


class _Room:
    """The bytes that are left for the media of a result."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._left = most_bytes - _ENVELOPE_BYTES

    def fit(self, content: Any) -> Any:
        """The content with those of its media that have room."""
        from pydantic_ai.messages import BinaryContent

        if isinstance(content, BinaryContent):
            size = len(content.data) * 4 // 3 + _ITEM_BYTES  # it is stored as base64
            if size > self._left:
                return self._describe(content)
            self._left -= size
        elif isinstance(content, Mapping):
            return {name: self.fit(each) for name, each in cast("Mapping[str, Any]", content).items()}
        elif isinstance(content, (list, tuple)):
            return [self.fit(each) for each in cast("Sequence[Any]", content)]
        return content

    def _describe(self, content: Any) -> str:
        return (
            f"[{content.media_type} of {len(content.data)} bytes is left out: as text, a result may have "
            f"{self._most_bytes} bytes (CELERY_AGENTS_MAX_RESULT_BYTES). Return a smaller one, or its URL.]"
        )


def _any(parts: Sequence[Any]) -> Sequence[Any]:
    return parts
