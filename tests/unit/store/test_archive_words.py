"""Words as the archive finds them, against the plain definition of them."""

from __future__ import annotations

import random
import re
import unicodedata

import pytest

from celery_agents.worker.archive.words import words

CHARACTERS = [chr(number) for number in (*range(1, 0x3000), *range(0xA000, 0xD800), *range(0xE000, 0xFFFF), 0x1D400)]
COMMON = "abcXYZ_ 0\t\n.-éß—"


def define(text: str) -> tuple[str, ...]:
    """The whole text decomposed, without accents and case, and cut into runs of letters and digits."""
    plain = unicodedata.normalize("NFKD", text.casefold()).casefold()
    plain = "".join(each for each in plain if not unicodedata.combining(each))
    return tuple(dict.fromkeys(word[:64] for word in re.findall(r"[^\W_]+", plain)))


@pytest.mark.parametrize("seed", range(20))
def test_words_are_those_of_the_whole_text_however_it_is_looked_at(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(200):
        text = "".join(dice.choice(CHARACTERS if dice.random() < 0.3 else COMMON) for _ in range(dice.randrange(60)))
        assert words(text) == define(text), repr(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The teapot — the TEAPOT!", ("the", "teapot")),
        ("Straße, Éclair; e\u0301clair", ("strasse", "eclair")),
        ("snake_case 3.5 ½", ("snake", "case", "3", "5", "1", "2")),
        ("x" * 100, ("x" * 64,)),
        ("", ()),
    ],
)
def test_words_of_a_text(text: str, found: tuple[str, ...]) -> None:
    assert words(text) == found
