"""Names of the store's round trips: where tests lose a reply, let something happen in between, or crash.

A fault needs a place, and this is the list of places. What a test asserts is what was stored, not which of these was
used; only the tests of the round trips themselves do that.
"""

from __future__ import annotations

from typing import Final


class Points:
    """One name for each round trip of the product."""

    CLAIM_ATTEMPT: Final = "claim.attempt"
    CLAIM_BEHIND: Final = "claim.behind"
    CLAIM_NEW: Final = "claim.new"
    CLAIM_FIRST: Final = "claim.first"
    CLAIM_LOAD: Final = "claim.load"
    CLAIM_READ: Final = "claim.read"
    CLAIM_LEASE: Final = "claim.lease"
    CLAIM_UPTIME: Final = "claim.uptime"
    CLAIM_PRIMARY: Final = "claim.primary"
    CLAIM_EXEC: Final = "claim.exec"
    LOAD_ALL: Final = "load.all"
    LOAD_READ: Final = "load.read"
    LOAD_CHECK: Final = "load.check"
    RENEW: Final = "renew"
    RESTORE_READ: Final = "restore.read"
    RESTORE_EXEC: Final = "restore.exec"
    RELEASE_READ: Final = "release.read"
    RELEASE_EXEC: Final = "release.exec"
    JOURNAL_ANSWER: Final = "journal.answer"
    JOURNAL_FULL: Final = "journal.full"
    JOURNAL_AUXILIARY: Final = "journal.auxiliary"
    JOURNAL_ADOPT: Final = "journal.adopt"
    JOURNAL_BEGIN: Final = "journal.begin"
    JOURNAL_AGAIN: Final = "journal.again"
    JOURNAL_OWN: Final = "journal.own"
    JOURNAL_UNBEGIN: Final = "journal.unbegin"
    JOURNAL_PAST: Final = "journal.past"
    JOURNAL_PRIMARY: Final = "journal.primary"
    JOURNAL_BURY: Final = "journal.bury"
    JOURNAL_RESULT: Final = "journal.result"
    JOURNAL_FAILURE: Final = "journal.failure"
    JOURNAL_LOOK: Final = "journal.look"
    JOURNAL_DROP: Final = "journal.drop"
    LIVE_WRITE: Final = "live.write"
    LIVE_FOLLOW: Final = "live.follow"
    LIVE_FOLLOWED: Final = "live.followed"
    LIVE_MARK: Final = "live.mark"
    LIVE_EVENT: Final = "live.event"
    LIVE_COMMITTED: Final = "live.committed"
    COMMIT_ATTEMPT: Final = "commit.attempt"
    COMMIT_READ: Final = "commit.read"
    COMMIT_ENTRY: Final = "commit.entry"
    COMMIT_EXEC: Final = "commit.exec"
    RELOAD_READ: Final = "reload.read"
    RELOAD_CHECK: Final = "reload.check"
    SWEEP_NOW: Final = "sweep.now"
    SWEEP_DUE: Final = "sweep.due"
    SWEEP_CLAIMS: Final = "sweep.claims"
    SWEEP_PASS: Final = "sweep.pass"
    SWEEP_PRIMARY: Final = "sweep.primary"
    BURSTS_SET: Final = "bursts.set"
    SCHEDULES_DUE: Final = "schedules.due"
    SCHEDULES_READ: Final = "schedules.read"
    SCHEDULES_CHANGE: Final = "schedules.change"
    SUBMIT_ATTEMPT: Final = "submit.attempt"
    SUBMIT_READ: Final = "submit.read"
    SUBMIT_EXEC: Final = "submit.exec"
    ACT_READ: Final = "act.read"
    ACT_JOURNAL: Final = "act.journal"
    ACT_LOAD: Final = "act.load"
    ACT_PUSH: Final = "act.push"
    ACT_EXEC: Final = "act.exec"
    ACT_QUEUE: Final = "act.queue"
    ACT_LIFE: Final = "act.life"
    ACT_REQUESTS: Final = "act.requests"
    WITHDRAW_READ: Final = "withdraw.read"
    WITHDRAW_EXEC: Final = "withdraw.exec"
    MODE_READ: Final = "mode.read"
    MODE_EXEC: Final = "mode.exec"
    RELEASE_QUEUE_READ: Final = "release_queue.read"
    RELEASE_QUEUE_EXEC: Final = "release_queue.exec"
    STOP_READ: Final = "stop.read"
    STOP_LEASE: Final = "stop.lease"
    STOP_JOURNAL: Final = "stop.journal"
    STOP_NOW: Final = "stop.now"
    STOP_ASK: Final = "stop.ask"
    STOP_EXEC: Final = "stop.exec"
    STOP_CLEAR: Final = "stop.clear"
    RETRY_READ: Final = "retry.read"
    RETRY_EXEC: Final = "retry.exec"
    RETRY_UNPARK: Final = "retry.unpark"
    PARK_READ: Final = "park.read"
    PARK_JOURNAL: Final = "park.journal"
    PARK_INDEX: Final = "park.index"
    PARK_EXEC: Final = "park.exec"
    JOURNAL_DECIDE: Final = "journal.decide"
    JOURNAL_STARTED: Final = "journal.started"
    REQUEST_LOOK: Final = "request.look"
    REQUEST_OPEN: Final = "request.open"
    REQUEST_CLOSE: Final = "request.close"
    WAIT_READ: Final = "wait.read"
    WAIT_EXEC: Final = "wait.exec"
    WAIT_YIELD: Final = "wait.yield"
    ANSWER_READ: Final = "answer.read"
    ANSWER_JOURNAL: Final = "answer.journal"
    ANSWER_EXEC: Final = "answer.exec"
    DELETE_READ: Final = "delete.read"
    DELETE_STEPS: Final = "delete.steps"
    DELETE_FULL: Final = "delete.full"
    DELETE_EXEC: Final = "delete.exec"
    SESSION_MARK: Final = "session.mark"
    CREATE_KNOWN: Final = "create.known"
    CREATE_READ: Final = "create.read"
    CREATE_EXEC: Final = "create.exec"
    SAVE_READ: Final = "save.read"
    SAVE_STEPS: Final = "save.steps"
    SAVE_EXEC: Final = "save.exec"
    SUSPEND_READ: Final = "suspend.read"
    SUSPEND_EXEC: Final = "suspend.exec"
    RESUME_READ: Final = "resume.read"
    RESUME_EXEC: Final = "resume.exec"
    HEADERS: Final = "headers"
    PAST_HEAD: Final = "past.head"
    PAST_LISTS: Final = "past.lists"
    REWIND_KNOWN: Final = "rewind.known"
    REWIND_READ: Final = "rewind.read"
    REWIND_STEPS: Final = "rewind.steps"
    REWIND_EXEC: Final = "rewind.exec"
    BUDGET_READ: Final = "budget.read"
    BUDGET_EXEC: Final = "budget.exec"
    REQUESTS_PAGE: Final = "requests.page"
    REQUESTS_COUNT: Final = "requests.count"
    REQUESTS_SESSION: Final = "requests.session"
    REQUESTS_JOURNAL: Final = "requests.journal"
    REQUESTS_STEPS: Final = "requests.steps"
    REQUESTS_LATER: Final = "requests.later"
    REQUESTS_ABOVE: Final = "requests.above"
    FLOW_RESERVE: Final = "flow.reserve"
    FLOW_SETTLE: Final = "flow.settle"
    FLOW_VIEW: Final = "flow.view"
    FLOW_CONCURRENCY: Final = "flow.concurrency"
    FLOW_KNOWN: Final = "flow.known"
    FLOW_LINES: Final = "flow.lines"
    FLOW_HOLDERS: Final = "flow.holders"
    CAPS_RESERVE: Final = "caps.reserve"
    CAPS_SETTLE: Final = "caps.settle"
    HOLDERS_TAKE: Final = "holders.take"
    HOLDERS_KEEP: Final = "holders.keep"
    HOLDERS_GIVE: Final = "holders.give"
    HOLDERS_LINES: Final = "holders.lines"
    HOLDERS_CALL: Final = "holders.call"
    HOLDERS_COUNT: Final = "holders.count"
    HOLDERS_STAND: Final = "holders.stand"
    HOLDERS_LEAVE: Final = "holders.leave"
    HOLDERS_LOOK: Final = "holders.look"
    HOLDERS_DEFINED: Final = "holders.defined"
    HOLDERS_LABELS: Final = "holders.labels"
    LABEL_READ: Final = "label.read"
    LABEL_EXEC: Final = "label.exec"
    HOLDERS_SETTLED: Final = "holders.settled"
    HOLDERS_PRIMARY: Final = "holders.primary"
    FLOW_READ: Final = "flow.read"
    FLOW_FORWARD: Final = "flow.forward"
    FLOW_NEXT: Final = "flow.next"
    RELEASE_LOOK: Final = "release.look"
    SCRIPT_LOAD: Final = "script.load"
    UNWATCH: Final = "unwatch"
    MOVE_ATTEMPT: Final = "move.attempt"


