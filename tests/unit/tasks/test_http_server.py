"""The socket of the HTTP interface."""

from __future__ import annotations

import socket
import subprocess
import sys

from celery_agents.tasks.http.server import _listen


def test_no_reply_waits_for_the_acknowledgement_of_its_first_piece() -> None:
    with _listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()) as client:
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert client.getpeername() == accepted.getsockname()


def test_the_interface_is_made_where_python_leaves_docstrings_out() -> None:
    code = "from celery_agents.tasks.http.app import create_http_app; create_http_app()"
    subprocess.run([sys.executable, "-OO", "-c", code], check=True)
