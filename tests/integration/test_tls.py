"""Redis over TLS, as most that are rented speak it: store, broker and clients, and a worker that is killed."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from kombu.exceptions import OperationalError

from celery_agents import AgentClient, AsyncAgentClient
from celery_agents.config.settings import Settings
from celery_agents.tasks.app import create_app
from celery_agents.worker.errors import StoreUnavailable

from support.agents import call, plan
from support.fault_proxy import FaultProxy
from support.lab import QUICK
from support.ledger import Ledger
from support.redis_server import RedisServer
from support.worker_process import WorkerProcess


@pytest.fixture
def authority() -> trustme.CA:
    """Who vouches for the Redis."""
    return trustme.CA()


@pytest.fixture
def port(redis_server: RedisServer, authority: trustme.CA) -> Iterator[int]:
    """Where the Redis speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    proxy = FaultProxy(redis_server.port, tls=context).start()
    yield proxy.port
    proxy.end()


@pytest.fixture
def url(port: int, authority: trustme.CA, tmp_path: Path) -> str:
    """Its address for who trusts the authority."""
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    return f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={tmp_path / 'authority.pem'}"


def test_jobs_survive_a_killed_worker_over_tls(
    new_worker: Callable[..., WorkerProcess], url: str, ledger: Ledger
) -> None:
    env = {**ledger.env, **QUICK}
    doomed = new_worker(url, env={**env, "CELERY_AGENTS_CRASH": "c5:1:4"})
    client = AgentClient(url)
    steps = [[call("keyed", work="a"), call("keyed_async", work="b")], [call("keyed", work="c")]]
    jobs = [client.submit("planned", plan(*steps)) for _ in range(5)]
    doomed.wait(30)
    assert doomed.exit_code == -signal.SIGKILL
    new_worker(url, env=env)
    assert {job.result(timeout=40).status for job in jobs} == {"completed"}
    effects = Counter(entry["key"] for entry in ledger.entries() if entry["kind"] == "effect" and entry["effect"])
    assert list(effects.values()) == [1] * 3 * len(jobs)

    async def followed() -> list[str]:
        following = AsyncAgentClient(url)
        job = await following.submit("planned", plan())
        return [event.type async for event in job.events()]

    assert asyncio.run(followed())[-1] == "execution_completed"


def test_a_redis_whose_certificate_nobody_vouches_for_is_told_nothing(port: int) -> None:
    url = f"rediss://127.0.0.1:{port}/0"
    with pytest.raises(StoreUnavailable, match=r"certificate.*; ssl_ca_certs in its URL has to name"):
        AgentClient(url).submit("planned", plan())
    app = create_app(Settings.build(redis_url=url))
    with app.connection_for_write() as broker, pytest.raises(OperationalError, match="certificate"):
        broker.ensure_connection(max_retries=1)


def test_a_redis_that_asks_for_a_certificate_says_which_options_name_it(authority: trustme.CA, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            connection, _ = server.accept()
            with connection.dup() as raw:
                with pytest.raises(ssl.SSLError, match="did not return a certificate"):
                    context.wrap_socket(connection, server_side=True)
                raw.recv(4_096)  # a socket with something unread takes back what it has said

        refusing = threading.Thread(target=refuse)
        refusing.start()
        url = f"rediss://127.0.0.1:{server.getsockname()[1]}/0?ssl_ca_certs={tmp_path / 'authority.pem'}"
        with pytest.raises(StoreUnavailable, match="name yours by ssl_certfile and ssl_keyfile"):
            AgentClient(url).submit("planned", plan())
        refusing.join()
