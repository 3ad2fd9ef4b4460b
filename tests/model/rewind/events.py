"""Each event of the model of rewinds in words, and those that no search reaches."""

from __future__ import annotations

from typing import Final

EVENTS: Final = {
    "work.claimed": "claims the step, and asks the model",
    "work.waited": "waits for an answer",
    "work.committed": "commits the step",
    "message.sent": "somebody sends a message",
    "answer.given": "somebody answers",
    "stop.asked": "somebody stops the execution",
    "retry.asked": "somebody retries the execution",
    "rewind.decided": "somebody decides to rewind",
    "rewind.looked": "a rewind reads the session and the state at the step",
    "rewind.stopped": "a rewind finds a wait, and stops it",
    "rewind.wait has ended": "the wait has ended",
    "rewind.another has begun": "the wait has ended, and another execution has begun since",
    "rewind.known": "a rewind that comes again finds that it was made",
    "rewind.known in time": "a rewind finds under WATCH that it was made",
    "rewind.no such step": "a rewind is refused: there is no such step",
    "rewind.conflict": "a rewind finds another version",
    "rewind.refused": "a rewind is refused: an execution runs or waits",
    "rewind.read": "a rewind has read the session under WATCH",
    "rewind.changed meanwhile": "a rewind writes nothing, since the session was changed",
    "rewind.saved": "a rewind makes the earlier state the next version",
    "rewind.noted": "a rewind notes its operation id",
    "reader.read": "somebody reads the conversation on",
    "fault.client died": "the client that rewinds dies",
    "fault.reply lost": "a rewind is made, and its client does not see the reply",
}
IMPOSSIBLE: Final = frozenset({"rewind.noted"})
