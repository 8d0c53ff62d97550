"""What a chat template can do, found out by rendering conversations when it is loaded.

A template is a program: only running it tells which roles it writes into the prompt, whether it goes through
content parts, and whether it wants a call's arguments as text or as a mapping.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from services.render.template.capabilities import (
    ASSISTANT,
    EXPECTED_ROLES,
    SYSTEM,
    TOOL,
    USER,
    Arguments,
    CallSupport,
    Capabilities,
    Message,
    NullContent,
    RoleSupport,
    Support,
)
from shared.errors import ServiceError

# (messages, tools) → the prompt's text. Raises ServiceError.
Render = Callable[[list[Message], list[Message]], str]

# Words that no template has of its own.
_TEXT, _OTHER_TEXT = "Qvxfirst", "Qvxsecond"
_PARTS = [{"type": "text", "text": text} for text in (_TEXT, _OTHER_TEXT)]
_FUNCTION, _KEY, _VALUE, _NUMBER = "qvx_function", "qvx_key", "qvx_value", 918273645
# No JSON encoder writes two spaces: whatever shows them shows the text itself.
_ARGUMENTS_TEXT = f'{{"{_KEY}":  "{_VALUE}"}}'
_CALL_ID = f"functions.{_FUNCTION}:0"
_OTHER_ROLE = "qvx_role"
_NOTHING = "a question is not in the prompt"

_USER_MESSAGE: Message = {"role": USER, "content": "Hello"}
_TOOL: Message = {
    "type": "function",
    "function": {
        "name": _FUNCTION,
        "description": "Probes.",
        "parameters": {"type": "object", "properties": {_KEY: {"type": "string"}}},
    },
}


def probe(render: Render, literals: Iterable[str], *, always_with_tools: bool = False) -> Capabilities:
    """literals: the template's own words; some of them are roles. always_with_tools: the template is used for
    nothing else."""
    return _Prober(render, [_TOOL] if always_with_tools else []).capabilities(literals)


class _Prober:
    def __init__(self, render: Render, tools: list[Message]) -> None:
        self._render = render
        self._tools = tools
        self._failure = ""

    def capabilities(self, literals: Iterable[str]) -> Capabilities:
        calls = self._calls()
        user = self._role(USER, calls)
        tools = self._tool_definitions()
        if not user.is_shown:
            # No chat template, or one that needs more than a question: decided per request.
            user = replace(user, is_left_out=False, failure=user.failure or _NOTHING)
            return Capabilities(tools, calls if calls.is_shown else CallSupport(), {USER: user})
        other_roles = self._role(_OTHER_ROLE, calls)
        # Where every role is shown, none has to be known by its name.
        more = () if other_roles.is_shown else sorted(set(literals).difference(EXPECTED_ROLES))
        roles = {name: self._role(name, calls) for name in (*EXPECTED_ROLES, *more)}
        return Capabilities(tools, calls, roles, other_roles)

    def _try(self, messages: Sequence[Message], tools: list[Message] | None = None) -> str | None:
        try:
            return self._render(list(messages), self._tools if tools is None else tools)
        except ServiceError as error:
            self._failure = error.message
            return None

    def _first_shown(self, texts: Iterable[str | None], word: str) -> tuple[Support, str]:
        """Of renderings, the first that shows the word, and whether any does."""
        is_left_out = False
        for text in texts:
            if text is not None and word in text:
                return Support(), text
            is_left_out |= text is not None
        return Support(is_left_out, "" if is_left_out else self._failure), ""

    def _tool_definitions(self) -> Support:
        system = {"role": SYSTEM, "content": "Be brief."}
        conversations = ([_USER_MESSAGE], [system, _USER_MESSAGE])
        return self._first_shown((self._try(each, [_TOOL]) for each in conversations), _FUNCTION)[0]

    def _calls(self) -> CallSupport:
        as_text = self._with_call(_ARGUMENTS_TEXT)
        if as_text and _ARGUMENTS_TEXT in as_text:
            return self._calls_with(Arguments.TEXT, _ARGUMENTS_TEXT, as_text)
        arguments = {_KEY: _VALUE}
        as_object = self._with_call(arguments)
        if as_object and _KEY in as_object and _VALUE in as_object:
            shown = [self._with_call(each) or "" for each in ([_VALUE], _NUMBER)]
            takes_values = _VALUE in shown[0] and str(_NUMBER) in shown[1]
            form = Arguments.VALUE if takes_values else Arguments.OBJECT
            return self._calls_with(form, arguments, as_object)
        is_left_out = as_text is not None or as_object is not None
        return CallSupport(is_left_out, "" if is_left_out else self._failure)

    def _calls_with(self, form: Arguments, arguments: Any, text: str) -> CallSupport:
        def render(content: Message) -> str | None:
            return self._with_call(arguments, content)

        return CallSupport(arguments=form, null_content=_null_content(render, text, _KEY))

    def _with_call(self, arguments: Any, content: Message | None = None) -> str | None:
        message = {"role": ASSISTANT, **({"content": _TEXT} if content is None else content)}
        call = _call_message(arguments, message)
        result = {"role": TOOL, "content": _OTHER_TEXT, "tool_call_id": _CALL_ID}
        text = self._try([_USER_MESSAGE, call, result])
        return self._try([_USER_MESSAGE, call]) if text is None else text

    def _role(self, role: str, calls: CallSupport) -> RoleSupport:
        arguments = _ARGUMENTS_TEXT if calls.arguments is Arguments.TEXT else {_KEY: _VALUE}
        call = _call_message(arguments, {"role": ASSISTANT, "content": "Calling."})
        failed: list[Support] = []
        for place in range(len(_places(role, {}, call))):

            def render(message: Message, place: int = place) -> str | None:
                return self._try(_places(role, {"role": role, **message}, call)[place])

            support, text = self._first_shown([render({"content": _TEXT})], _TEXT)
            # A template that takes parts alone shows no text.
            may_take_parts = support.is_shown or role in EXPECTED_ROLES
            takes_parts = may_take_parts and _shows_parts(render({"content": _PARTS}), text)
            if support.is_shown or takes_parts:
                return RoleSupport(takes_parts=takes_parts, null_content=_null_content(render, text))
            failed.append(support)
        left_out = any(each.is_left_out for each in failed)
        return RoleSupport(left_out, "" if left_out else failed[0].failure)


def _null_content(render: Callable[[Message], str | None], text: str, shown: str = "") -> NullContent | None:
    """The first form that is neither an error nor printed as Python's None.

    text: of such a message with content. shown: what is there all the same.
    """
    for form in NullContent:
        without = render(_content_of(form))
        if without is not None and shown in without and without.count("None") <= text.count("None"):
            return form
    return None


def _content_of(form: NullContent) -> Message:
    """The keys of a message without content."""
    if form is NullContent.ABSENT:
        return {}
    return {"content": None if form is NullContent.NULL else ""}


def _call_message(arguments: Any, message: Message) -> Message:
    function = {"name": _FUNCTION, "arguments": arguments}
    return {**message, "tool_calls": [{"id": _CALL_ID, "type": "function", "function": function}]}


def _places(role: str, message: Message, call: Message) -> list[list[Message]]:
    """Conversations in which a message of this role may stand, the likeliest first."""
    alone, first, after_question = [message], [message, _USER_MESSAGE], [_USER_MESSAGE, message]
    after_call = [_USER_MESSAGE, call, {**message, "tool_call_id": _CALL_ID} if role == TOOL else message]
    if role == USER:
        return [alone]
    if role == ASSISTANT:
        return [after_question, alone]
    if role == TOOL:
        return [after_call, after_question, alone]
    return [first, after_question, after_call, alone]


def _shows_parts(text: str | None, text_without_parts: str) -> bool:
    """Not as Python or JSON writes a list."""
    if text is None or _TEXT not in text or _OTHER_TEXT not in text:
        return False
    return all(text.count(key) <= text_without_parts.count(key) for key in ("'text'", '"text"'))
