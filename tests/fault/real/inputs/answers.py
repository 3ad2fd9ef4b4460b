"""What a model answers, from the provider's bytes to the step that is committed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

from .desk import Desk
from .examples import run_examples
from .extremes import Material
from .given import ANSWERS, functions, provider_answers
from support.verdict import Verdict


def answer(directory: Path, examples: int, seed: int) -> Verdict:
    """What a driver gives: bytes of all kinds, what is no bytes, and what functions return."""
    del directory
    verdict = Verdict()
    material = Material(verdict)
    desk = Desk(verdict)
    provider = provider_answers()
    raw = st.sampled_from(ANSWERS).flatmap(material.damaged) | material.raw | st.sampled_from(ANSWERS) | material.values
    foreign = st.sampled_from(provider).flatmap(material.damaged) | st.sampled_from(provider) | material.raw
    strategy = st.one_of(
        st.tuples(st.sampled_from(("plain", "plain", "async")), raw),
        st.tuples(st.just("provider"), foreign | _halves(material, provider)),
        st.tuples(st.just("function"), functions(material)),
    )
    try:
        run_examples(verdict, "answer", examples, seed, strategy, desk.answered)
    finally:
        desk.close()
    return verdict


def _halves(material: Material, provider: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """One of the two lines damaged, the other whole."""
    head, _, body = provider[1].partition(b"\n")
    return material.damaged(head).map(lambda raw: raw + b"\n" + body) | material.damaged(body).map(
        lambda raw: head + b"\n" + raw
    )
