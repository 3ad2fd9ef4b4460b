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


@pytest.mark.parametrize("name", [name for name in _SECONDS if name.endswith("_seconds")])
def test_a_time_that_redis_takes_for_none_or_for_ever_is_refused(name: str) -> None:
    """PX 0 is an error, PEXPIRE 0 deletes, and WAIT waits for ever with a timeout of 0."""
    with pytest.raises(SettingsError, match=f"CELERY_AGENTS_{name.upper()}='0.0004'"):
        read(**{name: "0.0004"})


@pytest.mark.parametrize("name", ["due", "retry_delay", "retry_later", "job_poll"])
def test_a_first_time_above_the_longest_one_is_refused(name: str) -> None:
    longest = getattr(read(), f"{name}_max_seconds")
    with pytest.raises(SettingsError, match=f"{name}_max_seconds={longest} is less than {name}_seconds="):
        read(**{f"{name}_seconds": f"{longest + 1}"})
    assert read(**{f"{name}_seconds": f"{longest}"})


def test_sessions_are_kept_for_ever_by_a_word_in_the_environment() -> None:
    assert read(retention_seconds="none").retention_seconds is None
    assert read().retention_seconds == 604_800
    with pytest.raises(SettingsError, match="CELERY_AGENTS_RETENTION_SECONDS='0'"):
        read(retention_seconds="0")


@pytest.mark.parametrize("name", ["queues", "control_tasks", "http_address", "http_origins", "webhook_allow"])
def test_a_url_in_the_wrong_setting_is_refused_without_its_password(name: str) -> None:
    with pytest.raises(SettingsError, match=name.upper()) as refused:
        read(**{name: "redis://ops:hidden@cache"})
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    "password", ["hid%zzen9", "hidden9%", "hid%00den9", "hid den9", "hid@den9", "hid/den9", "h/d?en9"]
)
def test_a_url_of_postgresql_that_needs_escapes_is_refused_without_its_password(password: str) -> None:
    url = f"postgresql://me:{password}@127.0.0.1/history"
    with pytest.raises(SettingsError, match=r"ARCHIVE_URL.*%40") as refused:
        read(archive_url=url)
    with pytest.raises(ValueError, match="archive_url") as made:
        Settings(archive_url=url)
    assert "en9" not in f"{refused.value}{made.value}"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:a%40b%2Fc%25d@h1:5432,[::1]:5433/history?sslmode=require&target_session_attrs=any",
        "postgresql://me:a:b?c#d[e]f@h/history",
        "postgresql:///history?host=/run/postgresql&user=me@server",
        "postgres://?service=history",
        "postgresql://h",
    ],
)
def test_a_url_of_postgresql_as_libpq_reads_it_is_taken(url: str) -> None:
    assert read(archive_url=url).archive_url == url


@pytest.mark.parametrize("address", ["8080", ":8080", "a..b:80", "127.0.0.1:²", "127.0.0.1:65536", f"a:{'9' * 5000}"])
def test_an_address_that_nothing_can_listen_on_is_refused(address: str) -> None:
    with pytest.raises(SettingsError, match=r"HTTP_ADDRESS.* is no address; write it like"):
        read(http_address=address)


@pytest.mark.parametrize("value", ["", "a b", "a,b"])
@pytest.mark.parametrize("name", ["queue", "control_queue"])
def test_a_queue_that_no_worker_could_be_told_to_take_is_refused(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"CELERY_AGENTS_{name.upper()}='{value}'"):
        read(**{name: value})


@pytest.mark.parametrize("control", ["steps", "steps.gpu"])
def test_a_control_queue_that_is_one_of_steps_is_refused(control: str) -> None:
    with pytest.raises(SettingsError, match="a queue of steps"):
        read(queue="steps", control_queue=control)
    assert read(queue="steps", control_queue="steps-control").control_queue == "steps-control"


@pytest.mark.parametrize("name", [name for name in Settings.model_fields if "secret" in name])
@pytest.mark.parametrize("value", ["", " " * 20, " , "])
def test_a_secret_that_is_empty_is_refused_and_not_taken_for_none(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"CELERY_AGENTS_{name.upper()}"):
        read(**{name: value})


@pytest.mark.parametrize(
    "origin", ["*", "null", "app.example.com", "https://a.example/app", "https://A.example", "https://a.example:443"]
)
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(SettingsError, match="no origin"):
        read(http_origins=f"https://b.example, {origin}")


def test_origins_of_pages_and_extensions_are_taken() -> None:
    origins = (
        "http://localhost:3000, http://my_app:3000, https://app.example.com/ ,http://[::1]:8080,capacitor://localhost"
    )
    assert read(http_origins=origins).http_origins == origins
