"""Everything that can happen in the model of replicas, in words."""

from __future__ import annotations

from typing import Final

EVENTS: Final[dict[str, str]] = {
    "claim": "claims the step",
    "claim lost": "finds that it has no claim any more",
    "journal": "asks the model, and journals the answer",
    "ask": "asks the model, and journals the answer and a request; the step waits",
    "begin": "journals that the call begins",
    "begin, stopped": "finds a stop, and begins nothing",
    "begin confirmed": "may call",
    "begin taken back": "gets no confirmation, takes its begin record back, and puts the step off",
    "call": "calls the tool, which has its effect",
    "commit": "commits; the execution has ended",
    "end confirmed": "confirms the end, and writes `safe`",
    "end not confirmed": "gets no confirmation of the end",
    "act.submit": "the client submits",
    "act.stop": "the client stops the execution",
    "act.delete": "the client deletes the session",
    "act.retry": "the client retries the execution",
    "read": "the end, or the request, is read",
    "read, safe": "a program reads a result that is safe",
    "confirmed": "it is confirmed and leaves Redis",
    "not confirmed": "it is not confirmed in time",
    "reply": "the person answers",
    "foreign client leaves": "the client that acknowledges like a replica leaves",
    "replica catches up": "the replica has all that is stored",
    "fault.failover": "a replica becomes primary; nothing is lost",
    "fault.failover, writes lost": "a replica becomes primary; the newest writes are lost",
    "fault.crash": "dies",
    "fault.reply lost": "the client acts, and the reply is lost",
}
IMPOSSIBLE: Final = frozenset[str]()
