"""`Approvals`: rules that decide which calls run, which are refused, and which need a person's approval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from ..capability import Capability
from ..errors import ConfigurationError
from ..state.execution.answers import Deny
from ..tools.approval import Allow, ApprovalContext, Ask, CallPolicy, Decision

_ASK: Final = Ask()


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        tool: Names of tools that it is about, as a pattern with `*`, `?` and `[…]`. A tool of an MCP server is found by
            the name that the model sees, as `crm_delete_*`, and by the server's own, as `crm.delete*`.
        when: A function of context and arguments that says whether the rule applies. None: to each call.
        then: The decision about the calls that it applies to.
        destructive: True: only calls of MCP tools whose server does not say that they destroy nothing; False: only
            other calls. None: both.
    """

    tool: str = "*"
    when: Callable[[ApprovalContext, Mapping[str, Any]], object] | None = None
    then: Decision = _ASK
    destructive: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.tool, str) or not self.tool:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"Rule: tool={self.tool!r:.60} must be the name of a tool, or a pattern as 'crm_*'"
            )
        if self.when is not None and not callable(self.when):
            raise ConfigurationError(
                f"Rule({self.tool!r}): when={self.when!r:.60} must be a function of (context, args)"
            )
        if not isinstance(self.then, (Allow, Ask, Deny)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"Rule({self.tool!r}): then={self.then!r:.60} must be Ask(…), Deny(…) or Allow()")
        if self.destructive not in (None, True, False):
            raise ConfigurationError(f"Rule({self.tool!r}): destructive={self.destructive!r:.60} must be True or False")

    def applies_to(self, context: ApprovalContext, args: Mapping[str, Any]) -> bool:
        """Whether the rule decides about this call."""
        if self.destructive is not None and self.destructive != context.is_destructive:
            return False
        names = (context.tool, *([] if context.remote_name is None else [context.remote_name]))
        is_about = any(fnmatchcase(name, self.tool) for name in names)
        return is_about and (self.when is None or bool(self.when(context, args)))


@dataclass(frozen=True)
class Approvals(Capability):
    """Decides about calls by rules; the first that applies decides. Where none applies, the tool's `approval` does.

    Attributes:
        rules: The rules in their order.
    """

    rules: Sequence[Rule] = ()

    def __post_init__(self) -> None:
        wrong = [each for each in self.rules if not isinstance(each, Rule)]  # pyright: ignore[reportUnnecessaryIsInstance]
        if wrong or not self.rules:
            raise ConfigurationError(f"Approvals: give a list of Rule(…), not {(wrong or [self.rules])[0]!r:.60}")

    def policies(self) -> Sequence[CallPolicy]:
        """The rules as one policy."""
        return (self,)

    def for_subagent(self) -> Capability:
        """The same rules."""
        return self

    def decide(self, context: ApprovalContext, args: Mapping[str, Any]) -> Decision | None:
        """The decision of the first rule that applies; None where none does."""
        return next((rule.then for rule in self.rules if rule.applies_to(context, args)), None)
