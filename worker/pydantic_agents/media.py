"""The contents of results of tools: media stay media where they fit, so that each later request has them as such."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic_core import to_jsonable_python

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelRequestPart

_ENVELOPE_BYTES: Final = 1_000
"""Of a result besides its contents: names, times, usage."""

_ITEM_BYTES: Final = 300
"""Of a medium besides its data."""

_MARKER_BYTES: Final = 50
"""Of the words that say how much of a text is left out."""


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


def limit_contents(parts: Sequence[ModelRequestPart], most_bytes: int) -> list[ModelRequestPart]:
    """Leave out of a result what it has no room for, so that the rest can be read back as what it is.

    Longer texts are cut. A sentence in the place of a medium says so to the model.

    Args:
        most_bytes: Bytes of the result as it is stored.
    """
    return _Room(most_bytes).fit_each(parts)


def stored_bytes(value: Any) -> int:
    """The bytes of a value in the JSON text by which the engine measures a result."""
    return len(
        json.dumps(to_jsonable_python(value, bytes_mode="base64"), ensure_ascii=False).encode(errors="surrogatepass")
    )


class _Room:
    """The bytes that are left for the contents of a result."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._left = most_bytes - _ENVELOPE_BYTES

    def fit_each(self, contents: Iterable[Any]) -> list[Any]:
        """The contents in their order; the small ones have room before the large ones."""
        fitted = list(contents)
        for place in sorted(range(len(fitted)), key=lambda place: stored_bytes(fitted[place])):
            fitted[place] = self.fit(fitted[place])
        return fitted

    def _fit_part(self, part: Any) -> Any:
        """The part with as much of its content as there is room for; metadata, which no model reads, come last."""
        fitted = replace(part, content=self.fit(part.content)) if hasattr(part, "content") else part
        if getattr(part, "metadata", None) is None:
            return fitted
        size = stored_bytes(part.metadata)
        if size > self._left:
            return replace(fitted, metadata=None)
        self._left -= size
        return fitted

    def fit(self, content: Any) -> Any:
        """The content with what of it has room."""
        from pydantic_ai.messages import BinaryContent

        if hasattr(content, "part_kind"):
            return self._fit_part(content)
        if isinstance(content, BinaryContent):
            size = len(content.data) * 4 // 3 + _ITEM_BYTES  # it is stored as base64
        elif holds_media(content) and isinstance(content, (Mapping, list, tuple)):
            return self._fit_items(content)
        else:
            size = stored_bytes(content)
        if size <= self._left:
            self._left -= size
            return content
        if isinstance(content, BinaryContent):
            return self._describe(content)
        return self._cut(content if isinstance(content, str) else json.dumps(to_jsonable_python(content)))

    def _fit_items(self, items: Any) -> Any:
        if isinstance(items, Mapping):
            named = cast("Mapping[str, Any]", items)
            return dict(zip(named, self.fit_each(named.values()), strict=True))
        return self.fit_each(items)

    def _cut(self, text: str) -> str:
        """The beginning of a text, as the engine cuts a long result."""
        kept = text
        while kept and (size := stored_bytes(kept)) > max(0, self._left - _MARKER_BYTES):
            kept = kept[: min(len(kept) - 1, max(0, self._left - _MARKER_BYTES) * len(kept) // size)]
        self._left -= stored_bytes(kept) + _MARKER_BYTES
        return f"{kept}[… {len(text) - len(kept)} characters left out]"

    def _describe(self, content: Any) -> str:
        return (
            f"[{content.media_type} of {len(content.data)} bytes is left out: as text, a result may have "
            f"{self._most_bytes} bytes (CELERY_AGENTS_MAX_RESULT_BYTES). Return a smaller one, or its URL.]"
        )
