"""Jobs of both kinds, background responses and batches, by what their handles tell: the window, the key, and the job.

The job is pydantic-ai's own value as JSON, a suspended response or a `Batch`, and holds no secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from ...errors import ConfigurationError, DriverError, JobEnded
from ...state.execution.inference import InferenceResponse
from ..protocol import CreatedJob, JobOrder
from ..windows import WINDOWS
from .answers import inference_usage
from .background import (
    cancel_response,
    create_response,
    delete_response,
    dump_response,
    is_suspended,
    load_response,
    retrieve_response,
    translate,
)
from .batches import (
    UNREADABLE,
    cancel_batch,
    collect_batch,
    create_batch,
    delete_batch,
    dump_batch,
    find_batch,
    has_ended,
    load_batch,
)
from .failures import GONE
from .models import Target

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model

    from .driver import Question

_CLEANING_SECONDS: Final = 60.0

Place = Mapping[str, Any]
"""Entries of a handle that tell which model was asked, where the driver does not know."""


def check_sold(window: str, sold: Sequence[str], name: str) -> None:
    """Refuse a window with which a model is not sold.

    Raises:
        ConfigurationError: It is none of those.
    """
    if window not in sold:
        what = f"it has {', '.join(map(repr, sold))}" if sold else "it has none"
        raise ConfigurationError(f"completion_window {window!r}: {name} is not sold with it; {what}")


async def create(question: Question, order: JobOrder, place: Place) -> CreatedJob:
    """Create a job."""
    if WINDOWS[order.window].is_batch:
        batch = await create_batch(question, order)
        return CreatedJob(batch.id, handle_of(order.window, order.key, dump_batch(batch), place))
    return response_job(await create_response(question, order), order.window, order.key, place)


async def find(question: Question, order: JobOrder, place: Place) -> CreatedJob | None:
    """Find a batch by its key; None where there is none."""
    batch = await find_batch(question, order)
    return None if batch is None else CreatedJob(batch.id, handle_of(order.window, order.key, dump_batch(batch), place))


async def collect(question: Question, known: Mapping[str, Any]) -> ModelResponse | None:
    """The answer of a job; None while there is none.

    Raises:
        JobEnded: There will be none.
    """
    if WINDOWS[known["window"]].is_batch:
        return await collect_batch(question, load_batch(known["job"]), known["key"])
    return await retrieve_response(question, known["job"])


async def is_there(model: Model, known: Mapping[str, Any]) -> bool:
    """Whether a job has an answer, or will have none."""
    if WINDOWS[known["window"]].is_batch:
        return await has_ended(model, load_batch(known["job"]))
    return not await is_suspended(model, load_response(known["job"]))


async def clean(
    model: Awaitable[Model],
    known: Mapping[str, Any],
    target: Target,
    cost: Callable[[ModelResponse, float], float | None],
    *,
    is_open: bool,
) -> InferenceResponse | None:
    """Cancel a job or delete what the provider keeps; see `AnswersLater.clean_job`.

    Args:
        target: Named in errors.
        cost: Gives the price of an answer, of which this share is paid.
    """
    window = WINDOWS.get(known["window"])
    try:
        async with asyncio.timeout(_CLEANING_SECONDS):
            asked, job = await model, known["job"]
            is_batch = window is not None and window.is_batch
            if not is_open:
                await (delete_batch(asked, load_batch(job)) if is_batch else delete_response(asked, load_response(job)))
                return None
            if is_batch:
                answered = await cancel_batch(asked, load_batch(job), known["key"])
            else:
                answered = await cancel_response(asked, load_response(job))
            if answered is None:
                return InferenceResponse(cost=0.0)
            paid = cost(answered, 1.0 if window is None else window.factor)
            return InferenceResponse(usage=inference_usage(answered.usage), cost=paid)
    except Exception as error:  # noqa: BLE001 - clients raise anything; all of it is translated
        failure = translate(error, target)
    if isinstance(failure, JobEnded) and failure.kind == UNREADABLE:
        return InferenceResponse()  # nobody knows what it has cost, and what is kept of it can be deleted
    if isinstance(failure, JobEnded) or (isinstance(failure, DriverError) and failure.status in GONE):
        return None
    raise failure


def response_job(response: ModelResponse, window: str, key: str, place: Place) -> CreatedJob:
    """The job of a background response.

    Raises:
        DriverError: The provider gave no id.
    """
    if response.provider_response_id is None:
        raise DriverError("api_error", f"{response.model_name} gave no id of a background response", transient=True)
    return CreatedJob(response.provider_response_id, handle_of(window, key, dump_response(response), place))


def handle_of(window: str, key: str, job: Any, place: Place) -> str:
    """The handle of a job."""
    return to_json({**place, "window": window, "key": key, "job": job}).decode()
