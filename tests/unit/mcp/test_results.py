"""The result of a call as it is kept: structured content, or the texts."""

from __future__ import annotations

from typing import Any

import mcp_types as types
import pytest

from celery_agents.worker.mcp.session import read_result

TEXT = types.TextContent(type="text", text="the text")


@pytest.mark.parametrize(
    ("structured", "texts", "kept"),
    [
        (None, [TEXT], "the text"),
        ({"a": 1}, [TEXT], {"a": 1}),
        ({"result": [1]}, [TEXT], [1]),
        ({}, [TEXT], "the text"),
        ({}, [], {}),
        (None, [], ""),
    ],
)
def test_structured_content_is_kept_where_it_says_something(structured: Any, texts: Any, kept: Any) -> None:
    assert read_result(types.CallToolResult(content=texts, structured_content=structured)) == kept
