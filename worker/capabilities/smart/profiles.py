"""Runtime profiles: sets of limits and capabilities by one name, with the numbers of Cognipeer's agent SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Final, Literal

from ...capability import Capability
from ...errors import ConfigurationError
from ..numbers import check_whole
from .limits import AgentLimits
from .summarization import Summarization
from .tokens import TokenCounter
from .tool_archive import ToolArchive, ToolResponsePolicy

ProfileName = Literal["fast", "balanced", "deep", "research", "custom"]


@dataclass(frozen=True, kw_only=True)
class RuntimeProfile:
    """The numbers of a profile. An agent with a profile gets `AgentLimits` and `Summarization` made of them.

    Explicit arguments of an agent override the profile: its own `AgentLimits` field by field, its own
    `Summarization` or `ToolArchive` as a whole.

    Attributes:
        name: `custom` for one that is no built-in one.
        max_tool_calls: As `AgentLimits`, and so on.
        summary_trigger_tokens: The conversation is compacted above it.
        summary_prompt_tokens: Tokens of the messages that the model is given to summarize.
        compression_ratio: The share of the maximum that a conversation has after a summary.
        last_turns_to_keep: Most answers that are kept with a new summary.
        max_response_chars: Longer results show their beginning.
        max_response_tokens: The same limit in tokens, for applications that show it.
        reserves: Tokens that the source reserves for system, goals, recent turns and tools; for applications.
        memory: Scope and read policy of the source's memory; for applications.
        delegation: Mode, depth, calls, parallel calls and context of children; for applications that make subagents.
    """

    name: ProfileName
    max_tool_calls: int
    max_parallel_tools: int
    max_context_tokens: int
    summary_trigger_tokens: int
    summary_prompt_tokens: int
    compression_ratio: float
    last_turns_to_keep: int
    tool_response_policy: ToolResponsePolicy
    max_response_chars: int
    max_response_tokens: int
    reserves: tuple[int, int, int, int]
    memory: tuple[str, str]
    delegation: tuple[str, int, int, int, str]

    @classmethod
    def custom(cls, extends: str = "balanced", **changes: Any) -> RuntimeProfile:
        """A new profile, made of a built-in one.

        Args:
            extends: The built-in profile that gives what is not changed.
            changes: Fields of a profile. Another `max_context_tokens` moves the trigger along.
        Raises:
            ConfigurationError: There is no such profile or field, or a number cannot be.
        """
        base = find_profile(extends)
        known = {each.name for each in fields(cls)} - {"name"}
        unknown = sorted(set(changes) - known)
        if unknown:
            raise ConfigurationError(
                f"RuntimeProfile.custom: there is no {', '.join(unknown)}; fields: {_join_names(known)}"
            )
        if "max_context_tokens" in changes and "summary_trigger_tokens" not in changes:
            check_whole("RuntimeProfile.custom(max_context_tokens)", changes["max_context_tokens"], least=200)
            changes["summary_trigger_tokens"] = changes["max_context_tokens"] * 3 // 4
        made = replace(base, name="custom", **changes)
        made.capabilities(())
        return made

    def capabilities(self, given: Sequence[Capability]) -> tuple[Capability, ...]:
        """The capabilities of an agent: those that it was given, completed by the profile's.

        Raises:
            ConfigurationError: A number of the profile cannot be.
        """
        own = next((each for each in given if isinstance(each, AgentLimits)), None)
        limits = self._limits(own)
        has_archive = any(isinstance(each, ToolArchive) for each in given)
        context = own.max_context_tokens if own is not None else None
        if not has_archive:
            limits = replace(limits, max_context_tokens=None)  # the summary keeps it
        kept = tuple(limits if each is own else each for each in given) if own is not None else (*given, limits)
        return kept if has_archive else (*kept, self._summarization(context or None, limits.token_counter))

    def _limits(self, own: AgentLimits | None) -> AgentLimits:
        given = own or AgentLimits()
        wanted = {name: getattr(given, name) for name in ("max_tool_calls", "max_parallel_tools")}
        filled = {name: getattr(self, name) if value is None else value for name, value in wanted.items()}
        return replace(given, **filled)

    def _summarization(self, context: int | None, counter: TokenCounter) -> Summarization:
        return Summarization(
            token_counter=counter,
            max_context_tokens=context or self.max_context_tokens,
            trigger_tokens=self.summary_trigger_tokens if context is None else context * 3 // 4,
            policy=self.tool_response_policy,
            max_response_chars=self.max_response_chars,
            target_ratio=self.compression_ratio,
            last_turns_to_keep=self.last_turns_to_keep,
            max_prompt_tokens=self.summary_prompt_tokens,
        )


def find_profile(name: str | RuntimeProfile) -> RuntimeProfile:
    """The profile of a name, or the given one; `custom` by name is the balanced one to begin with.

    Raises:
        ConfigurationError: There is no such profile.
    """
    if isinstance(name, RuntimeProfile):
        return name
    found = PROFILES.get(name) if isinstance(name, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if found is None:
        raise ConfigurationError(f"profile={name!r:.60}: there are {', '.join(PROFILES)}, and RuntimeProfile.custom(…)")
    return found


def _join_names(names: set[str]) -> str:
    return ", ".join(sorted(names))


_NUMBERS: Final[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "max_tool_calls": (8, 20, 40, 80),
        "max_parallel_tools": (3, 5, 8, 10),
        "max_context_tokens": (32_000, 96_000, 200_000, 400_000),
        "summary_trigger_tokens": (24_000, 72_000, 150_000, 300_000),
        "summary_prompt_tokens": (6_000, 12_000, 16_000, 24_000),
        "compression_ratio": (0.5, 0.45, 0.4, 0.35),
        "last_turns_to_keep": (8, 16, 30, 60),
        "tool_response_policy": ("keep_structured", *["summarize_archive"] * 3),
        "max_response_chars": (16_000, 32_000, 64_000, 96_000),
        "max_response_tokens": (4_000, 8_000, 16_000, 24_000),
        "reserves": (
            (1_500, 1_200, 6_000, 3_500),
            (2_000, 2_000, 18_000, 9_000),
            (2_500, 2_500, 36_000, 18_000),
            (3_000, 3_000, 72_000, 32_000),
        ),
        "memory": (("session", "recent_only"), ("session", "hybrid"), *[("workspace", "hybrid")] * 2),
        "delegation": (
            ("off", 1, 2, 1, "minimal"),
            ("role_based", 2, 6, 3, "scoped"),
            ("role_based", 3, 10, 4, "scoped"),
            ("automatic", 4, 16, 6, "full"),
        ),
    }
)
"""Each number of the profiles `fast`, `balanced`, `deep` and `research`."""


def _builtin(name: ProfileName, column: int) -> RuntimeProfile:
    return RuntimeProfile(name=name, **{field: numbers[column] for field, numbers in _NUMBERS.items()})


PROFILES: Final[Mapping[str, RuntimeProfile]] = MappingProxyType(
    {
        "fast": _builtin("fast", 0),
        "balanced": _builtin("balanced", 1),
        "deep": _builtin("deep", 2),
        "research": _builtin("research", 3),
        "custom": _builtin("custom", 1),
    }
)
"""The profiles by name."""