# The round trips of a step, of the heartbeat and of the sweep, in which a planned fault may strike.
# The order is drawn from: another one makes another run of every seed.
OF_WORKERS: Final = (
    Points.CLAIM_ATTEMPT, Points.CLAIM_BEHIND, Points.CLAIM_NEW, Points.CLAIM_FIRST, Points.CLAIM_LOAD,
    Points.CLAIM_READ, Points.CLAIM_LEASE, Points.CLAIM_EXEC, Points.LOAD_ALL, Points.RENEW,
    Points.RESTORE_READ, Points.RESTORE_EXEC, Points.RELEASE_READ, Points.RELEASE_EXEC,
    Points.JOURNAL_ANSWER, Points.JOURNAL_ADOPT, Points.JOURNAL_BEGIN, Points.JOURNAL_UNBEGIN, Points.JOURNAL_BURY,
    Points.JOURNAL_RESULT, Points.JOURNAL_FAILURE, Points.JOURNAL_LOOK, Points.JOURNAL_DROP,
    Points.COMMIT_ATTEMPT, Points.COMMIT_READ, Points.COMMIT_ENTRY, Points.COMMIT_EXEC,
    Points.RELOAD_READ, Points.RELOAD_CHECK, Points.SWEEP_NOW, Points.SWEEP_DUE, Points.SWEEP_CLAIMS, Points.SWEEP_PASS,
)  # fmt: skip

