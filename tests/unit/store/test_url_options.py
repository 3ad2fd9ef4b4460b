"""Options in the URL of a Redis: those that the store needs otherwise are refused, and all are looked at beforehand."""

from __future__ import annotations

import pytest

from celery_agents.worker.errors import ConfigurationError
from celery_agents.worker.store.redis.pools import make_pool

URLS = ["redis://host/0", "rediss://host/0", "redis+sentinel://one,two/mymaster/0"]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("protocol=3", "leave out protocol"),
        ("decode_responses=true", "leave out decode_responses"),
        ("protocol=3&encoding=latin-1", "leave out encoding, protocol"),
        ("no_such_option=1", r"no_such_option is no option of rediss?(\+sentinel)?://"),
        ("db=x", "Invalid value for 'db'"),
        ("retry=3", "leave out retry"),
        ("retry_on_error=x", "leave out retry_on_error"),
        ("socket_timeout=0", "socket_timeout must be more than 0"),
        ("socket_timeout=nan", "socket_timeout must be more than 0"),
        ("socket_connect_timeout=-1", "socket_connect_timeout must be more than 0"),
        ("socket_connect_timeout=inf", "at most 86400 s"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_before_anything_is_sent(url: str, option: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"redis_url cannot be read: .*{said}"):
        make_pool(f"{url}?{option}", timeout_seconds=2)


@pytest.mark.parametrize("url", ["redis://host/0", "redis+sentinel://one,two/mymaster/0"])
def test_an_option_of_tls_in_a_url_without_it_names_the_scheme_that_has_it(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"ssl_ca_certs is no option of redis.*; those of TLS need rediss"):
        make_pool(f"{url}?ssl_ca_certs={__file__}", timeout_seconds=2)


@pytest.mark.parametrize("url", ["rediss://host/0", "rediss+sentinel://one,two/mymaster/0"])
@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
def test_a_file_of_tls_that_is_missing_is_named(url: str, option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{option} names /nowhere.pem, which is not there"):
        make_pool(f"{url}?{option}=/nowhere.pem", timeout_seconds=2)


@pytest.mark.parametrize("url", URLS)
def test_other_options_are_those_of_the_connections(url: str) -> None:
    pool = make_pool(f"{url}?socket_timeout=7&protocol=2", timeout_seconds=2, max_connections=5)
    assert pool.connection_kwargs["socket_timeout"] == 7
