"""Batches of one request each, over pydantic-ai's public interface; what that lacks, over the providers' own clients.

A batch of OpenAI names its job in its metadata and one of Google in its display name, so that it is found in the
list of batches. One of Anthropic can be told by the `custom_id` of its result alone, which is there when it has ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter
from pydantic_core import to_json

from ...errors import JobEnded, NotYetKnown
from ..protocol import JobOrder
from .failures import GONE, STUMBLES, as_driver_error, status_of, while_known
from .models import client_of

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
_WITHOUT_RESULTS: Final = {
    "JOB_STATE_FAILED": "failed", "JOB_STATE_CANCELLED": "canceled", "JOB_STATE_EXPIRED": "expired",
}  # fmt: skip
"""States of Google's batches of which pydantic-ai makes an error of HTTP, as if the request for them had failed."""
UNREADABLE: Final = "unreadable"
"""The kind of the end of a batch whose result is there, and was paid for."""
_FILE_NAME_REFUSED: Final = 400
"""Google's answer to the deletion of a file of results, whose names it makes too long: python-genai issue 1759."""


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
    return await _CREATE[model.system](model, encoded)


async def find_batch(question: Question, order: JobOrder) -> Batch | None:
    """Find the batch of a job; None where there is none.

    Raises:
        NotYetKnown: A batch that has not ended may be it.
    """
    model = question.model
    encoded = await model.batch_encode(_request(question, order.key))
    return await _FIND[model.system](model, encoded, order.intended_at - _SKEW, order.until + _SKEW)


async def collect_batch(question: Question, batch: Batch, key: str) -> ModelResponse | None:
    """The answer of a batch; None while there is none.

    Raises:
        JobEnded: It has ended without one.
    """
    with while_known(f"batch {batch.id}"):
        batch = await question.model.batch_status(batch)
        return await _answer(question.model, batch, _request(question, key)) if batch.status == "ended" else None


async def _answer(model: Model, batch: Batch, request: BatchRequest) -> ModelResponse:
    """The answer of a batch that has ended."""
    from pydantic_ai.exceptions import UnexpectedModelBehavior

    if (state := (batch.provider_details or {}).get("state")) in _WITHOUT_RESULTS:
        raise JobEnded(_WITHOUT_RESULTS[state], f"the provider ended the batch without an answer: {state}")
    try:
        results = await model.batch_results(batch)
        result = next((each for each in results if each.custom_id == request.custom_id), None)
        if result is None:
            raise JobEnded("failed", f"batch {batch.id} has ended without a result of this job")
        if result.status != "succeeded":
            raise JobEnded(*_why(model, result, request))
        response = model.batch_decode(result, request)
    except (*STUMBLES, UnexpectedModelBehavior) as error:  # no look reads another result
        said = f"the result of batch {batch.id} cannot be read ({type(error).__name__})"
        raise JobEnded(UNREADABLE, said) from None
    # Without the mark of a batch, by which pydantic-ai prices it: the price of a window is counted in one place.
    details = {name: value for name, value in (response.provider_details or {}).items() if name != _PRICED}
    return replace(response, provider_details=details or None)


async def has_ended(model: Model, batch: Batch) -> bool:
    """Whether a batch has ended.

    Raises:
        JobEnded: Its provider does not know it any more.
    """
    with while_known(f"batch {batch.id}"):
        return (await model.batch_status(batch)).status == "ended"


async def cancel_batch(model: Model, batch: Batch, key: str) -> ModelResponse | None:
    """Cancel a batch that nobody collects; the answer that it had given before all the same. None: it had given none.

    Raises:
        NotYetKnown: It has not ended yet.
        JobEnded: Its answer cannot be read.
    """
    from pydantic_ai.models.batch import BatchRequest

    batch = await model.batch_status(batch)
    if batch.status == "in_progress":
        batch = await model.batch_status(await model.batch_cancel(batch))
    if batch.status != "ended":
        raise NotYetKnown(f"batch {batch.id} is being cancelled")
    try:
        return await _answer(model, batch, BatchRequest(custom_id=key, messages=[]))
    except JobEnded as ended:
        if ended.kind == UNREADABLE:
            raise
        return None


async def delete_batch(model: Model, batch: Batch) -> None:
    """Delete what a provider keeps of a batch that has ended."""
    await _DELETE[model.system](model, batch)


def _request(question: Question, key: str) -> BatchRequest:
    from pydantic_ai.models.batch import BatchRequest

    sent = question.sent
    settings: Any = {name: value for name, value in (sent.settings or {}).items() if name not in _NOT_OF_A_BATCH}
    return BatchRequest(
        custom_id=key, messages=sent.messages, model_settings=settings, model_request_parameters=sent.parameters
    )


def _why(model: Model, result: Any, request: BatchRequest) -> tuple[str, str]:
    """Kind and sentence of a result without an answer."""
    from pydantic_ai.exceptions import ModelAPIError

    if result.status != "errored":
        return str(result.status), f"the provider ended the batch before it asked the model: {result.status}"
    try:
        model.batch_decode(result, request)
    except ModelAPIError as error:
        return "failed", str(as_driver_error(error, model.model_id, asked=True))
    return "failed", "the provider says that the request of the batch has failed"


def _batch(
    model: Model,
    encoded: EncodedBatchRequest,
    batch_id: str,
    created_at: datetime,
    details: dict[str, Any] | None = None,
) -> Batch:
    """A batch that was created or found, as it is kept."""
    from pydantic_ai.models.batch import Batch

    return Batch(
        id=batch_id, model_name=model.model_name, provider_name=model.system, group=encoded.group, status="in_progress",
        created_at=created_at, request_count=1, provider_details=details,
    )  # fmt: skip


