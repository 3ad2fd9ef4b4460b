"""Errors as problem documents: what passes by itself says so by its status."""

from __future__ import annotations

import pytest

from celery_agents.tasks.http.problems import problem_of
from celery_agents.worker.errors import ArchiveUnavailable, CeleryAgentsError, StoreFull, StoreUnavailable


@pytest.mark.parametrize(("error", "status"), [(StoreUnavailable, 503), (ArchiveUnavailable, 503), (StoreFull, 507)])
def test_a_store_that_is_away_is_no_mistake_of_the_server(error: type[CeleryAgentsError], status: int) -> None:
    assert problem_of(error("it is away")).status == status
