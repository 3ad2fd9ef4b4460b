"""`ReasoningConfig`: how hard a model thinks, and when it reflects. Explicit fields beat the level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from ...errors import ConfigurationError
from ..numbers import check_whole

Level = Literal["minimal", "low", "medium", "high"]
Mode = Literal["separate", "piggyback"]


class Cadence(StrEnum):
    """The steps after which the model reflects.

    Attributes:
        OFF: After none.
        EVERY_TURN: After each step.
        AFTER_TOOL: After each step with tool calls.
        ON_BRANCH: After a step whose set of called tools differs from that of the step with calls before it.
        INITIAL_THEN_AFTER_TOOL: Before the first model call of an execution, then as `AFTER_TOOL`.
    """

    OFF = "off"
    EVERY_TURN = "every_turn"
    AFTER_TOOL = "after_tool"
    ON_BRANCH = "on_branch"
    INITIAL_THEN_AFTER_TOOL = "initial_then_after_tool"


@dataclass(frozen=True)
class NativeReasoning:
    """Settings of a provider about thinking.

    Attributes:
        effort: How hard the model thinks, where its provider can be told.
        budget_tokens: Tokens to think with, for the providers that take a number (Anthropic, Google).
        include_thoughts: The provider returns its thoughts in readable form.
        provider_extras: Further settings of the model, under pydantic-ai's names; they beat the others. An unknown
            name is refused.
    """

    effort: Level | None = None
    budget_tokens: int | None = None
    include_thoughts: bool | None = None
    provider_extras: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        _check_choice("NativeReasoning(effort)", self.effort, get_args(Level))
        if self.budget_tokens is not None:
            check_whole("NativeReasoning(budget_tokens)", self.budget_tokens, least=1)
        if self.provider_extras:
            from ...drivers.pydantic_ai.setting_names import check_setting_names  # it loads pydantic-ai

            check_setting_names("NativeReasoning(provider_extras)", self.provider_extras)

    def as_settings(self) -> dict[str, Any]:
        """The settings of a model, under pydantic-ai's names; each provider reads its own."""
        settings: dict[str, Any] = {}
        if self.effort is not None:
            settings["thinking"] = self.effort
        google: dict[str, Any] = {}
        if self.budget_tokens is not None:
            settings["anthropic_thinking"] = {"type": "enabled", "budget_tokens": self.budget_tokens}
            google["thinking_budget"] = self.budget_tokens
        if self.include_thoughts is not None:
            google["include_thoughts"] = self.include_thoughts
            if self.include_thoughts:
                settings["openai_reasoning_summary"] = "auto"
        if google:
            settings["google_thinking_config"] = google
        return {**settings, **self.provider_extras}


@dataclass(frozen=True)
class ReflectionConfig:
    """When the model reflects, and what is kept of it. None: as the level says.

    Attributes:
        enabled: False: it never does.
        cadence: After which steps.
        mode: `separate` asks in a call of its own, `piggyback` with the next model call of the execution.
        max_tokens: Tokens of a note, from 1.
        max_chars: Characters of a note; a longer one is cut. From 1.
        keep_last: So many notes the model sees, below 1 counts as 1.
        summarize: Older notes are summarized by the model.
        prompt_template: The question; `{task}`, `{turn}` and `{results}` are filled in. None: a built-in one.
        emit_events: Each note is an event.
        max_per_run: Notes in an execution; 0: none. None: no limit.
        every_n_turns: Steps with tool calls between two notes, from 1.
    """

    enabled: bool | None = None
    cadence: Cadence | str | None = None
    mode: Mode = "separate"
    max_tokens: int | None = None
    max_chars: int | None = None
    keep_last: int = 3
    summarize: bool = False
    prompt_template: str | None = None
    emit_events: bool = True
    max_per_run: int | None = None
    every_n_turns: int = 1

    def __post_init__(self) -> None:
        _check_choice("ReflectionConfig(cadence)", self.cadence, tuple(Cadence))
        _check_choice("ReflectionConfig(mode)", self.mode, get_args(Mode))
        for name, least in (("max_tokens", 1), ("max_chars", 1), ("max_per_run", 0), ("every_n_turns", 1)):
            if getattr(self, name) is not None:
                check_whole(f"ReflectionConfig({name})", getattr(self, name), least=least)
        if not isinstance(self.keep_last, int) or isinstance(self.keep_last, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"ReflectionConfig(keep_last)={self.keep_last!r:.60}: give a whole number")
        object.__setattr__(self, "keep_last", max(1, self.keep_last))
        object.__setattr__(self, "cadence", None if self.cadence is None else Cadence(self.cadence))


@dataclass(frozen=True)
class ReasoningConfig:
    """How a model thinks and reflects.

    Attributes:
        enabled: False: neither native thinking nor reflections.
        level: Gives the fields below their values where they are None; `medium` for reflections where it is None, too.
        native: What the provider is told; False: nothing. None: the level's effort, nothing without a level.
        reflection: When the model reflects; False: never. None: as the level says.
    """

    enabled: bool | None = None
    level: Level | None = None
    native: NativeReasoning | Literal[False] | None = None
    reflection: ReflectionConfig | Literal[False] | None = None

    def __post_init__(self) -> None:
        _check_choice("ReasoningConfig(level)", self.level, get_args(Level))
        for name, kind in (("native", NativeReasoning), ("reflection", ReflectionConfig)):
            value = getattr(self, name)
            if value is not None and value is not False and not isinstance(value, kind):
                raise ConfigurationError(f"ReasoningConfig({name})={value!r:.60}: give a {kind.__name__}, or False")

    @property
    def native_settings(self) -> Mapping[str, Any]:
        """The settings for the provider; empty where nothing is to be said."""
        if self.enabled is False or self.native is False or (self.native is None and self.level is None):
            return {}
        native = self.native or NativeReasoning()
        if native.effort is None and native.budget_tokens is None and self.level is not None:
            native = replace(native, effort=self.level)
        return native.as_settings()

    @property
    def resolved(self) -> ReflectionConfig | None:
        """When the model reflects, with every field that the level gives; None: never."""
        if self.enabled is False or self.reflection is False:
            return None
        given = self.reflection or ReflectionConfig()
        if given.enabled is False:
            return None
        by_level = zip(("max_tokens", "max_chars", "cadence"), LEVELS[self.level or "medium"], strict=True)
        resolved = replace(given, **{name: value for name, value in by_level if getattr(given, name) is None})
        return None if resolved.cadence is Cadence.OFF else resolved


LEVELS: Final[Mapping[str, tuple[int, int, Cadence]]] = MappingProxyType(
    {
        "minimal": (150, 400, Cadence.OFF),
        "low": (200, 600, Cadence.ON_BRANCH),
        "medium": (350, 1_200, Cadence.INITIAL_THEN_AFTER_TOOL),
        "high": (600, 2_000, Cadence.INITIAL_THEN_AFTER_TOOL),
    }
)
"""Tokens and characters of a note, and the cadence, by level."""


def _check_choice(field_name: str, value: object, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        known = ", ".join(str(each) for each in choices)
        raise ConfigurationError(f"{field_name}={value!r:.60}: there are {known}")
