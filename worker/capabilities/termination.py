"""`Termination`: ends an execution when a condition holds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..capability import Capability
from ..errors import ConfigurationError
from ..guards import PROCEED, Guard, GuardView, StopWith, Verdict
from ..hooks import Hook, HookContext, HookPoint
from .conditions import Condition, TextMention, ToolCalled
from .observed_steps import ObservedSteps, observe
from .terminal_tools import check_tool_names

_SOURCE: Final = "Termination"
_LAST: Final = -90  # after the hooks whose changes a condition may read


@dataclass(frozen=True)
class Termination(Capability):
    """Ends an execution before a step, or after it, when the condition holds.

    Reasons that are a success (`complete`, `terminal_tool`, `confidence_met`) complete the execution, the others stop
    it. A condition that raises, or answers something else, fails it with that error.

    Attributes:
        condition: Conditions are combined by `&`, `|` and `~`: `MaxIterations(20) | ToolCalled("submit")`.
    """

    condition: Condition

    def __post_init__(self) -> None:
        if not isinstance(self.condition, Condition):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"Termination: {self.condition!r:.60} is no condition; give MaxIterations(20) and the like"
            )

    @property
    def _tools(self) -> tuple[str, ...]:
        return tuple(leaf.tool for leaf in self.condition.leaves() if isinstance(leaf, ToolCalled))

    @property
    def _mentions(self) -> tuple[TextMention, ...]:
        return tuple(leaf for leaf in self.condition.leaves() if isinstance(leaf, TextMention))

    def check_tools(self, names: Collection[str]) -> None:
        """Refuse an agent that lacks a tool which the condition waits for."""
        check_tool_names(_SOURCE, self._tools, names)

    def parts(self) -> Sequence[Any]:
        """The memory of earlier steps that the condition needs."""
        return (ObservedSteps,)

    def hooks(self) -> Sequence[Hook]:
        """Remembers what a step called and said, where the condition asks for that."""
        if not (self._tools or self._mentions):
            return ()
        return (Hook(HookPoint.AFTER_STEP, self._observe, priority=_LAST, name=_SOURCE),)

    def guards(self) -> Sequence[Guard]:
        """Asks the condition."""
        return (self,)

    def check(self, view: GuardView) -> Verdict:
        """Stop where the condition holds."""
        result = self.condition.check(view.state, view.now)
        return StopWith((result.reason.signal(result.text, _SOURCE),)) if result.stop else PROCEED

    def _observe(self, context: HookContext) -> HookContext | None:
        state = observe(context.state, self._tools, self._mentions)
        return None if state is context.state else context.changed(state=state)
