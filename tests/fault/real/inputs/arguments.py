"""What tools get and give."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

from .desk import Desk
from .examples import run_examples
from .extremes import Material, as_json, json_values
from .offered import TOOLS
from support.verdict import Verdict

_PARAMETERS: Final = (
    "value",
    "amount",
    "flag",
    "choice",
    "many",
    "table",
    "when",
    "lasting",
    "name",
    "data",
    "model",
    "x",
)


def _is_no_exit(result: Any) -> bool:
    """An exit raised on the event loop ends the loop; a test of its own tells of it."""
    return isinstance(result, Exception) or not isinstance(result, BaseException)


def tools(directory: Path, examples: int, seed: int) -> Verdict:
    """Arguments of all kinds, as a model writes them, and results of all kinds."""
    del directory
    verdict = Verdict()
    material = Material(verdict)
    desk = Desk(verdict)
    written = (
        json_values.map(as_json) | material.raw_extremes | st.sampled_from((b'"1e5000"', b'"P1D"', b'"2026-01-01"'))
    )
    one = st.tuples(st.sampled_from(_PARAMETERS), written).map(lambda each: b'{"%b":%b}' % (each[0].encode(), each[1]))
    raw = (
        one | material.raw | st.sampled_from((b'{"value":1,"amount":2.5}', b'{"many":["a"]}')).flatmap(material.damaged)
    )
    texts = raw.map(lambda data: data.decode("utf-8", "surrogateescape")) | st.text(max_size=20)
    names = st.sampled_from(tuple(each.name for each in TOOLS))
    strategy = st.one_of(
        st.tuples(names, texts, st.none(), st.none()),
        st.tuples(names, st.just(""), raw, st.none()),
        st.tuples(st.just("given"), st.just("{}"), st.none() | st.just(b"{}"), material.values),
        st.tuples(st.just("given_async"), st.just("{}"), st.none(), material.values.filter(_is_no_exit)),
    )
    try:
        run_examples(verdict, "tool", examples, seed, strategy, desk.called)
    finally:
        desk.close()
    return verdict
