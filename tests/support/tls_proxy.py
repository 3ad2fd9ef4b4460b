"""TLS in front of a Redis that speaks none, with a certificate that only who has its authority's file accepts."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from pathlib import Path
from types import TracebackType

import trustme


class TlsProxy:
    """Decrypts what comes and hands it on, from `with` to its end, in a thread of this process.

    Attributes:
        authority: A file with the certificate to trust.
        port: Where it listens, under the name `localhost`.
    """

    def __init__(self, folder: Path, to_port: int) -> None:
        self.authority = folder / "authority.pem"
        self.port = 0
        self._to_port = to_port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.authority)
        authority.issue_cert("localhost").configure_cert(self._context)
        self._loop = asyncio.new_event_loop()
        self._listens = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tls-proxy", daemon=True)

    @property
    def url(self) -> str:
        """Of database 0, trusting the authority."""
        return f"rediss://localhost:{self.port}/0?ssl_ca_certs={self.authority}"

    def __enter__(self) -> TlsProxy:
        self._thread.start()
        assert self._listens.wait(10), "the proxy does not listen"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._listen())
        self._listens.set()
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, "localhost", 0, ssl=self._context, family=2)
        self.port = server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_redis, to_redis = await asyncio.open_connection("127.0.0.1", self._to_port)
        with contextlib.suppress(asyncio.CancelledError):  # the test is over
            await asyncio.gather(_pass(reader, to_redis), _pass(from_redis, writer))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()
