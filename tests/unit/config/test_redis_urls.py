"""Where a Redis is: one server by each of its schemes, or Sentinels that know the primary."""

from __future__ import annotations

import ssl

import pytest
from kombu import Connection

from celery_agents.config.brokers import is_redis, shares_a_database, takes_steps_itself
from celery_agents.config.celery import celery_configuration, own_sentinel_url
from celery_agents.config.redis_urls import ClusterUrl, SentinelUrl, canonical_url
from celery_agents.config.settings import Settings, SettingsError

URL = "redis+sentinel://me:pass%40word@h1:5000,[::1]:6000,h3/my%20main/2?sentinel_password=other-word&ssl_ca_certs=/ca"


def test_valkey_is_a_synonym_of_redis() -> None:
    named = {
        "valkey://a:1/0": "redis://a:1/0",
        "valkeys://a": "rediss://a",
        "valkey+sentinel://a/m": "redis+sentinel://a/m",
        "valkeys+sentinel://a/m/1": "rediss+sentinel://a/m/1",
    }
    for given, meant in named.items():
        settings = Settings.build(redis_url=given, broker_url=given)
        assert (settings.redis_url, settings.broker_url) == (meant, meant)


def test_a_sentinel_url_names_hosts_primary_database_and_both_kinds_of_credentials() -> None:
    url = SentinelUrl.parse(URL)
    assert url.sentinels == (("h1", 5000), ("::1", 6000), ("h3", 26379))
    assert (url.primary, url.database, url.is_tls) == ("my main", 2, False)
    assert url.server == "redis://me:pass%40word@/2?ssl_ca_certs=%2Fca"
    assert (url.username, url.password) == (None, "other-word")
    assert "word" not in repr(url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis+sentinel://a,b", "name of the primary is missing"),
        ("redis+sentinel://a:x/m", "'a:x' is no address of a Sentinel"),
        ("redis+sentinel://a,/m", "'' is no address of a Sentinel"),
        ("redis+sentinel://a/m/first", "'first' is no number of a database"),
        ("sentinel://a:26379", "does not name the primary"),
        ("redis+clusters://a:7000", "must be a Redis"),
        ("redis+cluster://a:x", "'a:x' is no address of a node"),
        ("redis+cluster://a,", "'' is no address of a node"),
        ("redis+cluster://a/3", "a cluster has the database 0 alone"),
        ("redis://a..b", "has no usable host"),
        (f"rediss://{'a' * 64}:6379", "has no usable host"),
        ("redis+sentinel://a,b..c/m", "'b..c' is no address of a Sentinel"),
        ("redis+cluster://a..b", "'a..b' is no address of a node"),
        ("redis://a/shop", "'shop' is no number of a database"),
        ("redis://a/0/1", "'0/1' is no number of a database"),
        ("rediss://a/-1", "'-1' is no number of a database"),
    ],
)
def test_a_wrong_url_is_refused_with_the_setting_and_an_example_and_without_its_password(url: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why) as refused:
        Settings.build(redis_url=url.replace("://", "://me:hidden-word@"))
    assert "CELERY_AGENTS_REDIS_URL=" in str(refused.value)
    assert "hidden-word" not in str(refused.value)


def test_a_cluster_without_a_broker_is_refused_without_its_password() -> None:
    with pytest.raises(SettingsError, match="set CELERY_AGENTS_BROKER_URL to one server") as refused:
        Settings.build(redis_url="valkey+cluster://me:hidden-word@a:7000")
    assert "hidden-word" not in str(refused.value)


def test_a_url_of_a_cluster_has_nodes_and_what_each_connection_takes() -> None:
    url = ClusterUrl.parse(canonical_url("valkeys+cluster://me:word@a:7000,b,[::1]:7001?ssl_cert_reqs=none"))
    assert url.nodes == (("a", 7000), ("b", 6379), ("::1", 7001))
    assert url.server == "rediss://me:word@/0?ssl_cert_reqs=none"
    assert "word" not in repr(url)


def test_settings_are_shown_without_passwords_and_secrets() -> None:
    shown = repr(Settings.build(redis_url=URL, broker_url="redis://:b-word@a", token_secret="t-word-is-long-enough"))
    assert "***" in shown
    assert not [secret for secret in ("pass%40word", "other-word", "b-word", "t-word") if secret in shown]


