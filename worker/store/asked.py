"""The question of a step to its model, as it is stored: facts, and the texts that they name by digests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic_core import from_json, to_json

from ..errors import StateUnreadable
from .packing import pack, unpack


@dataclass(frozen=True, slots=True)
class Asked:
    """The question of a step to its model.

    Attributes:
        facts: As JSON; it names texts by their digests. Equal facts are stored once.
        texts: Those texts, by digest, as JSON: the prompt, the list of tools, and which messages were chosen.
    """

    facts: bytes
    texts: Mapping[str, bytes]

    def to_stored(self) -> bytes:
        """As one value; see `from_stored`."""
        named = {digest: text.decode() for digest, text in self.texts.items()}
        return pack(to_json({"facts": self.facts.decode(), "texts": named}))

    @classmethod
    def from_stored(cls, stored: bytes) -> Asked:
        """Parse what `to_stored` gave.

        Raises:
            StateUnreadable: It is damaged.
        """
        try:
            found = from_json(unpack(stored, "journal saw"))
            return cls(found["facts"].encode(), {digest: text.encode() for digest, text in found["texts"].items()})
        except (ValueError, KeyError, TypeError, AttributeError):
            raise StateUnreadable("journal saw", "it is no description of a request") from None
