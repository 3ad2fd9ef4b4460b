"""Methods that a path of the HTTP interface does not have."""

from __future__ import annotations

import re

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from celery_agents import AgentClient
from celery_agents.tasks.http.app import ENDPOINTS, create_http_app

PATHS = sorted({each.path for each in ENDPOINTS})


@pytest.mark.parametrize("below", ["", "/agents"], ids=["alone", "mounted"])
def test_a_refusal_names_all_methods_of_the_path(below: str) -> None:
    app = create_http_app(AgentClient("redis://127.0.0.1:1"))  # no Redis is asked
    mounted = Starlette(routes=[Mount(below, app)]) if below else app
    with TestClient(mounted, base_url="http://localhost") as http:
        for path in PATHS:
            response = http.patch(below + re.sub(r"\{.*?\}", "x", path))
            methods = {each.method for each in ENDPOINTS if each.path == path}
            assert response.status_code == 405
            assert set(response.headers["Allow"].split(", ")) == methods | ({"HEAD"} if "GET" in methods else set())