def test_sentinels_are_a_redis_of_which_workers_take_steps_themselves() -> None:
    settings = Settings.build(redis_url=URL)
    assert is_redis(URL)
    assert takes_steps_itself(settings)
    assert shares_a_database(settings)


@pytest.mark.parametrize(
    ("broker", "shared"),
    [
        ("redis+sentinel://h3/my%20main/2", True),
        ("redis+sentinel://h3/my%20main/1", False),
        ("redis+sentinel://h3/other/2", False),
        ("redis+sentinel://h4/my%20main/2", False),
        ("redis://h3:26379/2", False),
    ],
)
def test_one_common_sentinel_tells_that_broker_and_store_are_one(broker: str, shared: bool) -> None:
    assert shares_a_database(Settings.build(redis_url=URL, broker_url=broker)) is shared


def test_kombu_gets_the_sentinels_in_its_own_spelling() -> None:
    configured = celery_configuration(Settings.build(redis_url=URL))
    first, second, third = configured["broker_url"].split(";")
    assert first == "sentinel://me:pass%40word@h1:5000/2"
    assert second == "sentinel://me:pass%40word@[::1]:6000/2"
    assert third == "sentinel://me:pass%40word@h3:26379/2"
    options = configured["broker_transport_options"]
    assert options["master_name"] == "my main"
    assert options["sentinel_kwargs"]["password"] == "other-word"
    assert "broker_use_ssl" not in configured


def test_over_tls_kombu_checks_certificates_of_servers_and_sentinels() -> None:
    configured = celery_configuration(Settings.build(redis_url="rediss+sentinel://h1/m?ssl_ca_certs=/ca.pem"))
    assert configured["broker_use_ssl"]["ssl_ca_certs"] == "/ca.pem"
    assert configured["broker_use_ssl"]["ssl_cert_reqs"].name == "CERT_REQUIRED"
    assert configured["broker_transport_options"]["sentinel_kwargs"]["ssl"] is True


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://h:1/3?socket_timeout=7&health_check_interval=30&client_name=x", ("h", 1, "3", None, None)),
        ("redis://me:pass%40word@h?db=3&max_connections=5", ("h", None, "3", "me", "pass@word")),
        ("redis://h/0?username=me&password=pass%40word", ("h", None, "0", "me", "pass@word")),
        ("redis://[::1]:7/2", ("::1", 7, "2", None, None)),
    ],
)
def test_kombu_gets_one_server_without_the_options_that_it_does_not_know(url: str, place: tuple[object, ...]) -> None:
    made = Connection(celery_configuration(Settings.build(redis_url=url))["broker_url"])
    assert (made.hostname, made.port, made.virtual_host, made.userid, made.password) == place


def test_kombu_finds_the_database_behind_a_unix_socket() -> None:
    made = Connection(
        celery_configuration(Settings.build(redis_url="unix:///tmp/s?db=3&socket_timeout=2"))["broker_url"]
    )
    assert made.hostname == "socket:///tmp/s?virtual_host=3"


@pytest.mark.parametrize(
    ("url", "checks"),
    [
        ("rediss://h/0", ssl.CERT_REQUIRED),
        ("rediss://h/0?ssl_ca_certs=/ca.pem", ssl.CERT_REQUIRED),
        ("rediss://h/0?ssl_cert_reqs=none", ssl.CERT_NONE),
    ],
)
def test_over_tls_kombu_checks_the_certificate_of_one_server(url: str, checks: ssl.VerifyMode) -> None:
    made = Connection(celery_configuration(Settings.build(redis_url="redis://h/0", broker_url=url))["broker_url"])
    assert made.ssl["ssl_cert_reqs"] is checks


def test_the_sentinels_of_an_existing_app_are_those_of_the_store() -> None:
    configured = celery_configuration(Settings.build(redis_url=URL.partition("&ssl")[0]))
    found = own_sentinel_url(configured["broker_url"], configured["broker_transport_options"], is_tls=False)
    assert SentinelUrl.parse(found) == SentinelUrl.parse(URL.partition("&ssl")[0])


def test_replicas_that_cannot_be_waited_for_are_refused() -> None:
    sentence = "replica_timeout_seconds=9.0 is not less than redis_timeout_seconds="
    with pytest.raises(SettingsError, match=sentence):
        Settings.build(replicas=1, replica_timeout_seconds=9)
