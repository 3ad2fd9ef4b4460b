"""Tokens, as the providers count them."""

from __future__ import annotations

from ..values.field_types import LARGEST_COUNT, Count
from ..values.value import Value


class InferenceUsage(Value):
    """Tokens of one model answer, or of several added up.

    Attributes:
        input: Tokens sent, without those counted in the cache fields.
        output: Tokens received, without those counted as reasoning.
        cache_write: Tokens written to the provider's cache.
        cache_read: Tokens read from it.
        reasoning: Tokens the model thought with.
        requests: Model requests these come from; not part of the total.
    """

    input: Count = 0
    output: Count = 0
    cache_write: Count = 0
    cache_read: Count = 0
    reasoning: Count = 0
    requests: Count = 0

    @property
    def total(self) -> int:
        """All five kinds of tokens; what `max_tokens` limits."""
        return self.input + self.output + self.cache_write + self.cache_read + self.reasoning

    @property
    def sent(self) -> int:
        """Tokens sent, those of the provider's cache included; a sum that no field can hold is the largest."""
        return min(self.input + self.cache_write + self.cache_read, LARGEST_COUNT)

    @property
    def received(self) -> int:
        """Tokens received, those that the model thought with included; at most what a field can hold."""
        return min(self.output + self.reasoning, LARGEST_COUNT)

    def __add__(self, other: InferenceUsage) -> InferenceUsage:
        """Both together; a sum that no field can hold stays at the largest, since a provider may claim any number."""
        return self._with(
            input=min(self.input + other.input, LARGEST_COUNT),
            output=min(self.output + other.output, LARGEST_COUNT),
            cache_write=min(self.cache_write + other.cache_write, LARGEST_COUNT),
            cache_read=min(self.cache_read + other.cache_read, LARGEST_COUNT),
            reasoning=min(self.reasoning + other.reasoning, LARGEST_COUNT),
            requests=min(self.requests + other.requests, LARGEST_COUNT),
        )

    def without(self, other: InferenceUsage) -> InferenceUsage:
        """The counts without those of another, and without unknown fields; none is below 0."""
        return NO_USAGE._with(
            input=max(0, self.input - other.input),
            output=max(0, self.output - other.output),
            cache_write=max(0, self.cache_write - other.cache_write),
            cache_read=max(0, self.cache_read - other.cache_read),
            reasoning=max(0, self.reasoning - other.reasoning),
            requests=max(0, self.requests - other.requests),
        )


NO_USAGE = InferenceUsage()
