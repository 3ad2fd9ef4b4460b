"""Reading an element of one of our queues as the message that Celery takes, after every check."""

from __future__ import annotations

from typing import Any, Final

from kombu.message import Message
from kombu.utils.json import loads

from ..names import STEP
from .element_rules import admit
from .message_checks import TYPED, InvalidMessage, check_message, parse_element, read_body_text
from .queue_fetcher import FetchedElement

LARGEST_STEP_BYTES: Final = 64_000
"""Most bytes of a step message, which has one thousand: a worker holds one for each slot."""

_loads: Final[Any] = loads


class DecodedMessage(Message):
    """A message whose body is decoded already: Celery decodes one when it receives it and again when its task runs.

    Attributes:
        fetched: What it was read from; None for a message that did not travel.
    """

    fetched: FetchedElement | None = None

    def __init__(self, element: dict[str, Any], queue: str, body: Any) -> None:
        """
        Args:
            element: The decoded element of the queue; it has passed the checks, or was made by this process.
            queue: The queue that it comes from. What the element says of it is its sender's.
            body: Arguments, keywords and callbacks.
        """
        properties: dict[str, Any] = element["properties"]
        headers: dict[str, Any] = element["headers"]
        info: dict[str, Any] = {"exchange": queue, "routing_key": queue}
        if properties["delivery_info"].get("redelivered") is True:
            info["redelivered"] = True
        properties["delivery_info"] = info
        headers.setdefault("headers", {})  # else Celery looks through all headers for those that are not its own
        super().__init__(
            body=body,
            delivery_tag=properties.get("delivery_tag"),
            delivery_info=info,
            properties=properties,
            headers=headers,
        )

    @property
    def payload(self) -> Any:
        """The body."""
        return self.body


def read_element(queue: str, data: bytes) -> DecodedMessage:
    """Read an element of one of our queues.

    Raises:
        InvalidMessage: It is not taken; the text says why.
    """
    element = check_message(parse_element(data))
    args, kwargs, embed = admit(element)
    if element["headers"]["task"] == STEP and len(data) > LARGEST_STEP_BYTES:
        raise InvalidMessage(f"a step larger than {LARGEST_STEP_BYTES} bytes")
    body = read_body_text(element)
    return DecodedMessage(element, queue, _loads(body) if TYPED in body else (args, kwargs, embed or {}))
