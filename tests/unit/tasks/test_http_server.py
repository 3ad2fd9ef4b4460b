"""The socket of the HTTP interface."""

from __future__ import annotations

import socket

from celery_agents.tasks.http.server import _listen


def test_no_reply_waits_for_the_acknowledgement_of_its_first_piece() -> None:
    with _listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()) as client:
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert client.getpeername() == accepted.getsockname()
