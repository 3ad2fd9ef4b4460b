"""What an error says of a value that does not fit its schema."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, Field

from celery_agents.worker.errors import ConfigurationError, InvalidInput
from celery_agents.worker.requests.schemas import check_schema, schema_of
from celery_agents.worker.state.values.frozen import thaw


class Address(BaseModel):
    street: str


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (None, {"type": "string"}),
        (int, {"type": "integer"}),
        ({"type": "array"}, {"type": "array"}),
        (Address, Address.model_json_schema()),
    ],
)
def test_a_schema_is_made_of_each_kind(kind: Any, schema: dict[str, Any]) -> None:
    assert schema_of(kind) == schema


LOST = {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}


UNUSABLE: list[Any] = [
    object(),
    {"type": 5},
    LOST,
    {"$defs": {"a": LOST}},
    {"items": {"$ref": "http://127.0.0.1:9/schema.json"}},
    {"$ref": "#/allOf/first", "allOf": [{}]},
    {"items": {"$ref": "#/title"}, "title": "no schema"},
    {"pattern": "("},
    {"items": {"patternProperties": {"(?<=a)b(": {}}}},
]


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_kind_without_a_schema_is_refused(kind: Any) -> None:
    with pytest.raises(ConfigurationError):
        schema_of(kind)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"$ref": "#"}, "type": "array"}, [[]]),
        ({"items": {"$ref": "#/x%7Ey/a~1b"}, "x~y": {"a/b": {"type": "null"}}}, [None]),
        ({"$id": "http://x/y", "items": {"$ref": "z"}, "$defs": {"z": {"$id": "z", "type": "null"}}}, [None]),
        ({"items": {"$ref": "#n"}, "$defs": {"N": {"$anchor": "n", "type": "null"}}}, [None]),
        ({"items": {"$dynamicRef": "#n"}, "$defs": {"N": {"$dynamicAnchor": "n", "type": "null"}}}, [None]),
        ({"enum": [{"$ref": "nowhere"}]}, {"$ref": "nowhere"}),
        ({"properties": {"$ref": {"type": "integer"}}}, {"$ref": 1}),
        ({"items": {"pattern": r"^\p{Lu}$"}}, ["A"]),
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, {"type": "null"}),
    ],
)
def test_a_schema_whose_references_lead_somewhere_is_taken(schema: dict[str, Any], value: Any) -> None:
    assert thaw(check_schema(value, schema_of(schema), "answer")) == value


@pytest.mark.timeout(20)
def test_a_schema_that_is_applied_for_ages_is_refused() -> None:
    defs: dict[str, Any] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    bomb = schema_of({"$ref": "#/$defs/d0", "$defs": {**defs, "d40": {"type": "null"}}})
    with pytest.raises(InvalidInput, match="the schema of this request cannot be used"):
        check_schema(None, bomb, "answer")


def test_rules_about_further_properties_are_not_taken_beside_patterns_that_could_run_for_ages() -> None:
    with pytest.raises(ConfigurationError, match="unevaluatedProperties is not applied beside patternProperties"):
        schema_of({"allOf": [{"patternProperties": {"^(a+)+$": {}}}], "unevaluatedProperties": False})


@pytest.mark.parametrize("rule", ["anyOf", "oneOf"])
def test_a_value_of_kinds_inside_each_other_is_read_at_any_depth(rule: str) -> None:
    def kind(name: str) -> dict[str, Any]:
        fields = {"kind": {"const": name}, "left": {"$ref": "#"}, "right": {"$ref": "#"}}
        return {"type": "object", "properties": fields, "required": list(fields)}

    schema = {rule: [{"type": "number"}, *map(kind, ("add", "subtract", "multiply", "divide"))]}
    value: Any = 1
    for _ in range(15):
        value = {"kind": "divide", "left": value, "right": 2}
    assert thaw(check_schema(value, schema, "answer")) == value
    with pytest.raises(InvalidInput, match=f"answer: it breaks the rule {rule}"):
        check_schema({**value, "right": None}, schema, "answer")


OBJECT = {
    "type": "object",
    "properties": {
        "count": {"type": ["integer", "null"]},
        "name": {"type": "string", "maxLength": 3},
        "rows": {"type": "array", "items": {"type": "object"}},
        "size": {"enum": ["s", "m"]},
    },
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "value", "words"),
    [
        ({"type": "integer"}, "a", "answer: it must be an integer. Got 'a'."),
        ({"type": ["string", "null"]}, 5, "answer: it must be a string or null. Got 5."),
        ({"minimum": 3}, 2, "answer: it breaks minimum 3. Got 2."),
        ({"multipleOf": 3}, 2, "answer: it breaks the rule multipleOf of its schema. Got 2."),
        ({"enum": ["s", 1]}, "x", "answer: it must be one of s, 1. Got 'x'."),
        ({"additionalProperties": False}, {"a": 1}, "it has fields that do not exist; there are none."),
        (OBJECT, {}, "it needs name."),
        (OBJECT, {"name": "a", "b": 1}, "it has fields that do not exist; there are count, name, rows, size."),
        (OBJECT, {"name": "long"}, "answer.name: it breaks maxLength 3. Got 'long'."),
        (OBJECT, {"name": "a", "rows": [{}, 5]}, "answer.rows.1: it must be an object. Got 5."),
    ],
)
def test_an_error_names_the_field_and_what_its_schema_wants(schema: Any, value: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_schema(value, schema, "answer")
    assert words in str(caught.value)


def test_an_error_names_three_fields_at_most_in_their_order() -> None:
    value = {"count": "a", "name": "long", "rows": 5, "size": "x"}
    with pytest.raises(InvalidInput) as caught:
        check_schema(value, OBJECT, "answer")
    told = [
        "answer.count: it must be an integer or null.",
        "answer.name: it breaks maxLength 3.",
        "answer.rows: it must be an array.",
        "Got 'a'.",
    ]
    assert str(caught.value) == " ".join(told)


class Person(BaseModel):
    name: str = Field(pattern=r"^\p{Lu}\p{L}*$")
    code: str = Field(default="", pattern=r"^(a+)+$")


def test_a_pattern_is_read_as_the_type_reads_it_and_takes_no_time() -> None:
    schema = schema_of(Person)
    assert check_schema({"name": "\u00c4nn"}, schema, "answer") == {"name": "\u00c4nn"}
    with pytest.raises(InvalidInput, match=r"answer\.name: it breaks pattern"):
        check_schema({"name": "ann"}, schema, "answer")
    with pytest.raises(InvalidInput, match=r"answer\.code: it breaks pattern"):
        check_schema({"name": "Ann", "code": "a" * 50 + "!"}, schema, "answer")
    ahead = {"type": "string", "pattern": "^(?!secret)"}  # pydantic's language has none
    assert check_schema("open", ahead, "answer") == "open"
    with pytest.raises(InvalidInput, match="answer: it breaks pattern"):
        check_schema("secret", ahead, "answer")
