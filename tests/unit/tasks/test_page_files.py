"""The page's files over HTTP: their policy, their addresses below a mount, compression, what a browser has already."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from celery_agents import AgentClient
from celery_agents.tasks.http.app import create_http_app
from celery_agents.tasks.http.page_files import FOLDER

PLACES = ("/", "/sessions", "/sessions/order-7", "/requests", "/tree/order-7", "/fleet")
BROWSER = {"Accept": "text/html,application/xhtml+xml", "Accept-Encoding": "gzip"}


@pytest.fixture(params=["", "/agents"], ids=["alone", "mounted"])
def http(request: pytest.FixtureRequest) -> Iterator[TestClient]:
    app = create_http_app(AgentClient("redis://127.0.0.1:1"))  # no Redis is asked
    mounted = Starlette(routes=[Mount(request.param, app)]) if request.param else app
    with TestClient(mounted, base_url="http://localhost", client=("127.0.0.1", 1), root_path="") as client:
        client.base_url = f"http://localhost{request.param}"
        yield client


@pytest.mark.parametrize("place", PLACES)
def test_a_link_to_a_place_gives_the_page_and_all_that_it_names(http: TestClient, place: str) -> None:
    page = http.get(place, headers=BROWSER)
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    links = re.findall(r'(?:href|src)="(\.[^"]+)"', page.text)
    assert len(links) > 3
    for link in links:
        found = http.get(str(page.url.join(link)))
        assert found.status_code == 200, link
        kind = "text/css" if link.endswith(".css") else "text/javascript"
        assert found.headers["content-type"].startswith(kind)
        assert found.headers["content-security-policy"] == page.headers["content-security-policy"]


def test_the_policy_allows_nothing_but_files_of_the_page_and_no_frame_around_it(http: TestClient) -> None:
    headers = http.get("/sessions", headers=BROWSER).headers
    policy = dict(each.strip().split(" ", 1) for each in headers["content-security-policy"].split(";"))
    assert policy == {
        "default-src": "'none'", "script-src": "'self'", "style-src": "'self'", "connect-src": "'self'",
        "img-src": "'self' data:", "frame-ancestors": "'none'", "base-uri": "'none'", "form-action": "'none'",
    }  # fmt: skip
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")


def test_a_program_learns_at_the_root_where_the_interface_is_described(http: TestClient) -> None:
    prefix = http.base_url.path.rstrip("/")
    found = http.get("/", headers={"Accept": "*/*"})
    assert found.json() == {"name": "celery-agents", "described_at": f"{prefix}/openapi.json"}


def test_a_file_is_sent_compressed_and_not_again(http: TestClient) -> None:
    plain = http.get("/page/main.js", headers={"Accept-Encoding": "identity"})
    lines = (FOLDER / "main.js").read_text(encoding="utf-8").splitlines()
    sent = plain.text.splitlines()
    assert len(sent) == len(lines)
    assert all(line.startswith(each) for each, line in zip(sent, lines, strict=True))
    assert (sent[0], sent[1]) == ("", lines[1]), "comments are left out, and nothing else"
    with http.stream("GET", "/page/main.js", headers={"Accept-Encoding": "gzip"}) as compressed:
        assert compressed.headers["content-encoding"] == "gzip"
        assert gzip.decompress(b"".join(compressed.iter_raw())) == plain.content
    tags = {plain.headers["etag"], compressed.headers["etag"]}
    assert len(tags) == 2
    for tag, encoding in zip((plain.headers["etag"], compressed.headers["etag"]), ("identity", "gzip"), strict=True):
        again = http.get("/page/main.js", headers={"If-None-Match": tag, "Accept-Encoding": encoding})
        assert (again.status_code, again.content) == (304, b"")


def test_a_browser_keeps_what_the_page_names_and_asks_again_for_the_page_itself(http: TestClient) -> None:
    page = http.get("/sessions", headers=BROWSER)
    assert page.headers["cache-control"] == "no-cache"
    (link,) = re.findall(r'src="\./(page/[0-9a-f]{12}/main\.js)"', page.text)
    named = http.get(f"/{link}")
    assert "immutable" in named.headers["cache-control"]
    for other in ("/page/main.js", "/page/0123456789ab/main.js"):
        found = http.get(other)
        assert (found.content, found.headers["cache-control"]) == (named.content, "no-cache"), other


@pytest.mark.parametrize(
    "path", ["/page/nothing.js", "/page/../app.py", "/page/%2e%2e/app.py", "/page/", "/sessions/a/b"]
)
def test_nothing_but_files_of_the_page_is_sent(http: TestClient, path: str) -> None:
    found = http.get(path, headers=BROWSER)
    assert found.status_code == 404
    assert found.json()["type"].endswith("not-found")


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 503), ("none", 503)]
)
def test_without_tokens_no_other_site_may_change_anything(http: TestClient, site: str, status: int) -> None:
    """Where it may, only Redis is missing. The browser says by the header from where a page's request comes."""
    found = http.post("/v1/sessions/order-7/stop", json={}, headers={"Sec-Fetch-Site": site})
    assert found.status_code == status, found.text
