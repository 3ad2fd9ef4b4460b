"""Everything that can happen in the model of budgets, in words."""

from __future__ import annotations

from typing import Final

EVENTS: Final[dict[str, str]] = {
    "claim.by script": "claims a step that nobody has begun, by the script",
    "claim.read": "watches the session, and reads the field before the limit of the state",
    "claim.made": "claims the step",
    "claim.lost": "finds its claim gone, and leaves",
    "guard.limit": "finds its limit reached, and asks nothing",
    "model.asked": "asks the model",
    "answer.journaled": "journals the answer",
    "journal.replayed": "finds the answer in the journal",
    "commit.by script": "commits by the script: no mark is there",
    "commit.declined": "finds a mark, and takes the way with WATCH",
    "commit.read": "watches the session, reads the field, and decides again whether the execution ends",
    "commit.made": "commits, with the field in the state",
    "commit.made, reply lost": "commits; the reply is lost",
    "commit.carried on": "commits, and keeps its claim for the next step",
    "commit.given back": "finds the limit raised that kept it from asking, and gives the step back",
    "wait.read": "watches the session, and reads the field",
    "wait.made": "lets the step wait, with the field in the state",
    "wait.refused": "finds another limit, and looks at it before it waits",
    "change.begun": "a client wants another limit",
    "change.read": "the client watches the session, and finds an execution",
    "change.refused": "the client finds that the execution has ended",
    "change.made": "the client writes the field and the mark, and wakes a session that waits",
    "change.made, reply lost": "the client writes the field; the reply is lost",
    "change.sent again": "the client asks again",
    "hold.made": "somebody holds the session",
    "hold.ended": "somebody resumes the session",
    "answer.given": "somebody answers the request",
    "lease.ended": "the lease of a dead claim ends",
    "fault.crash": "dies",
    "fault.pause": "is paused for longer than its lease",
}
IMPOSSIBLE: Final = frozenset[str]()
