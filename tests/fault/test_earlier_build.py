"""Sessions that an earlier build has stored: each reader says the same of them, also after an upgrade and beside new steps."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from fault.builds.build import BuildMissing, earlier_build, present_build
from fault.builds.compare import differences

pytestmark = [pytest.mark.long, pytest.mark.timeout(3_000)]

EARLIER: Final = "d7dd3459a5da34f43a90e393704567bcd322a2a1"
"""The last build that stored each entry as plain JSON."""
SESSIONS: Final = 1_000


def compare(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Fail where `after` says something else than `before`."""
    counts, examples = Counter[str](), dict[str, str]()
    for part, said in before.items():
        assert said.keys() == after[part].keys()
        for session, what in said.items():
            for found in differences(what, after[part][session]):
                counts[found.place] += 1
                examples[found.place] = f"{session}: {found}"
    assert not counts, "\n".join(f"{count} × {examples[place]}" for place, count in counts.most_common(30))


def test_what_an_earlier_build_has_stored_reads_the_same(tmp_path: Path) -> None:
    try:
        earlier = earlier_build(EARLIER, tmp_path / "earlier")
    except BuildMissing as missing:
        pytest.skip(str(missing))
    with earlier.store(tmp_path, SESSIONS, seed=1) as url:
        first = earlier.read(url, tmp_path)
        assert len(first["sessions"]) >= SESSIONS
        compare(first, present_build().read(url, tmp_path))
        upgraded = present_build().command(url, "upgrade-data")
        assert upgraded.returncode == 0, upgraded.stderr
        compare(first, present_build().read(url, tmp_path))
