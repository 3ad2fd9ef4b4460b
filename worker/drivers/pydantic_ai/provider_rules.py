"""The table of things that providers refuse in a request: one row for each interface, with its source.

These rules hold at all of them, so they are no columns:

    call ids        unique in a request, and never empty: OpenAI "Duplicate value for 'tool_call_id'" (agno#5116),
                    Anthropic "`tool_use` ids must be unique" (litellm#23510)
    results         each right behind its call, none without: OpenAI and Anthropic (qwen-code#869, claude-code#3632)
    blank texts     Anthropic "text content blocks must contain non-whitespace text" (claude-code#23440), Bedrock "The
                    text field in the ContentBlock object is blank" (pi#4975), and gateways in front of them, which
                    speak OpenAI's interface (opencode#31259)
    arguments       a JSON object: vLLM and SGLang read them again (vllm#48922, sglang#28035); finite numbers: JSON has
                    no others (RFC 8259, section 6)
    Unicode         no half of a surrogate pair: UTF-8 cannot encode it (RFC 3629, section 3)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final
from zlib import crc32

_HASH_CHARS: Final = 9
"""An underscore and eight digits, which tell two long names apart."""


@dataclass(frozen=True)
class NameRule:
    """The names that a provider takes.

    Attributes:
        longest: Most characters.
        chars: The characters, as in a class of a regular expression; "" for any.
        first: Those that a name may begin with; "" for any of `chars`.
        empty: The name in place of an empty one.
    """

    longest: int
    chars: str = "A-Za-z0-9_-"
    first: str = ""
    empty: str = "unnamed"

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        any_char = f"[{self.chars}]" if self.chars else "."
        if self.first:
            return re.compile(rf"[{self.first}]{any_char}{{0,{self.longest - 1}}}", re.DOTALL)
        return re.compile(rf"{any_char}{{1,{self.longest}}}", re.DOTALL)

    def fits(self, name: str) -> bool:
        """Whether the provider takes this name."""
        return self._pattern.fullmatch(name) is not None

    def fit(self, name: str, suffix: str = "") -> str:
        """The nearest name that the provider takes; always the same one for a name.

        Args:
            suffix: Its last characters, which have to fit.
        """
        fitted = re.sub(f"[^{self.chars}]", "_", name) if self.chars else name
        fitted = fitted or self.empty
        if self.first and not re.match(f"[{self.first}]", fitted):
            fitted = f"_{fitted}"
        if len(fitted) + len(suffix) <= self.longest:
            return fitted + suffix
        kept = self.longest - _HASH_CHARS - len(suffix)
        return f"{fitted[:kept]}_{hash_of(name)}{suffix}"


def hash_of(name: str) -> str:
    """Eight digits that tell a name from others."""
    return f"{crc32(name.encode('utf-8', 'surrogatepass')):08x}"


@dataclass(frozen=True)
class ProviderRules:
    """The limits of one interface.

    Attributes:
        tool_name: The names of tools, in the list of tools and in the history.
        call_id: The ids of calls.
        property_name: The names at the top level of a tool's arguments; None for any.
        ends_streams: A stream that is whole says why it ended; without a reason it was cut.
        ends_answers: So does an answer that no client follows: pydantic-ai may ask for that one as a stream, too.
        invents_reason: Pydantic-ai reads "stop" where the provider gave no reason.
        alternates: The user's turn is the first, and no answer follows another one.
        has_thought_fields: Pydantic-ai sends a thought in a field that has the thought's id for a name.
    """

    tool_name: NameRule
    call_id: NameRule
    property_name: NameRule | None = None
    ends_streams: bool = True
    ends_answers: bool = False
    invents_reason: bool = False
    has_thought_fields: bool = False
    alternates: bool = False


_PROPERTY: Final = NameRule(64, "A-Za-z0-9_.-", empty="_")

_OPENAI: Final = ProviderRules(
    # "'messages[1].tool_calls[0].function.name' does not match '^[a-zA-Z0-9_-]{1,64}$'" (vercel/ai#10202)
    tool_name=NameRule(64),
    # "Invalid 'messages[2].tool_calls[0].id': string too long. Expected … maximum length 40" (vercel/ai#5171). Any
    # characters: models such as Kimi K2 look for their own ids, which have dots and colons.
    call_id=NameRule(40, "", empty="call"),
    invents_reason=True,
    # "Unknown parameter: 'messages[1].rs_…'": the id that a thought has in OpenAI's responses
    has_thought_fields=True,
)

RULES: Final[dict[str, ProviderRules]] = {
    "OpenAIChatModel": _OPENAI,
    # "Expected a string with maximum length 64" for call_id (openclaw#875)
    "OpenAIResponsesModel": replace(
        _OPENAI, call_id=NameRule(64, "", empty="call"), invents_reason=False, has_thought_fields=False
    ),
    "OpenRouterModel": replace(_OPENAI, has_thought_fields=False),
    "AnthropicModel": ProviderRules(
        # "tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'"
        tool_name=NameRule(128),
        # "tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'" (opencode#1279)
        call_id=NameRule(64, empty="call"),
        # "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'", top level only
        # (aws-solutions-library-samples/accelerated-intelligent-document-processing-on-aws#709)
        property_name=_PROPERTY,
        ends_answers=True,
        alternates=True,  # the first turn has to be the user's (livekit/agents#669)
    ),
    # https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_ToolUseBlock.html
    # "A conversation must start with a user message" (deepgram-python-sdk#760), "must alternate between user and
    # assistant roles" (semantic-kernel#10281)
    "BedrockConverseModel": ProviderRules(
        NameRule(64), NameRule(64, empty="call"), _PROPERTY, ends_answers=True, alternates=True
    ),
    # "Must start with a letter or an underscore. … underscores (_), dots (.) or dashes (-), with a maximum length of
    # 64" (gemini-cli#2966); the ids of calls are the client's own
    "GoogleModel": ProviderRules(NameRule(64, "A-Za-z0-9_.-", "A-Za-z_"), NameRule(64, "", empty="call")),
    # "must be a-z, A-Z, 0-9, or contain underscores and dashes, with a maximum length of 64" (witsy#164); pydantic-ai
    # makes the ids that Mistral takes, of nine characters, from any others
    "MistralModel": ProviderRules(NameRule(64), NameRule(64, "", empty="call")),
    # They speak OpenAI's interface through clients of their own.
    "GroqModel": replace(_OPENAI, invents_reason=False),
    "HuggingFaceModel": replace(_OPENAI, invents_reason=False),
    "CohereModel": replace(_OPENAI, invents_reason=False),
}
"""The rows, by the class of pydantic-ai that speaks the interface."""

STRICTEST: Final = ProviderRules(
    tool_name=NameRule(64, first="A-Za-z_"),
    call_id=NameRule(40, empty="call"),
    property_name=_PROPERTY,
    ends_streams=False,
    alternates=True,
)
"""What every interface takes; for models of unknown ones, and for several models in one."""

_MIXED: Final = replace(STRICTEST, has_thought_fields=True)
"""The same for several models of which OpenAI's responses are one and its chat completions another."""

_LOCAL: Final = frozenset({"TestModel", "FunctionModel"})
"""Models that ask no provider."""


def rules_of(model: Any, response: Any = None) -> ProviderRules | None:
    """The rules of a model's provider; None for a model that asks none.

    Args:
        response: What the model has answered: of several models in one the rules of the one that has. None: those of
            what is asked.
    """
    wrapped = model.__dict__.get("wrapped")
    if wrapped is not None:
        return rules_of(wrapped, response)
    if models := model.__dict__.get("models"):
        found = [rules_of(each) for each in models if response is None or each.system == response.provider_name]
        if response is not None and len(set(found)) == 1:
            return found[0]
        return _MIXED if RULES["OpenAIResponsesModel"] in found and _OPENAI in found else STRICTEST
    names = [each.__name__ for each in type(model).__mro__]
    if not _LOCAL.isdisjoint(names):
        return None
    return next((RULES[name] for name in names if name in RULES), STRICTEST)
