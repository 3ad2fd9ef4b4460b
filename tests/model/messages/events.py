"""Everything that can happen in the model of messages, in words."""

from __future__ import annotations

from typing import Final

_COMMITS: Final[dict[str, str]] = {
    "commit.made": "commits the step; the execution goes on with the messages of the inbox",
    "commit.completed": "commits the last step",
    "commit.completed under a stop": "commits the last step, which the stop did not find in time",
    "commit.stopped": "commits the end of the stopped execution",
    "commit.failed": "commits the end of the failed execution",
}
EVENTS: Final[dict[str, str]] = {
    "claim.made": "claims the step",
    "claim.stopped": "claims the step, and finds the stop",
    "claim.journaled": "claims the step, and finds an answer of the model",
    "claim.interrupted": "claims the step, finds the interrupt mark, and journals an empty answer",
    "model.final": "asks the model and journals its last answer",
    "model.calls": "asks the model and journals its answer, whose calls run",
    "model.asks": "asks the model and journals its answer, of which a call must be answered by a person",
    "model.stopped": "finds the stop, and cuts the model's call",
    "model.cut": "finds the interrupt mark, cuts the model's call and journals what it has",
    "model.failed": "asks the model, and the execution fails",
    "wait.made": "waits: the claim is given back",
    "wait.withdrawn": "finds a stop or the interrupt mark, and withdraws what is asked",
    "wait.yielded": "finds a message that takes the place of the answer, and closes what is asked",
    "commit.read": "watches control fields, inbox and queue, and reads them",
    "commit.found": "reads after a lost reply, and finds its commit",
    **_COMMITS,
    **{f"{event}, reply lost": f"{words}; the reply is lost" for event, words in _COMMITS.items()},
    "lease.ended": "the lease of a dead claim ends",
    "fault.crash": "dies",
    "send.started": "a message starts an execution",
    "send.joined": "a message goes to the inbox",
    "send.queued": "a message goes to the queue",
    "send.held": "a message goes behind the held queue of an idle session",
    "send.refused": "a message refuses to wait for the active execution",
    "send.known already": "a message is sent again and recognised by its operation id",
    "withdraw.made": "a message is withdrawn",
    "mode.started": "a queued message is promoted, and starts an execution",
    "mode.joined": "a message gets a mode of the inbox",
    "mode.queued": "a message is demoted to the queue",
    "mode.taken out": "a message is taken out to change its mode, and the client dies",
    "stop.left": "somebody stops the execution: the mark waits for the worker that has the step",
    "stop.woke": "somebody stops the execution, which waits: the stop wakes it",
    "stop.ended": "somebody stops the execution, of which nothing is journaled: the stop ends it itself",
    "stop.asked again": "somebody stops the execution, which is being stopped already",
    "stop.cleared": "somebody stops the idle session, and clears its queue",
    "release.started": "somebody releases the queue, which starts an execution",
    "release.made": "somebody releases the queue while an execution is active",
    "release.nothing": "somebody releases the queue, which nothing holds",
    "release.known already": "the release is sent again and recognised by its operation id",
    "retry.made": "somebody retries the execution",
    "suspend.made": "somebody suspends the session",
    "resume.made": "somebody resumes the session",
    "answer.given": "a person answers what is asked",
}
# Reached by mutants only.
IMPOSSIBLE: Final = frozenset({"mode.taken out"})
