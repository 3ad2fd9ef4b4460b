"""The HTTP interface: everything an `AgentClient` does, for other languages and for browsers (extra `http`).

`app.py` puts it together. An endpoint is a function and an `Endpoint` in one of the `*_endpoints.py`; routing, access,
checks of bodies and the OpenAPI document all follow from that table.
"""

from __future__ import annotations
