"""The one work that every engine does: K steps, each a model's answer with one tool call, and the tool's result.

The answers are about 1 KB, the results too, all of them different, so that neither a cache nor compression can help;
with `BENCH_TEXT=english` they are pieces of this product's documents, which compress as prose does.
Only the standard library is used here: every peer's own environment imports this module.
"""

from __future__ import annotations

import json
import os
import random
import string
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TOOL = "look_up"
TEXT, ENGLISH = "BENCH_TEXT", "english"
ANSWER_CHARS = 850
RESULT_CHARS = 1000
_VARIANTS = 64


def _texts(chars: int, seed: int) -> tuple[str, ...]:
    dice = random.Random(seed)
    letters = string.ascii_letters + string.digits
    words = ("".join(dice.choice(letters) for _ in range(dice.randint(3, 11))) for _ in range(chars * _VARIANTS))
    texts: list[str] = []
    for _ in range(_VARIANTS):
        text = ""
        while len(text) < chars:
            text += next(words) + " "
        texts.append(text[:chars])
    return tuple(texts)


def _prose(chars: int, seed: int) -> tuple[str, ...]:
    text = " ".join(
        (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="ascii", errors="ignore").split()
    )
    return tuple(text[at : at + chars] for at in range(seed * 111, seed * 111 + _VARIANTS * 1_000, 1_000))


_ANSWERS = {"": _texts(ANSWER_CHARS, 1), ENGLISH: _prose(ANSWER_CHARS, 1)}
_RESULTS = {"": _texts(RESULT_CHARS, 2), ENGLISH: _prose(RESULT_CHARS, 5)}


def answer_text(step: int, env: Mapping[str, str] = os.environ) -> str:
    """What the model says in this step, about 850 characters; with the tool call it is about 1 KB."""
    return _ANSWERS[env.get(TEXT, "")][step % _VARIANTS]


def tool_arguments(step: int, env: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Arguments of the step's tool call, about 100 bytes."""
    return {"step": step, "query": answer_text(step * 7, env)[:80]}


def tool_result(step: int, env: Mapping[str, str] = os.environ) -> str:
    """What the tool answers, 1 000 characters."""
    return _RESULTS[env.get(TEXT, "")][step % _VARIANTS]


def call_model(step: int, steps: int, latency: float) -> dict[str, Any]:
    """The scripted model, blocking: asks for one tool until the last step, which answers. `latency` in seconds."""
    if latency:
        time.sleep(latency)
    calls = [] if step >= steps else [{"id": f"call_{step}", "name": TOOL, "args": tool_arguments(step)}]
    return {"role": "assistant", "content": answer_text(step), "tool_calls": calls}


def call_tool(call: dict[str, Any]) -> dict[str, Any]:
    """The tool's message for a call of `call_model`."""
    return {"role": "tool", "tool_call_id": call["id"], "content": tool_result(call["args"]["step"])}


def job_text(steps: int, latency: float) -> str:
    """The user's message: what the scripted model has to know."""
    return json.dumps({"steps": steps, "latency": latency})
