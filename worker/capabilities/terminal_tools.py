"""`TerminalTools`: tools that end the execution when they have been called."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from ..capability import Capability
from ..errors import ConfigurationError
from ..guards import PROCEED, Guard, GuardPoint, GuardView, StopWith, Verdict
from ..hooks import Hook, HookContext, HookPoint
from ..run_state.parts import TerminalToolNames
from ..run_state.reason import RunReason
from ..state.execution.tool_calls import ToolOutcome

_SOURCE: Final = "TerminalTools"


@dataclass(frozen=True)
class TerminalTools(Capability):
    """Completes an execution, with the reason `terminal_tool`, after a step in which one of these tools succeeded.

    A call that failed or was refused ends nothing: the model reads why, and goes on.

    Attributes:
        names: Names of tools of the agent.
    """

    names: Collection[str] = ()

    def __post_init__(self) -> None:
        given: Any = self.names
        is_list = isinstance(given, set | frozenset | list | tuple)
        if not is_list or not given or not all(isinstance(name, str) for name in cast("list[Any]", given)):
            raise ConfigurationError(f"TerminalTools: give a set of names of tools, as {{'submit'}}, not {given!r:.60}")
        object.__setattr__(self, "names", frozenset(cast("list[str]", given)))

    def check_tools(self, names: Collection[str]) -> None:
        """Refuse an agent that lacks one of the tools."""
        check_tool_names(_SOURCE, self.names, names)

    def parts(self) -> Sequence[Any]:
        """The names, for `state.run.terminal_tools`."""
        return (TerminalToolNames,)

    def hooks(self) -> Sequence[Hook]:
        """Shows the names in the state."""
        return (Hook(HookPoint.BEFORE_EXECUTION, self._show_names, name=_SOURCE),)

    def guards(self) -> Sequence[Guard]:
        """Ends the execution after a step with a terminal call."""
        return (self,)

    def check(self, view: GuardView) -> Verdict:
        """Stop where the step that was just done has called a terminal tool with success."""
        step = view.state.current_step
        if view.point is GuardPoint.BEFORE_CALL or step is None:
            return PROCEED
        for each in step.tool_executions:
            if each.outcome is ToolOutcome.OK and each.tool_call.name in self.names:
                return StopWith((RunReason.TERMINAL_TOOL.signal(f"{each.tool_call.name} was called", _SOURCE),))
        return PROCEED

    def _show_names(self, context: HookContext) -> HookContext | None:
        names = tuple(sorted(self.names))
        if context.state.part(TerminalToolNames).names == names:
            return None
        return context.changed(state=context.state.with_part(TerminalToolNames(names=names)))


def check_tool_names(capability: str, wanted: Collection[str], names: Collection[str]) -> None:
    """Refuse names that no tool has.

    Raises:
        ConfigurationError: There is no such tool; the text lists those that exist.
    """
    missing = sorted(set(wanted) - set(names))
    if missing:
        known = ", ".join(names) or "none"
        raise ConfigurationError(f"{capability}: there is no tool named {', '.join(missing)}; tools: {known}")
