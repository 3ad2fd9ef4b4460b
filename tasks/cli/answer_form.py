"""A form in the terminal, made from the questions or the JSON Schema of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic_core import from_json

from ...worker.state.values.frozen import thaw
from .views import clean

if TYPE_CHECKING:
    from ...worker.requests.questions import UserQuestionItem
    from ...worker.state.execution.requests import Request

Ask = Callable[[str], str]
Say = Callable[[str], None]

_WORDS: Final = {"true": True, "yes": True, "y": True, "false": False, "no": False, "n": False}


def fill_form(request: Request, ask: Ask, say: Say) -> Any:
    """Ask for the values of a question, until they fit.

    Args:
        ask: Shows a prompt and gives the line that was typed.
        say: Shows a line.
    Returns:
        The values as `Answer` takes them.
    """
    from ...worker.errors import InvalidInput
    from ...worker.requests.answers import check_values, is_asked_with_options, questions_of

    while True:
        if is_asked_with_options(request):
            items, allow_free_text = questions_of(request)
            values: Any = {item.question: _ask_item(item, ask, say, free=allow_free_text) for item in items}
            values = {question: answer for question, answer in values.items() if answer is not None}
        else:
            values = ask_value(dict(request.answer_schema or {}), ask, say)
        try:
            check_values(request, values)
        except InvalidInput as error:
            say(clean(str(error)))
            continue
        return values


def ask_value(schema: Mapping[str, Any], ask: Ask, say: Say, name: str = "answer") -> Any:
    """Ask for a value of a JSON Schema: an object field by field, everything else in one line."""
    properties = cast("Mapping[str, Mapping[str, Any]]", schema.get("properties") or {})
    if schema.get("type") != "object" or not properties:
        return _ask_field(name, schema, ask, say, required=True)
    required = cast("Sequence[str]", schema.get("required", ()))
    values: dict[str, Any] = {}
    for field, rules in properties.items():
        value = _ask_field(field, rules, ask, say, required=field in required)
        if value is not None:
            values[field] = value
    return values


def _ask_field(name: str, rules: Mapping[str, Any], ask: Ask, say: Say, *, required: bool) -> Any:
    if rules.get("description"):
        say(f"  {clean(str(rules['description']))}")
    choices = [str(each) for each in cast("Sequence[Any]", rules.get("enum", ()))]
    of_type = _type_of(rules)
    kind = " | ".join(choices) or of_type or "JSON"
    default = "default" in rules
    hint = kind if required and not default else f"{kind}, empty for {thaw(rules['default']) if default else 'none'}"
    while True:
        text = ask(f"{clean(name)} ({clean(hint)})")
        if not text.strip() and (default or not required):
            return None
        try:
            return _parse(text, of_type)
        except ValueError:
            say(f"  {clean(name)}: write {clean(kind)}")


def _type_of(rules: Mapping[str, Any]) -> str:
    """The one type that a value may have besides null; "" where there are several, or none is named."""
    own: Any = rules.get("type", ())
    alternatives = cast("Sequence[Mapping[str, Any]]", rules.get("anyOf", ()))
    named = [own] if isinstance(own, str) else [*own, *(each.get("type", "") for each in alternatives)]
    types = [str(each) for each in named if each != "null"]
    return types[0] if len(types) == 1 else ""


def _parse(text: str, kind: str) -> Any:
    """The value that a line means.

    Raises:
        ValueError: It is no value of this kind.
    """
    if kind in ("string", "integer", "number"):
        return {"string": str, "integer": int, "number": float}[kind](text)
    if kind == "boolean":
        if text.strip().lower() not in _WORDS:
            raise ValueError(text)
        return _WORDS[text.strip().lower()]
    try:
        return from_json(text)
    except ValueError:
        if kind in ("array", "object", "null"):
            raise
        return text


def _ask_item(item: UserQuestionItem, ask: Ask, say: Say, *, free: bool) -> dict[str, Any] | None:
    """Ask one question with options; None leaves it out."""
    say(clean(f"{item.header}: {item.question}" if item.header else item.question))
    options = item.options or []
    for number, option in enumerate(options, 1):
        say(clean(f"  {number}  {option.label}{f' - {option.description}' if option.description else ''}"))
        for line in (option.preview or "").splitlines():
            say(clean(f"       {line}"))
    ways = ["numbers with commas" if item.multi_select else "a number"] if options else []
    ways += ["a text of your own"] if free else []
    ways += [] if item.required else ["empty to leave it out"]
    example = f", such as: {item.placeholder}" if item.placeholder else ""
    while True:
        text = ask(clean(f"{' or '.join(ways)}{example}")).strip()
        if not text and not item.required:
            return None
        chosen = _choose(text, [option.chosen_value for option in options])
        if chosen and (len(chosen) == 1 or item.multi_select):
            return {"values": chosen}
        if text and free and not chosen:
            return {"free_text": text}
        say("  that does not fit; try again")


def _choose(text: str, values: Sequence[str]) -> list[str]:
    """The options that a line names by number or by value; empty when it is another text."""
    chosen: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if part.isascii() and part.isdigit() and 1 <= int(part) <= len(values):
            chosen.append(values[int(part) - 1])
        elif part in values:
            chosen.append(part)
        else:
            return []
    return list(dict.fromkeys(chosen))
