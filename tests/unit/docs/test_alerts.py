"""docs/operating.md explains every alert rule that is shipped, and no other."""

from __future__ import annotations

import re

from support.product import ROOT


def test_every_alert_is_explained() -> None:
    rules = (ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(CeleryAgents\w+)` \|", page, re.MULTILINE) == re.findall(r"- alert: (\w+)", rules)
