"""The secrets among variables and settings: which names say that a value is one, and which part of a value it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import unquote

from ..config.urls import split_url

# A long line of a value with several lines, such as a private key, is a secret by itself.
_LONG_LINE_CHARS: Final = 24
# A user name of a URL that is as long as this, and has digits, is a token, such as that of a Git host.
_TOKEN_CHARS: Final = 20
_MOST_JSON_CHARS: Final = 100_000

# Words in front of or behind the word that counts: whose it is, which one, and how it is written.
_QUALIFIER: Final = (
    r"V?\d+|PROD|PRODUCTION|DEV|TEST|TESTING|STAGE|STAGING|LIVE|SANDBOX|LOCAL|CI|OLD|NEW|PREVIOUS|NEXT|CURRENT"
    r"|PRIMARY|SECONDARY|BACKUP|DEFAULT|MAIN|PEM|DER|JSON|YAML|B64|BASE64|BASE|HEX|RAW|VALUE|STRING|TEXT|BYTES|EU|US|UK"
)
_LAST_WORD: Final = (
    r"(?:^|_)(?:API_?)?(?:KEYS?|TOKENS?|SECRETS?|PASS|PASSWD|PWD|PAT|PASSPHRASE|CREDENTIALS?|CREDS|AUTH|AUTHORIZATION"
    r"|BEARER|COOKIE|DSN|JWT|SK|CONNECTION_STR(?:ING)?|CONN_STR(?:ING)?|CONNECTIONSTRING)$"
    r"|(?:PASSWORDS?|PASSWD|PASSPHRASE|APIKEYS?|SECRETKEY|ACCESSKEY|PRIVATEKEY|SECRETS?|TOKENS?)$"
    r"|SECRET_KEY|(?:^|_)(?:PASSWORD|SECRET|TOKEN)_"
)
_SECRET_NAME: Final = re.compile(_LAST_WORD, re.IGNORECASE)
_LAST_QUALIFIER: Final = re.compile(rf"_(?:{_QUALIFIER})$|(?<=[A-Z])\d+$", re.IGNORECASE)
# A name in a style of its own, such as `accountKey`, is read as ACCOUNT_KEY.
_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# The shell's folders have a name that ends like a password's, and some names say where a secret is, not what.
_NO_SECRET_NAME: Final = re.compile(
    r"^(?:OLD)?PWD$|_(?:FILE|PATH|DIR|URL|URI|HOST|PORT|USER|NAME|SECONDS|SOCK|TYPE|TTL|ALG|ALGORITHM|ENABLED"
    r"|LENGTH|SIZE|LIMIT|COUNT|TIMEOUT|REGION|VERSION|MODE|HEADER|METHOD|PREFIX|DOMAIN|ISSUER|AUDIENCE|SCOPES?)$"
    r"|^(?:MAX|MIN)_",
    re.IGNORECASE,
)
_WEBHOOK_NAME: Final = re.compile(r"(?:^|_)WEBHOOKS?(?:_UR[LI])?$", re.IGNORECASE)
_ASSIGNMENT: Final = re.compile(r"(?:^|[;&?,\s])([A-Za-z][\w .-]{0,60}?)\s*=\s*(\"[^\"]+\"|'[^']+'|[^;&,\s]+)")
# What a header with a credential begins with.
_SCHEME: Final = re.compile(r"^\s*(?:Bearer|Basic|Token|ApiKey)\s+", re.IGNORECASE)
_NEXT_URL: Final = re.compile(r"[;,\s]+(?=[a-z][a-z0-9+.-]*://)", re.IGNORECASE)


def secrets_of_variables(variables: Mapping[str, str]) -> Iterator[str]:
    """The secrets among variables, such as those of the environment, by their names and forms."""
    for name, value in variables.items():
        if is_secret_name(name):
            yield from secrets_in(value)
            yield from _users_of(value) if name.upper().endswith("DSN") else ()
        elif value.startswith("{"):
            yield from _secrets_of_json(value)
        elif "://" in value:
            yield from passwords_of(value)
            if _WEBHOOK_NAME.search(name) is not None and len(split_url(value).path) > _TOKEN_CHARS:
                yield value.strip()  # anyone who has the URL may call it
        elif "=" in value:
            yield from _assigned_secrets(value)


@lru_cache(maxsize=1024)
def is_secret_name(name: str) -> bool:
    """Whether a name says that its value is a secret, as `API_KEY_PROD`, `db-password` and `accountKey` do."""
    written = _CAPITAL.sub("_", name) if not name.isupper() else name
    written = written.replace("-", "_").replace(".", "_").replace(" ", "_")
    if _NO_SECRET_NAME.search(written) is not None:
        return False
    while (shorter := _LAST_QUALIFIER.sub("", written)) != written and _SECRET_NAME.search(written) is None:
        written = shorter
    return _SECRET_NAME.search(written) is not None


def secrets_in(value: str) -> Iterator[str]:
    """The secrets of a secret value: itself, its long lines, the part behind a user's name; of a URL its password."""
    passwords = list(passwords_of(value)) if "://" in value else []
    if passwords or (value.startswith("/") and Path(value).exists()):  # the second is a file that holds the secret
        yield from passwords
        return
    yield value.strip()
    yield from (line.strip() for line in value.splitlines()[1:-1] if len(line) >= _LONG_LINE_CHARS)
    yield from _assigned_secrets(value)
    yield from _secrets_of_json(value)
    if (credential := _SCHEME.sub("", value)) != value:
        yield credential.strip()
    user, colon, password = value.partition(":")
    if colon and user and "\n" not in value and not value.startswith("{"):
        yield password


def passwords_of(urls: str) -> Iterator[str]:
    """The passwords of one URL, or of several with semicolons or commas between them, as written and as meant.

    A user name that is a token counts, and so does the value of a parameter whose name says that it is a secret.
    """
    for url in _NEXT_URL.split(urls):
        parts = split_url(url)
        user, password = parts.username, parts.password
        if password:
            yield from (password, unquote(password))
            yield parts.netloc  # finds a short password too, where it is part of its URL
        if user and len(user) >= _TOKEN_CHARS and any(each.isdigit() for each in user):
            yield user
        yield from _assigned_secrets(parts.query)


def _users_of(url: str) -> Iterator[str]:
    """The user names of a URL whose user name is its key."""
    if user := split_url(url).username:
        yield user


def _assigned_secrets(text: str) -> Iterator[str]:
    """The values of a connection string or a query, such as `host=h password=…`, under names of secrets."""
    if "=" not in text:
        return
    for name, value in _ASSIGNMENT.findall(text):
        if is_secret_name(name.strip()):
            bare = value.strip("\"'")
            yield from (bare, unquote(bare))


def _secrets_of_json(text: str) -> Iterator[str]:
    """The texts of a JSON document under names of secrets."""
    if not text.lstrip().startswith(("{", "[")) or len(text) > _MOST_JSON_CHARS:
        return
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return
    yield from _secrets_of_document(document, depth=8)


def _secrets_of_document(document: Any, depth: int) -> Iterator[str]:
    if depth == 0:
        return
    if isinstance(document, dict):
        for name, value in cast("dict[str, Any]", document).items():
            if isinstance(value, str) and is_secret_name(name):
                yield from secrets_in(value)
            else:
                yield from _secrets_of_document(value, depth - 1)
    elif isinstance(document, str):
        yield from passwords_of(document) if "://" in document else ()
    elif isinstance(document, list):
        for each in cast("list[Any]", document):
            yield from _secrets_of_document(each, depth - 1)
