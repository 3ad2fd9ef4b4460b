"""By which answers a Redis says that it is away, in each form in which redis-py and its versions bring them."""

from __future__ import annotations

import pytest
from redis import exceptions

from celery_agents.worker.errors import StoreForbidden
from celery_agents.worker.store.database import SlotAway, SlotMoved
from celery_agents.worker.store.redis.database import raise_errors
from celery_agents.worker.store.redis.outages import find_outage, find_slot, find_wrong_url


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (exceptions.ReadOnlyError("You can't write against a read only replica."), "READONLY"),
        (exceptions.MasterDownError("Link with MASTER is down"), "MASTERDOWN"),
        (exceptions.BusyLoadingError("Redis is loading the dataset in memory"), "LOADING"),
        (exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."), "NOREPLICAS"),
        (exceptions.ResponseError("MISCONF Redis is configured to save RDB snapshots"), "MISCONF"),
        (exceptions.ResponseError("UNBLOCKED force unblock from blocking operation"), "UNBLOCKED"),
        (exceptions.ConnectionError("max number of clients reached"), "max number of clients reached"),
        (
            exceptions.ExecAbortError("Transaction discarded because of: NOREPLICAS Not enough good replicas"),
            "NOREPLICAS",
        ),
        (  # a script on Redis 6.2
            exceptions.ResponseError(
                "Error running script (call to f_12): @user_script:1: @user_script: 1: -READONLY You can't write "
                "against a read only replica."
            ),
            "READONLY",
        ),
        (  # a script on Redis 7
            exceptions.ResponseError("MISCONF Errors writing to the AOF file script: 4e1, on @user_script:1."),
            "MISCONF",
        ),
    ],
)
def test_a_refusal_that_passes_is_an_outage_that_says_what_to_do(error: Exception, code: str) -> None:
    outage = find_outage(error)
    assert outage is not None
    assert code in str(outage)
    assert str(outage).endswith(")")


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"),
        exceptions.ResponseError("ERR unknown command 'READONLYISH'"),
        exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
        exceptions.NoPermissionError("User worker has no permissions to run the 'get' command"),
        exceptions.NoScriptError("No matching script."),
    ],
)
def test_other_errors_are_none(error: Exception) -> None:
    assert find_outage(error) is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.MovedError("866 127.0.0.1:7001"), SlotMoved),
        (exceptions.AskError("866 127.0.0.1:7001"), SlotAway),
        (exceptions.TryAgainError("Multiple keys request during rehashing of slot"), SlotAway),
        (exceptions.ClusterDownError("The cluster is down"), SlotAway),
    ],
)
def test_a_slot_that_is_away_does_not_cost_the_connection_to_its_node(error: Exception, kind: type) -> None:
    assert find_outage(error) is None
    assert type(find_slot(error)) is kind


def test_a_replica_without_its_primary_is_an_outage_of_the_node() -> None:
    assert find_slot(exceptions.MasterDownError("Link with MASTER is down")) is None


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (SlotMoved("866 127.0.0.1:7001"), "redis+cluster://"),
        (SlotAway("CLUSTERDOWN"), "redis+cluster://"),
        (exceptions.ClusterCrossSlotError("Keys in request don't hash to the same slot"), "redis+cluster://"),
        (StoreForbidden("Redis has no such command: unknown command 'GET', with args"), "redis+sentinel://"),
        (exceptions.ResponseError("unknown command `SELECT`, with args beginning with: `1`"), "redis+sentinel://"),
    ],
)
def test_an_answer_of_another_kind_of_server_names_the_url_that_leads_to_it(error: Exception, word: str) -> None:
    wrong = find_wrong_url(error)
    assert wrong is not None
    assert word in str(wrong)


@pytest.mark.parametrize(
    "error",
    [
        StoreForbidden("Redis has no such command: unknown command 'EVALSHA', with args"),
        exceptions.ResponseError("unknown command 'GETDEL', with args"),
        exceptions.ResponseError("WRONGTYPE"),
        ValueError("unknown command 'GET'"),
    ],
)
def test_what_one_server_may_say_names_no_other_url(error: Exception) -> None:
    assert find_wrong_url(error) is None


def test_a_command_that_is_not_there_is_forbidden_whatever_its_arguments_say() -> None:
    """Redis repeats them, and a session may be named so."""
    said = "unknown command 'EVALSHA', with args beginning with: 'abc' '1' 'ca:{1}:s:ROOM-1:ctl'"
    with pytest.raises(StoreForbidden, match="has no such command"):
        raise_errors([exceptions.ResponseError(said)])
