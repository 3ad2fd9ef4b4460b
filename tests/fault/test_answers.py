"""Odd answers of models, some of each kind; the campaign draws 20 000 sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault.real import answers


@pytest.mark.long
@pytest.mark.timeout(300)
def test_no_answer_of_a_model_ends_a_session_for_good(tmp_path: Path) -> None:
    verdict = answers.everything(60, 1, tmp_path)
    assert not verdict.violations, str(verdict)
    assert not verdict.vacuous(answers.WANTED), str(verdict)