# Those of what clients do.
OF_CLIENTS: Final = (
    Points.SUBMIT_ATTEMPT, Points.SUBMIT_READ, Points.SUBMIT_EXEC,
    Points.ACT_READ, Points.ACT_LOAD, Points.ACT_PUSH, Points.ACT_EXEC,
    Points.STOP_READ, Points.STOP_LEASE, Points.STOP_JOURNAL, Points.STOP_ASK, Points.STOP_EXEC,
    Points.RETRY_READ, Points.RETRY_EXEC,
)  # fmt: skip

# Those of clients that act on messages which wait.
OF_QUEUES: Final = (
    Points.WITHDRAW_READ, Points.WITHDRAW_EXEC, Points.MODE_READ, Points.MODE_EXEC, Points.RELEASE_QUEUE_READ,
    Points.RELEASE_QUEUE_EXEC,
)  # fmt: skip

# Small or seldom round trips: no fault is planned for them, and many seeds pass each of them.
BESIDE: Final = (
    Points.CLAIM_UPTIME, Points.JOURNAL_FULL, Points.JOURNAL_AGAIN, Points.JOURNAL_OWN, Points.JOURNAL_PAST,
    Points.JOURNAL_PRIMARY, Points.SWEEP_PRIMARY, Points.ACT_JOURNAL, Points.STOP_NOW, Points.UNWATCH,
    Points.ACT_QUEUE, Points.ACT_LIFE,
)  # fmt: skip

# Those of a step that waits, and of whoever answers it, holds it or resumes it.
OF_WAITING: Final = (
    Points.JOURNAL_DECIDE, Points.JOURNAL_STARTED, Points.REQUEST_LOOK, Points.REQUEST_OPEN, Points.REQUEST_CLOSE,
    Points.WAIT_READ, Points.WAIT_EXEC, Points.ANSWER_READ, Points.ANSWER_JOURNAL, Points.ANSWER_EXEC,
    Points.SUSPEND_READ, Points.SUSPEND_EXEC, Points.RESUME_READ, Points.RESUME_EXEC, Points.ACT_REQUESTS,
    Points.WAIT_YIELD,
)  # fmt: skip

# Those of a deletion.
OF_DELETING: Final = (Points.DELETE_READ, Points.DELETE_STEPS, Points.DELETE_EXEC)  # fmt: skip

# Those of a change of the budget.
OF_LIMITING: Final = (Points.BUDGET_READ, Points.BUDGET_EXEC)

# Those of concurrency limits: taking and giving back holders, and calling who may go.
OF_HOLDING: Final = (
    Points.HOLDERS_TAKE, Points.HOLDERS_KEEP, Points.HOLDERS_GIVE, Points.HOLDERS_LINES, Points.HOLDERS_CALL,
    Points.HOLDERS_LEAVE, Points.HOLDERS_LOOK, Points.HOLDERS_SETTLED, Points.FLOW_READ, Points.FLOW_FORWARD,
    Points.HOLDERS_COUNT, Points.HOLDERS_STAND,
)  # fmt: skip

# Those of a rewind.
OF_REWINDING: Final = (
    Points.HEADERS, Points.PAST_HEAD, Points.PAST_LISTS, Points.REWIND_KNOWN, Points.REWIND_READ, Points.REWIND_STEPS,
    Points.REWIND_EXEC,
)  # fmt: skip

# Reads of requests.
OF_READERS: Final = (
    Points.REQUESTS_PAGE, Points.REQUESTS_COUNT, Points.REQUESTS_SESSION, Points.REQUESTS_JOURNAL,
    Points.REQUESTS_STEPS, Points.REQUESTS_LATER, Points.REQUESTS_ABOVE,
)  # fmt: skip

# Nothing that the simulation has to reach.
ELSEWHERE: Final = (
    Points.SESSION_MARK, Points.CREATE_KNOWN, Points.SAVE_STEPS, Points.DELETE_FULL, Points.STOP_CLEAR, *OF_DELETING,
    Points.SCRIPT_LOAD, Points.LOAD_READ, Points.LOAD_CHECK, Points.PARK_READ, Points.PARK_EXEC, Points.RETRY_UNPARK,
    Points.PARK_JOURNAL, Points.PARK_INDEX, Points.MOVE_ATTEMPT, Points.LABEL_READ, Points.LABEL_EXEC,
    Points.FLOW_NEXT, Points.FLOW_VIEW, Points.FLOW_CONCURRENCY, Points.FLOW_KNOWN, Points.HOLDERS_DEFINED, Points.HOLDERS_PRIMARY,
    Points.HOLDERS_LABELS,
    *OF_WAITING, *OF_LIMITING, *OF_HOLDING, *OF_REWINDING, *OF_READERS, Points.JOURNAL_AUXILIARY, Points.CLAIM_PRIMARY,
)  # fmt: skip
