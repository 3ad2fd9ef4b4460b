"""Reads the limits that a provider tells, as numbers: from the headers of its answers, and from the text of a refusal.

The headers are those of OpenAI, Azure and Groq (`x-ratelimit-limit-requests`), Mistral and Cerebras
(`x-ratelimit-limit-tokens-minute`) and Anthropic (`anthropic-ratelimit-input-tokens-limit`);
`tests/unit/drivers/test_provider_facts.py` has the texts. A text is read and never kept: it can repeat a key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

from ...flow.values import Dimension, FactKind, ProviderFacts

_DIMENSIONS: Final[dict[str, Dimension]] = {
    "requests": "requests",
    "req": "requests",
    "tokens": "tokens",
    "inputtokens": "input_tokens",
    "outputtokens": "output_tokens",
}
_DIMENSION: Final = r"(?P<dimension>req(?:uests)?|(?:(?:in|out)put[-_ ]?)?tokens)"
_HEADER: Final = re.compile(
    rf"(?:x|anthropic)-ratelimit-(?:(?P<first>limit|remaining|reset)-)?{_DIMENSION}(?:-minute)?(?:-(?P<last>limit|remaining|reset))?"
)
_PER: Final = r"(?:per|within|in) ?(?P<count>\d{0,6}) ?(?P<period>sec|min)(?:ond|ute)?s?"
_NUMBER: Final = r"(?P<limit>\d[\d,]*)"
_TEXTS: Final = (
    # OpenAI, Groq: "on tokens per min (TPM): Limit 30000, Used 29500, Requested 1200. Please try again in 1.4s."
    re.compile(rf"{_DIMENSION} {_PER}(?: \(\w+\))?: limit:? {_NUMBER}"),
    # Anthropic: "rate limit of 20,000 input tokens per minute"; gateways: "Maximum 5 requests within 1 minutes"
    re.compile(rf"{_NUMBER} {_DIMENSION} {_PER}"),
    # Google: {"quotaId": "GenerateRequestsPerMinutePerProject", "quotaDimensions": {…}, "quotaValue": "10"}
    re.compile(rf"{_DIMENSION}(?P<count>)per(?:\w*per)?(?P<period>min)ute.{{0,400}}?quotavalue\W+{_NUMBER}"),
)
_WAIT: Final = re.compile(r"(?:try again|retry)(?: after| in) (\d[\d.hms]*)(?: ?(min|mil))?")
_UNITS: Final = {"min": "m", "mil": "ms"}
_TOO_LARGE: Final = re.compile(rf"{_NUMBER},(?: used:? [\d,]+,)? requested:? ~?(?P<asked>[\d,]+)")
_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?")
_FACTORS: Final = (3600.0, 60.0, 1.0, 0.001)
_MINUTE: Final = 60.0
_LONGEST_RESET: Final = 2 * 86_400.0
_MOST_CHARS: Final = 8_000
_NO_HEADERS: Final[Mapping[str, str]] = {}
_MOST: Final = 1e12
"""The largest number that is believed; a larger one counts as this."""


class TextFacts(NamedTuple):
    """The numbers in the text of a refusal.

    Attributes:
        limits: Those of a minute, by dimension.
        retry_after: Seconds to wait; None where it names none.
        is_too_large: The request alone is larger than a limit, so that waiting cannot help.
    """

    limits: Mapping[Dimension, float]
    retry_after: float | None
    is_too_large: bool


def facts_of_headers(status: int, headers: Mapping[str, str]) -> ProviderFacts:
    """Read the headers of an answer; their names are in lower case."""
    found: dict[str, dict[Dimension, float]] = {"limit": {}, "remaining": {}, "reset": {}}
    for name, value in headers.items():
        match = _HEADER.fullmatch(name) if "-ratelimit-" in name else None
        number = None if match is None else _seconds(value, headers)
        if match is not None and number is not None and (what := match["first"] or match["last"]):
            found[what][_dimension(match["dimension"])] = number
    kind: FactKind = "ok" if status < 400 else "rate_limit" if status == 429 else "outage" if status >= 500 else "other"
    if kind == "rate_limit" and 0.0 in found["limit"].values():  # the plan has nothing of this model
        kind = "quota"
    remaining, reset = found["remaining"], found["reset"]
    longer = {} if any(name.startswith("anthropic-") for name in headers) else reset  # Anthropic's are of a minute
    limits = found["limit"]
    for name, limit in limits.items():
        limits[name] = _per_minute(limit, remaining.get(name), longer.get(name))
    wait = None if kind == "ok" else seconds_to_wait(headers)
    return ProviderFacts(limits=limits, remaining=remaining, reset_seconds=reset, retry_after=wait, kind=kind)


def seconds_to_wait(headers: Mapping[str, str]) -> float | None:
    """The wait that a refusal asks for, by `retry-after-ms` or `retry-after` (seconds, or a date); None without one."""
    milliseconds = _seconds(headers.get("retry-after-ms", ""))
    return _seconds(headers.get("retry-after", ""), headers) if milliseconds is None else milliseconds / 1000


def facts_of_text(body: object) -> TextFacts:
    """Read the text of a refusal.

    Args:
        body: The body of the answer, as read from JSON, or as text.
    """
    text = str(body)[:_MOST_CHARS].lower()
    limits: dict[Dimension, float] = {}
    for match in (match for each in _TEXTS for match in each.finditer(text)):
        seconds = (_MINUTE if match["period"] == "min" else 1.0) * int(match["count"] or 1)
        limits[_dimension(match["dimension"])] = _digits(match["limit"]) * _MINUTE / (seconds or 1.0)
    waits = [_seconds(time.rstrip(".") + _UNITS.get(unit, "")) for time, unit in _WAIT.findall(text)]
    too_large = any(_digits(match["asked"]) > _digits(match["limit"]) for match in _TOO_LARGE.finditer(text))
    return TextFacts(limits, max((wait for wait in waits if wait is not None), default=None), too_large)


def _per_minute(limit: float, remaining: float | None, reset: float | None) -> float:
    """A limit as one of a minute: one that needs far longer to be whole again is one of a longer time, as Groq's."""
    if remaining is None or reset is None or remaining >= limit or not 2 * _MINUTE < reset <= _LONGEST_RESET:
        return limit
    return limit * _MINUTE * (1 - remaining / limit) / reset


def _dimension(name: str) -> Dimension:
    return _DIMENSIONS[re.sub("[-_ ]", "", name)]


def _digits(text: str) -> float:
    return min(float(text.replace(",", "") or 0), _MOST)


def _seconds(text: str, headers: Mapping[str, str] = _NO_HEADERS) -> float | None:
    """A number, a duration such as `6m0s`, or the time until a date; None for anything else.

    Args:
        headers: By their `date` a date is read; by the clock of this machine, which may be another, without one.
    """
    try:
        number = float(text)
        return min(number, _MOST) if math.isfinite(number) and number >= 0 else None
    except ValueError:
        pass
    try:
        match = _DURATION.fullmatch(text) if text else None
        if match is not None:
            parts = zip(match.groups(), _FACTORS, strict=True)
            return min(sum(float(part) * factor for part, factor in parts if part), _MOST)
    except ValueError:
        return None
    at = _date(text)
    if at is None:
        return None
    told = _date(headers.get("date", "")) or datetime.now(UTC)
    return max(0.0, (at - told).total_seconds())


def _date(text: str) -> datetime | None:
    """A date as headers have it, in ISO 8601 or as in mails; None for anything else."""
    try:
        at = datetime.fromisoformat(text) if text[:4].isdigit() else parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return at.replace(tzinfo=at.tzinfo or UTC)
