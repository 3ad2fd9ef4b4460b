"""`script`: answers in the place of a model, written as arguments."""

from __future__ import annotations

from ..worker.drivers.function import ScriptedAnswer, ScriptedDriver


def script(*answers: ScriptedAnswer, repeat_last: bool = False) -> ScriptedDriver:
    """A driver that gives these answers, one a step: `script(CallTool("search", query="redis"), "Found it.")`.

    Args:
        answers: A text, a `CallTool`, a list of these, an exception to raise, or a function of the state.
        repeat_last: After the last one give it again; otherwise a further step fails.

    Raises:
        ConfigurationError: There are none.
    """
    return ScriptedDriver(answers, repeat_last=repeat_last)
