"""Batches of one request each, over pydantic-ai's public interface; what that lacks, over the providers' own clients.

A batch of OpenAI names its job in its metadata, so that it is found in the list of batches. One of Anthropic can be
told by the `custom_id` of its result alone, which is there when it has ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter
from pydantic_core import to_json

from ...errors import JobEnded, NotYetKnown
from ..protocol import JobOrder

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model
    from pydantic_ai.models.batch import Batch, BatchRequest, EncodedBatchRequest

    from .driver import Question

_ENDPOINT: Final = "/v1/responses"
_MARK: Final = "celery_agents"
"""The name under which the metadata of a batch have the key of its job."""
_SKEW: Final = timedelta(minutes=5)
"""How far the clocks of Redis and of a provider may differ."""
_PAGE: Final = 100
_PRICED: Final = "processing"
_NOT_OF_A_BATCH: Final = ("timeout", "max_retries")


@cache
def _adapter() -> TypeAdapter[Batch]:
    from pydantic_ai.models.batch import Batch

    return TypeAdapter(Batch)


def dump_batch(batch: Batch) -> Any:
    """Write what is known of a batch as JSON."""
    return _adapter().dump_python(batch, mode="json")


def load_batch(known: Any) -> Batch:
    """The batch that `dump_batch` gave."""
    return _adapter().validate_python(known)


async def create_batch(question: Question, order: JobOrder) -> Batch:
    """Create the batch of a job."""
    model = question.model
    encoded = await model.batch_encode(_request(question, order.key))
    return await (_create_openai if _is_openai(model) else _create_any)(model, encoded)


async def find_batch(question: Question, order: JobOrder) -> Batch | None:
    """Find the batch of a job; None where there is none.

    Raises:
        NotYetKnown: A batch that has not ended may be it.
    """
    model = question.model
    encoded = await model.batch_encode(_request(question, order.key))
    since = order.intended_at - _SKEW
    return await (_find_openai if _is_openai(model) else _find_anthropic)(model, encoded, since)


async def batch_answer(question: Question, batch: Batch, key: str) -> ModelResponse | None:
    """The answer of a batch; None while there is none.

    Raises:
        JobEnded: It has ended without one.
    """
    batch = await question.model.batch_status(batch)
    if batch.status != "ended":
        return None
    results = await question.model.batch_results(batch)
    result = next((each for each in results if each.custom_id == key), None)
    if result is None:
        raise JobEnded("failed", f"batch {batch.id} has ended without a result of this job")
    if result.status != "succeeded":
        raise JobEnded(*_why(question, result, key))
    response = question.model.batch_decode(result, _request(question, key))
    # Without the mark of a batch, by which pydantic-ai prices it: the price of a window is counted in one place.
    details = {name: value for name, value in (response.provider_details or {}).items() if name != _PRICED}
    return replace(response, provider_details=details or None)


async def has_ended(model: Model, batch: Batch) -> bool:
    """Whether a batch has ended."""
    return (await model.batch_status(batch)).status == "ended"


async def clean_batch(model: Model, batch: Batch, *, is_open: bool) -> None:
    """Cancel a batch that nobody collects, or delete what a provider keeps of one that was collected."""
    client: Any = getattr(model.provider, "client", None)
    if is_open:
        await model.batch_cancel(batch)
    elif _is_openai(model):
        details: Mapping[str, Any] = (await model.batch_status(batch)).provider_details or {}
        for name in ("input_file_id", "output_file_id", "error_file_id"):
            if details.get(name):
                await _unless_gone(lambda file_id=details[name]: client.files.delete(file_id))
    else:
        await _unless_gone(lambda: client.beta.messages.batches.delete(batch.id))


def _request(question: Question, key: str) -> BatchRequest:
    from pydantic_ai.models.batch import BatchRequest

    sent = question.sent
    settings: Any = {name: value for name, value in (sent.settings or {}).items() if name not in _NOT_OF_A_BATCH}
    return BatchRequest(
        custom_id=key, messages=sent.messages, model_settings=settings, model_request_parameters=sent.parameters
    )


def _why(question: Question, result: Any, key: str) -> tuple[str, str]:
    """Kind and sentence of a result without an answer."""
    from pydantic_ai.exceptions import ModelAPIError

    from .failures import as_driver_error

    if result.status != "errored":
        return str(result.status), f"the provider ended the batch before it asked the model: {result.status}"
    try:
        question.model.batch_decode(result, _request(question, key))
    except ModelAPIError as error:
        return "failed", str(as_driver_error(error, question.model.model_id, asked=True))
    return "failed", "the provider says that the request of the batch has failed"


def _is_openai(model: Model) -> bool:
    return model.system == "openai"


async def _create_any(model: Model, encoded: EncodedBatchRequest) -> Batch:
    return await model.batch_create([encoded])


async def _create_openai(model: Model, encoded: EncodedBatchRequest) -> Batch:
    """Upload the file and create the batch with the job's key, which `batch_create` has no place for."""
    client: Any = getattr(model.provider, "client", None)
    head = to_json({"custom_id": encoded.custom_id, "method": "POST", "url": _ENDPOINT})
    line = head[:-1] + b',"body":' + encoded.body.encode() + b"}\n"
    file = await client.files.create(file=(f"{encoded.custom_id}.jsonl", line), purpose="batch")
    created = await client.batches.create(
        input_file_id=file.id, endpoint=_ENDPOINT, completion_window="24h", metadata={_MARK: encoded.custom_id}
    )
    return _of_openai(model, encoded, created)


async def _find_openai(model: Model, encoded: EncodedBatchRequest, since: datetime) -> Batch | None:
    client: Any = getattr(model.provider, "client", None)
    async for each in client.batches.list(limit=_PAGE):
        if datetime.fromtimestamp(each.created_at, UTC) < since:  # the newest come first
            return None
        if each.metadata and each.metadata.get(_MARK) == encoded.custom_id:
            return _of_openai(model, encoded, each)
    return None


def _of_openai(model: Model, encoded: EncodedBatchRequest, created: Any) -> Batch:
    from pydantic_ai.models.batch import Batch

    return Batch(
        id=created.id,
        model_name=model.model_name,
        provider_name=model.system,
        group=encoded.group,
        status="in_progress",
        created_at=datetime.fromtimestamp(created.created_at, UTC),
        request_count=1,
        provider_details={"status": created.status, "input_file_id": created.input_file_id},
    )


async def _find_anthropic(model: Model, encoded: EncodedBatchRequest, since: datetime) -> Batch | None:
    from pydantic_ai.models.batch import Batch

    client: Any = getattr(model.provider, "client", None)
    open_ids: list[str] = []
    async for each in client.beta.messages.batches.list(limit=_PAGE):
        if each.created_at < since:  # the newest come first
            break
        found = Batch(
            id=each.id, model_name=model.model_name, provider_name=model.system, group=encoded.group,
            status="ended" if each.processing_status == "ended" else "in_progress", created_at=each.created_at,
            request_count=1,
        )  # fmt: skip
        if each.processing_status != "ended":
            open_ids.append(each.id)
            continue
        async for result in await client.beta.messages.batches.results(each.id):
            if result.custom_id == encoded.custom_id:
                return found
    if open_ids:
        raise NotYetKnown(f"batch {open_ids[-1]} or another may be its own, which is known when they have ended")
    return None


async def _unless_gone(delete: Callable[[], Awaitable[object]]) -> None:
    """Delete what may have been deleted before."""
    try:
        await delete()
    except Exception as error:
        if getattr(error, "status_code", None) != GONE:
            raise


GONE: Final = 404
"""The HTTP status of what a provider does not keep any more."""
