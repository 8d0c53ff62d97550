"""Loads a model's chat templates, and makes sure at the start that content can be told from markers."""

from collections.abc import Iterator
from itertools import product
from typing import Any

from services.render.model_folder import ModelFolder
from services.render.request.conversation import Conversation
from services.render.template.chat_template import ChatTemplate
from services.render.tokenizer.control_tokens import ControlTokens, Prompt
from shared.config import ConfigError
from shared.errors import ServiceError

_CALL = {
    "id": "functions.f:0",
    "type": "function",
    "function": {"name": "f", "arguments": '{"a": "b"}'},
}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
_TOOLS: tuple[list[dict[str, Any]], ...] = ([], [_TOOL])
# As models name the switch for reasoning.
_VARIABLES: tuple[dict[str, Any], ...] = ({}, {"thinking": True, "enable_thinking": True})


def load_chat_template(model: ModelFolder, control_tokens: ControlTokens | None) -> ChatTemplate:
    """control_tokens: in content they are text; None trusts the content.

    Raises ConfigError if a template cannot be compiled, or puts its control tokens together in a way that
    hides which text is its own: they would all become text.
    """
    trusting = ChatTemplate(model.chat_templates, model.special_tokens)
    if control_tokens is None:
        return trusting
    checked = ChatTemplate(
        model.chat_templates,
        model.special_tokens,
        control_tokens=control_tokens,
        capabilities=trusting.capabilities,
    )
    for conversation in _harmless_conversations():
        expected = _rendered(trusting, conversation)
        if expected is not None and _rendered(checked, conversation) != expected:
            raise ConfigError(
                f"the chat template of {model.path} hides which control tokens are its own; start with "
                "--trust-content, which takes those in content for control tokens too"
            )
    return checked


def _rendered(template: ChatTemplate, conversation: Conversation) -> Prompt | None:
    """None: the template does not take such a conversation."""
    try:
        return template.render(conversation)
    except ServiceError:
        return None


def _harmless_conversations() -> Iterator[Conversation]:
    """Without control tokens in their content, so that all control tokens are the template's."""
    system, user = _message("system", "s"), _message("user", "u", name="n")
    answer = _message("assistant", "a", reasoning_content="r")
    call = _message("assistant", None, tool_calls=[_CALL])
    calls = _message("assistant", "c", reasoning_content="r", tool_calls=[_CALL, _CALL])
    result = _message("tool", "t", tool_call_id=_CALL["id"])
    conversations = (
        [user],
        [system, user],
        [_message("developer", "d"), user],
        [user, answer, user],
        [system, user, call, result, answer, user],
        [system, user, calls, result, result],
        [user, answer],
    )
    for messages, tools, variables, is_open in product(conversations, _TOOLS, _VARIABLES, (True, False)):
        yield Conversation(messages, tools, variables, is_open)


def _message(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}
