"""A thousand substitutions against a real worker; the campaign draws fifty times as many."""

from __future__ import annotations

from pathlib import Path

import pytest

from fault.real import substitutions

pytestmark = [pytest.mark.timeout(150), pytest.mark.slow]

_EXAMPLES = 1_000


def test_no_substituted_field_ends_a_worker_touches_a_job_or_goes_unnamed(tmp_path: Path) -> None:
    verdict = substitutions.everything(tmp_path / "lab", _EXAMPLES, 1)
    assert not verdict.violations, str(verdict)
    assert sum(verdict.counts[f"substituted_{kind}"] for kind in substitutions.KINDS) >= 0.9 * _EXAMPLES, str(verdict)
    assert not verdict.vacuous(substitutions.WANTED), str(verdict)
