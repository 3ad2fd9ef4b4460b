"""Opens the requests for children, with a reservation for each, before anything waits for them."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidInput
from ..moments import moment
from ..redaction import describe_exception
from ..state.execution.budget import ExecutionBudget
from ..state.execution.children import ChildOrder, child_ids
from ..state.execution.requests import MAX_REQUESTS_PER_STEP, Request, RequestKind
from ..state.execution.reservations import BudgetWish, Shortage, reserve
from ..tools.approval import milliseconds_of
from ..tools.delegation import Delegation, NeedsChildren, is_delegating
from .call_records import PlannedCall
from .child_calls import left_for_children, shared_with_children
from .request_opening import RequestOpener
from .run import Run
from .services import EngineServices

Wanted = tuple[PlannedCall, Delegation]


class Delegator:
    """Opens the requests of a step for children."""

    def __init__(self, services: EngineServices, opener: RequestOpener) -> None:
        self._services = services
        self._opener = opener

    def open(self, run: Run, planned: Sequence[PlannedCall]) -> tuple[Run, list[PlannedCall]]:
        """Open the requests of calls that other agents work on.

        Returns:
            The run, with the errors of calls that cannot be delegated; and the calls that this worker runs.
        """
        local_calls = [each for each in planned if not is_delegating(each.tool)]
        if run.ending.is_stopping or len(local_calls) == len(planned):
            return run, list(planned)
        wanted: list[Wanted] = []
        for each in planned:
            if is_delegating(each.tool):
                try:
                    self._check_depth(run)
                    wanted.append((each, self._check_delegation(each.tool.delegate(each.bound))))
                except InvalidInput as error:
                    run = self._opener.refuse(run, each, str(error))
        budgets = self._reserve(run, wanted)
        requests: list[tuple[PlannedCall, Request]] = []
        for (each, delegation), budget in zip(wanted, budgets, strict=True):
            if isinstance(budget, Shortage):
                run = self._opener.refuse(run, each, f"{delegation.agent}: {budget.message}")
                continue
            try:
                requests.append((each, self._request(run, each, delegation, budget)))
            except InvalidInput as error:  # of the arguments
                run = self._opener.refuse(run, each, str(error))
        return self._opener.open(run, requests), local_calls

    def open_spawned(self, run: Run, planned: PlannedCall, needs: NeedsChildren) -> Run:
        """Open the requests for the children that a running tool wants, all or none."""
        room = MAX_REQUESTS_PER_STEP - len(run.journal.all_requests)
        if len(needs.delegations) > room:
            return self._opener.refuse(run, planned, f"a step makes {MAX_REQUESTS_PER_STEP} requests at most")
        try:
            self._check_depth(run)
            wanted = [(planned, self._check_delegation(each)) for each in needs.delegations]
            requests: list[tuple[PlannedCall, Request]] = []
            for (_, delegation), budget in zip(wanted, self._reserve(run, wanted), strict=True):
                if isinstance(budget, Shortage):
                    return self._opener.refuse(run, planned, f"{delegation.agent}: {budget.message}")
                group = f"{planned.index}.{needs.group}"
                order = self._request(run, planned, delegation, budget, group=group, ahead=len(requests))
                requests.append((planned, order))
        except Exception as error:  # noqa: BLE001 - values that the tool gave
            return self._opener.refuse(run, planned, describe_exception(error).message)
        return self._opener.open(run, requests)

    def _check_depth(self, run: Run) -> None:
        """Refuse a child below the deepest level. It is checked before anything is looked up."""
        if run.depth >= run.max_depth:
            advice = f"agent {run.agent.name} at depth {run.depth} may start no agents; do the work without."
            raise InvalidInput("depth", run.depth, advice)

    def _check_delegation(self, delegation: Delegation) -> Delegation:
        """Refuse a prompt that is no message, and an agent named at run time that no worker has ever registered."""
        size, most = len(delegation.prompt.encode(errors="replace")), self._services.settings.max_message_bytes
        if size > most:
            advice = f"it may have {most} bytes (CELERY_AGENTS_MAX_MESSAGE_BYTES); give a shorter one."
            raise InvalidInput("prompt", f"{size} bytes", advice)
        if not delegation.is_declared and self._services.store.registry.queue_of(delegation.agent) is None:
            known = ", ".join(sorted(self._services.store.registry.agents())) or "none"
            raise InvalidInput("agent", delegation.agent, f"there is no such agent; agents: {known}.")
        return delegation

    def _reserve(self, run: Run, wanted: Sequence[Wanted]) -> list[ExecutionBudget | Shortage]:
        now = moment(run.redis_ms(self._services.monotonic()))
        wishes = [BudgetWish(delegation.budget, delegation.limits) for _, delegation in wanted]
        left = left_for_children(run, now)
        return reserve(left, wishes, now, shared=shared_with_children(run, left)) if wishes else []

    def _request(
        self,
        run: Run,
        planned: PlannedCall,
        delegation: Delegation,
        budget: ExecutionBudget,
        *,
        group: str | None = None,
        ahead: int = 0,
    ) -> Request:
        place = (planned.index, len(run.journal.requests.get(planned.index, ())) + ahead)
        session_id, execution_id = child_ids(run.ref.session_id, run.ref.execution_id, run.ref.step, place)
        names = [key for key in delegation.merge if isinstance(key, str)]
        order = ChildOrder(
            session_id=session_id,
            execution_id=execution_id,
            agent=delegation.agent,
            prompt=delegation.prompt,
            budget=budget,
            on_failure=delegation.on_failure,
            join=delegation.join,
            group=group or "",
            is_result=group is None,
            depth=run.depth + 1,
            merge=tuple(names),
            merge_parts=tuple(key.part_name for key in delegation.merge if not isinstance(key, str)),
        )
        return self._opener.make_request(
            run,
            planned,
            RequestKind.CHILD,
            ahead=ahead,
            text=f"The agent {delegation.agent} works on it.",
            after_ms=milliseconds_of(delegation.timeout),
            child=order,
            options=delegation.context if group is not None else None,
        )