# --- OpenAI -----------------------------------------------------------------------------------------------------------


async def _create_openai(model: Model, encoded: EncodedBatchRequest) -> Batch:
    """Upload the file and create the batch with the job's key, which `batch_create` has no place for."""
    client = client_of(model)
    head = to_json({"custom_id": encoded.custom_id, "method": "POST", "url": _ENDPOINT})
    line = head[:-1] + b',"body":' + encoded.body.encode() + b"}\n"
    file = await client.files.create(file=(f"{encoded.custom_id}.jsonl", line), purpose="batch")
    created = await client.batches.create(
        input_file_id=file.id, endpoint=_ENDPOINT, completion_window="24h", metadata={_MARK: encoded.custom_id}
    )
    return _of_openai(model, encoded, created)


async def _find_openai(model: Model, encoded: EncodedBatchRequest, since: datetime, until: datetime) -> Batch | None:
    del until  # the list names the key of each
    client = client_of(model)
    async for each in client.batches.list(limit=_PAGE):
        if datetime.fromtimestamp(each.created_at, UTC) < since:  # the newest come first
            return None
        if each.metadata and each.metadata.get(_MARK) == encoded.custom_id:
            return _of_openai(model, encoded, each)
    return None


def _of_openai(model: Model, encoded: EncodedBatchRequest, created: Any) -> Batch:
    details = {"status": created.status, "input_file_id": created.input_file_id}
    return _batch(model, encoded, created.id, datetime.fromtimestamp(created.created_at, UTC), details)


async def _delete_openai(model: Model, batch: Batch) -> None:
    client = client_of(model)
    details: Mapping[str, Any] = (await model.batch_status(batch)).provider_details or {}
    for name in ("input_file_id", "output_file_id", "error_file_id"):
        if details.get(name):
            await _unless(GONE, client.files.delete(details[name]))


# --- Anthropic --------------------------------------------------------------------------------------------------------


async def _create_anthropic(model: Model, encoded: EncodedBatchRequest) -> Batch:
    return await model.batch_create([encoded])


async def _find_anthropic(model: Model, encoded: EncodedBatchRequest, since: datetime, until: datetime) -> Batch | None:
    client = client_of(model)
    open_ids: list[str] = []
    async for each in client.beta.messages.batches.list(limit=_PAGE):
        if each.created_at < since:  # the newest come first
            break
        if each.created_at > until:  # of others: there is always one that has not ended
            continue
        if each.processing_status != "ended":
            open_ids.append(each.id)
            continue
        try:
            async for result in await client.beta.messages.batches.results(each.id):
                if result.custom_id == encoded.custom_id:
                    return replace(_batch(model, encoded, each.id, each.created_at), status="ended")
        except Exception as error:
            if status_of(error) not in GONE:
                raise
            open_ids.append(each.id)  # deleted meanwhile: whoever has collected it has journaled its answer
    if open_ids:
        raise NotYetKnown(f"batch {open_ids[-1]} or another may be its own, which is known when they have ended")
    return None


async def _delete_anthropic(model: Model, batch: Batch) -> None:
    client = client_of(model)
    await _unless(GONE, client.beta.messages.batches.delete(batch.id))


# --- Google -----------------------------------------------------------------------------------------------------------


async def _create_google(model: Model, encoded: EncodedBatchRequest) -> Batch:
    """Upload the file and create the batch with the job's key as its name, which `batch_create` has no place for."""
    client = client_of(model)
    line = b'{"key":' + to_json(encoded.custom_id) + b',"request":' + encoded.body.encode() + b"}\n"
    named: dict[str, Any] = {"display_name": encoded.custom_id}
    file = await client.aio.files.upload(file=BytesIO(line), config={**named, "mime_type": "application/jsonl"})
    once = {"retry_options": {"attempts": 1}}
    created = await client.aio.batches.create(
        model=model.model_name, src=file.name, config={**named, "http_options": once}
    )
    return _batch(model, encoded, created.name, created.create_time, {"input_file": file.name})


async def _find_google(model: Model, encoded: EncodedBatchRequest, since: datetime, until: datetime) -> Batch | None:
    del since, until  # the list is in no documented order: all of it is looked at
    client = client_of(model)
    async for each in await client.aio.batches.list(config={"page_size": _PAGE}):
        if each.display_name == encoded.custom_id:
            return _batch(model, encoded, each.name, each.create_time)
    return None


async def _delete_google(model: Model, batch: Batch) -> None:
    client = client_of(model)
    files, batches = client.aio.files, client.aio.batches
    if input_file := (batch.provider_details or {}).get("input_file"):
        await _unless(GONE, files.delete(name=input_file))
    known = await batches.get(name=batch.id)
    if known.dest is not None and known.dest.file_name:
        await _unless((*GONE, _FILE_NAME_REFUSED), files.delete(name=known.dest.file_name))
    await batches.delete(name=batch.id)


async def _unless(statuses: tuple[int, ...], deleted: Awaitable[object]) -> None:
    """Delete what a provider may refuse with one of these statuses, because it is gone."""
    try:
        await deleted
    except Exception as error:
        if status_of(error) not in statuses:
            raise


_CREATE: Final = {"openai": _create_openai, "anthropic": _create_anthropic, "google": _create_google}
_FIND: Final = {"openai": _find_openai, "anthropic": _find_anthropic, "google": _find_google}
_DELETE: Final = {"openai": _delete_openai, "anthropic": _delete_anthropic, "google": _delete_google}
BATCHES: Final = tuple(_CREATE)
"""The systems of models with batches, in pydantic-ai's words."""
