"""Texts that a page must not act on, and an agent that says, calls, returns and asks them."""

from __future__ import annotations

from typing import Any, Final

from celery_agents.worker.agent import Agent
from celery_agents.worker.state import AgentState, InferenceResponse, ToolCall
from celery_agents.worker.tools import NeedsApproval, ToolContext, tool

HIT: Final = "document.documentElement.dataset.hit=1"
_MARKUP: Final = (
    "<script>{}</script>", "<img src=x onerror={}>", "<svg onload={}>", "<svg><script>{}</script></svg>",
    "<iframe srcdoc='<script>parent.{}</script>'></iframe>", "<a href=javascript:{}>click</a>", "<body onload={}>",
    "<math><mi xlink:href=javascript:{}>x", "<object data=javascript:{}>", "<embed src=javascript:{}>",
    "<details open ontoggle={}>", "<input autofocus onfocus={}>", "<video src=x onerror={}>", "<marquee onstart={}>",
    "<style>@import 'javascript:{}'</style>", "<link rel=stylesheet href=javascript:{}>", "<base href=//evil.example/>{}",
    "<meta http-equiv=refresh content='0;url=javascript:{}'>", "<form action=javascript:{}><button>go</button></form>",
    "<template><script>{}</script></template>",
)  # fmt: skip
_AROUND: Final = ("{}", "\"'>{}", "</td></tr></table>{}", "${{{}}}", "--><![CDATA[{}]]>")
_UNSEEN: Final = (
    "\u202egnp.tsil\u202c", "\u2066\u2067isolated", "\u200e\u200f\u061c marks", "\u0000", "a\u0000b", "\u001b[31mred\u001b[0m",
    "\u001b]0;title\u0007", "\u009b2J", "\ufeffmark", "\r\nSet-Cookie: a=b", "\u2028\u2029 lines", "tab\tand\nline",
)  # fmt: skip
_LONG: Final = ("w" * 1_000_000, "word " * 20_000, "\u0301" * 500, "\U0001f469\u200d\U0001f680" * 200, "(" * 10_000)
_NUMBERS: Final = ("9007199254740993", "1" * 400, "-0", "1e999", "NaN", "Infinity", "0x10", "１２３")
_OTHER: Final = (
    "__proto__", "constructor", "toString", "hasOwnProperty", "undefined", "null", "[object Object]", "javascript:" + HIT,
    "data:text/html,<script>" + HIT + "</script>", "//evil.example", "../../v1/sessions", "?status=failed#main", "%00%2e%2e",
    "&lt;script&gt;", "&#60;img&#62;", "{{constructor.constructor('" + HIT + "')()}}", "<%= 7*7 %>", "#{7*7}", "`${" + HIT + "}`",
    "'; DROP TABLE sessions; --", "\\u003cscript\\u003e", "on\u0435rror", " ", "\u00a0", "\u3000",
)  # fmt: skip
HOSTILE: Final[tuple[str, ...]] = (
    *(around.format(markup.format(HIT)) for markup in _MARKUP for around in _AROUND),
    *_UNSEEN, *(f"before {each} after" for each in _UNSEEN), *_LONG, *_NUMBERS, *_OTHER,
    *(f"{each}{each}" for each in (*_UNSEEN, *_NUMBERS, *_OTHER[:20])),
)  # fmt: skip
"""Two hundred texts: markup, scripts, controls, directions, lengths, numbers, names of JavaScript."""

_GROUP: Final = 25
HUGE: Final = {"exact": 2**63, "long": 10**400, "small": 5e-324, "negative": -(2**60) - 1}


@tool(effect="pure")
def echo(text: str, numbers: dict[str, Any] | None = None) -> Any:
    """Return what is given."""
    return {"text": text, text[:60]: text, "numbers": numbers}


@tool(effect="pure")
def fail(text: str) -> None:
    """Fail with a text."""
    raise RuntimeError(text)


@tool(effect="keyed")
def ask(ctx: ToolContext, text: str) -> str:
    """Ask with a text."""
    if ctx.approval is None:
        raise NeedsApproval(text[:5000] or "empty", to="managers")
    return text


def decide(state: AgentState) -> InferenceResponse:
    """Say, call and fail with a group of the texts in each step; ask for one approval for each of the last ones."""
    assert state.execution is not None
    step = state.execution.step_count
    group = HOSTILE[step * _GROUP : (step + 1) * _GROUP]
    if group:
        calls = [
            ToolCall(id=f"e{n}", name="echo", args={"text": text, "numbers": HUGE}) for n, text in enumerate(group)
        ]
        calls += [ToolCall(id=f"f{n}", name="fail", args={"text": text}) for n, text in enumerate(group)]
        return InferenceResponse(content="\n".join(group), tool_calls=tuple(calls))
    if step * _GROUP < len(HOSTILE) + _GROUP:
        asked = [ToolCall(id=f"a{n}", name="ask", args={"text": text}) for n, text in enumerate(HOSTILE[::8])]
        return InferenceResponse(content="", tool_calls=tuple(asked))
    return InferenceResponse(content="done")


hostile = Agent("hostile", driver=decide, tools=[echo, fail, ask])
