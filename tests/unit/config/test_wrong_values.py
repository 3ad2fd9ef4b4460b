"""Settings with values that nothing can work with are refused by a sentence, which names no password."""

from __future__ import annotations

import pytest

from celery_agents.config.settings import Settings, SettingsError

_SECONDS = [name for name in Settings.model_fields if name.endswith(("_seconds", "_days", "_per_second"))]
_NUMBERS = [name for name, field in Settings.model_fields.items() if field.annotation in (int, float)]


def read(**values: str) -> Settings:
    return Settings.from_environment({f"CELERY_AGENTS_{name.upper()}": value for name, value in values.items()})


@pytest.mark.parametrize("name", _SECONDS)
@pytest.mark.parametrize("value", ["inf", "nan", "1e999"])
def test_a_number_that_is_not_finite_is_refused(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"CELERY_AGENTS_{name.upper()}='{value}'"):
        read(**{name: value})


@pytest.mark.parametrize("name", [*_NUMBERS, "retention_seconds"])
def test_a_number_that_redis_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=f"CELERY_AGENTS_{name.upper()}='1{'0' * 20}'"):
        read(**{name: f"1{'0' * 20}"})


def test_sessions_are_kept_for_ever_by_a_word_in_the_environment() -> None:
    assert read(retention_seconds="none").retention_seconds is None
    assert read().retention_seconds == 604_800
    with pytest.raises(SettingsError, match="CELERY_AGENTS_RETENTION_SECONDS='0'"):
        read(retention_seconds="0")


@pytest.mark.parametrize("name", ["queues", "control_tasks", "http_address", "webhook_allow"])
def test_a_url_in_the_wrong_setting_is_refused_without_its_password(name: str) -> None:
    with pytest.raises(SettingsError, match=name.upper()) as refused:
        read(**{name: "redis://ops:hidden@cache"})
    assert "hidden" not in str(refused.value)
