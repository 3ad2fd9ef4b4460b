"""Random sessions, stored by the build that runs this, with workers of its own: `python write.py FOLDER NUMBER SEED`.

The build's own `tests/` is on the path. When all is stored, and no worker is left, it prints the URL of its Redis, which
stays until this process is terminated.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from celery_agents import AgentClient
from celery_agents.worker.errors import CeleryAgentsError

from support.agents import call, plan
from support.lab import Lab
from support.tree_agents import delegate

AGENTS: Final = ("planned", "planned", "node", "node", "careful", "asking", "smart")
TOOLS: Final = {
    "planned": ("pure", "keyed", "looked_up", "unsafe", "failing"),
    "node": ("pure", "keyed", "unsafe", "delegate"),
    "careful": ("pure", "keyed", "unsafe"),
    "asking": ("pure", "keyed", "approved_keyed", "question", "later_keyed"),
}
WORDS: Final = (
    "größe", "\u202e", "🙂", "line\nbreak", '"quoted"', "{json}", "</b>", "1e400", "\\u0000", "\x7f", "a", "lid", "was",
    "cracked", "when", "it", "came", "and", "the", "customer", "has", "asked", "for", "another", "one",
)  # fmt: skip
LENGTHS: Final = (0, 3, 20, 300, 1_500, 6_000)
_PATIENCE_SECONDS: Final = 300.0


class Writer:
    """Submits sessions and does with them what clients do."""

    def __init__(self, client: AgentClient, dice: random.Random) -> None:
        self.client, self.dice = client, dice
        self.sessions: list[str] = []

    def text(self, length: int | None = None) -> str:
        wanted = self.dice.choice(LENGTHS) if length is None else length
        return " ".join(self.dice.choice(WORDS) for _ in range(wanted // 5))

    def plan(self, agent: str) -> str:
        """A message with what its agent is to do; any text where the agent has a script."""
        if agent not in TOOLS:
            return self.text(300)
        steps = [self._calls(agent) for _ in range(self.dice.randrange(5))]
        return plan(*steps, answer=self.text())

    def _calls(self, agent: str) -> list[dict[str, Any]]:
        names = [self.dice.choice(TOOLS[agent]) for _ in range(self.dice.randrange(1, 4))]
        return [self._call(name) for name in names]

    def _call(self, name: str) -> dict[str, Any]:
        if name == "delegate":
            return delegate(self.plan("planned"))
        return call(name, **{"text" if name == "failing" else "work": self.text()})

    def submit(self) -> None:
        agent = self.dice.choice(AGENTS)
        metadata = (
            {"key": self.text(20), "größe": [None, 1.5, {"a": self.text(20)}]} if self.dice.random() < 0.5 else {}
        )
        job = self.client.submit(agent, self.plan(agent), metadata=metadata)
        self.sessions.append(job.session_id)
        self.act(self.dice.choice(("suspend", "stop", "prompt", "message", "", "", "", "", "", "")), job.session_id)

    def act(self, what: str, session: str) -> None:
        """Do something with a session, if its state allows it."""
        client = self.client
        try:
            if what == "suspend":
                client.suspend(session, reason=self.text(20))
            elif what == "stop":
                client.stop(session)
            elif what == "prompt":
                client.change_system_prompt(session, self.text(300))
            elif what == "message":
                client.send_message(session, self.plan("planned"))
            elif what == "retry":
                client.retry(session)
            elif what == "fork":
                self.sessions.append(client.fork(session))
            elif what == "clear":
                client.clear(session)
            elif what == "answer":
                self._answer(session)
        except CeleryAgentsError:
            return  # such as a retry of what has not failed

    def _answer(self, session: str) -> None:
        for found in self.client.requests(session, tree=False).requests:
            given = {"count": 3} if found.summary.kind == "question" else None
            answer = {"answer": given} if given else self.dice.choice(({"approve": True}, {"deny": self.text(20)}))
            self.client.answer(session, {found.summary.id: answer})

    def wait(self) -> None:
        """Wait until no session has anything to do."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while any(self._runs(session) for session in self.sessions):
            assert time.monotonic() < deadline, "sessions still run"
            time.sleep(0.5)

    def _runs(self, session: str) -> bool:
        header = self.client.header(session)
        return header.status in ("pending", "in_progress") and header.hold is None


def main() -> None:
    folder, number, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # so that the lab ends
    dice = random.Random(seed)
    agents = "support.agents,support.tree_agents,support.waiting_agents,support.smart_agents"
    with Lab(folder, agents=agents) as lab:
        workers = [lab.worker(), lab.worker()]
        writer = Writer(lab.client, dice)
        for _ in range(number * 7 // 8):
            writer.submit()
        writer.wait()
        for session in dice.sample(writer.sessions, number // 2):
            writer.act(
                dice.choice(("message", "retry", "fork", "fork", "clear", "answer", "answer", "prompt")), session
            )
        while len(writer.sessions) < number:
            writer.submit()
        writer.wait()
        time.sleep(2)  # for children of what was stopped
        for worker in workers:
            worker.stop()
        print("stored in", lab.store_url, flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
