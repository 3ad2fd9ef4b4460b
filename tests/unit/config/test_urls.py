"""URLs with several hosts, with passwords of any characters, and texts that are none."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from celery_agents.config.settings import Settings, SettingsError
from celery_agents.config.urls import hide_password, is_web_address, split_url

PASSWORDS = (
    "se/cr?et#wo[rd",
    "sec[ret]word",
    "sec:ret:word",
    "sec@ret@word",
    "se/cret",
    "se?cret",
    "se#cret",
    "]",
    "[::1]:5",
    "a;b,c",
)


@given(st.text(alphabet="abz1:/?#[]@,;.=& \n\t+-%", max_size=30))
@example("\n//[a")
@example("redis+sentinel://me:word@h1:5000,[::1]:6000/m?a=b#c")
@example("//a//b")
@example("://1")
@example("1://a")
@example("a b://1")
def test_a_url_is_split_as_the_standard_library_does_and_nothing_is_refused(url: str) -> None:
    parts = split_url(url)
    try:
        assert parts == urlsplit(url)
    except ValueError:
        assert {*"[]"} & {*parts.netloc}, "nothing else is a reason"


def test_several_hosts_may_have_brackets() -> None:
    parts = split_url("postgresql://me:w[o]rd@h1:5000,[::1]:6000/db?a=b")
    assert (parts.username, parts.password, parts.path, parts.query) == ("me", "w[o]rd", "/db", "a=b")


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("url", ["redis://me:{}@h:1/0", "redis://:{}@h", "redis+sentinel://me:{}@a,b:1/m?x=y"])
def test_no_part_of_a_password_is_shown(url: str, password: str) -> None:
    assert hide_password(url.format(password)) == url.format("***")


def test_what_is_no_password_is_shown() -> None:
    for url in ("redis://h:1/0", "redis+sentinel://h:1,[::1]:2/m", "unix:///a@b?db=1", "none", "", "redis://me@h"):
        assert hide_password(url) == url
    several = "amqp://me:word@h1;amqp://me:word@h2"
    assert hide_password(several) == "amqp://me:***@h1;amqp://me:***@h2"
    assert hide_password("redis://h/0?sentinel_password=a@b&c=d") == "redis://h/0?sentinel_password=***&c=d"


@pytest.mark.parametrize("password", [each for each in PASSWORDS if {*each} & {*"/?#[]"}])
@pytest.mark.parametrize("url", ["redis://me:{}@h:1/0", "redis+sentinel://me:{}@a,b:1/m", "amqp://me:{}@h//"])
def test_a_password_that_has_to_be_encoded_is_refused_and_not_shown(url: str, password: str) -> None:
    with pytest.raises(SettingsError, match="a password is written with %2F, %3F, %23, %5B and %5D") as refused:
        Settings.build(**{"broker_url" if url.startswith("amqp") else "redis_url": url.format(password)})
    assert url.format("***") in str(refused.value)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("http://h", True),
        ("https://[::1]:80/a", True),
        ("http://[a", False),
        ("http://[a]/", False),
        ("https://", False),
        ("ftp://h", False),
        ("h", False),
    ],
)
def test_a_web_address_has_a_scheme_of_the_web_and_a_host(text: str, is_one: bool) -> None:
    assert is_web_address(text) is is_one
