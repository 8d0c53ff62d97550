"""Turns a conversation into the text that the model was trained on."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import jinja2

from services.render.model_folder import DEFAULT_TEMPLATE
from services.render.request.conversation import Conversation
from services.render.template.capabilities import EXPECTED_ROLES, Capabilities, Message
from services.render.template.continuation import cut_at_end, mark_end
from services.render.template.environment import MAX_CHARS, CompiledTemplate, TemplateEnvironment
from services.render.template.messages import messages_for
from services.render.template.probe import probe
from services.render.template.trusted import joined, mask_of, trusted
from services.render.time_limit import time_limit
from services.render.tokenizer.control_tokens import ControlTokens, Prompt
from shared.config import ConfigError
from shared.errors import Reason, ServiceError, out_of_range

# The template that Hugging Face prefers when there are tools.
TOOL_TEMPLATE = "tool_use"

# What a template can raise by itself; anything else is our own bug.
_TEMPLATE_FAULTS = (
    jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip

_SPECIAL_TOKENS = frozenset(
    {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}
)
_SET_HERE = _SPECIAL_TOKENS | {
    "messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template",
}  # fmt: skip


class ChatTemplate:
    """A model's chat templates, compiled. Thread safe; each rendering is bounded in time and size."""

    def __init__(
        self,
        sources: Mapping[str, str],
        special_tokens: Mapping[str, str],
        *,
        control_tokens: ControlTokens | None = None,
        capabilities: Mapping[str, Capabilities] | None = None,
        max_seconds: float = 10.0,
        max_chars: int = MAX_CHARS,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """sources: by name, DEFAULT_TEMPLATE for ordinary chats. control_tokens: in content they are text;
        None trusts the content. capabilities: of the same sources, where they are known already. Raises
        ConfigError on a syntax error."""
        self._control_tokens = control_tokens or ControlTokens(())
        self._environment = TemplateEnvironment(self._control_tokens, now)
        self._special_tokens = {name: trusted(text) for name, text in special_tokens.items()}
        self._max_seconds = max_seconds
        self._max_chars = max_chars
        self._compiled = {name: self._compile(name, source) for name, source in sources.items()}
        # Special tokens that a template reads, and that are not set.
        self.unset_special_tokens = {
            name
            for compiled in self._compiled.values()
            for name in _SPECIAL_TOKENS & compiled.names
            if not special_tokens.get(name)
        }
        # Variables that a caller may not set.
        self.reserved_names = _SET_HERE | self._environment.globals.keys() | special_tokens.keys()
        # By the template's name.
        self.capabilities = capabilities or {
            name: self._probe(self._compiled[name], always_with_tools=name == TOOL_TEMPLATE)
            for name in (DEFAULT_TEMPLATE, TOOL_TEMPLATE)
            if name in self._compiled
        }

    def warnings(self) -> Iterator[str]:
        """What the templates cannot do, a sentence each."""
        without_tools, with_tools = (
            self.capabilities.get(name) for name in (DEFAULT_TEMPLATE, TOOL_TEMPLATE)
        )
        if without_tools is not None and with_tools is not None:
            without_tools = replace(without_tools, tools=with_tools.tools)
        for each in (without_tools, with_tools):
            if each is not None:
                yield from each.warnings()

    def render(self, conversation: Conversation, prefix: str = "") -> Prompt:
        """prefix: of field paths.

        Raises ServiceError: NO_CHAT_TEMPLATE, TOOLS_UNSUPPORTED, TEMPLATE_FAILED, INVALID_TEXT,
        PARAMETER_OUT_OF_RANGE.
        """
        text = self._render(conversation, prefix)
        return self._control_tokens.cut(str.__str__(text), mask_of(text))

    def _render(self, conversation: Conversation, prefix: str) -> str:
        name = self._choose(bool(conversation.tools))
        messages = messages_for(self.capabilities[name], conversation, prefix)
        if conversation.continued_field:
            return self._render_open(self._compiled[name], conversation, messages, prefix)
        return self._run(self._compiled[name], conversation, messages, prefix)

    def _probe(self, compiled: CompiledTemplate, *, always_with_tools: bool) -> Capabilities:
        def render(messages: list[Message], tools: list[Message]) -> str:
            conversation = Conversation(messages, tools, {}, add_generation_prompt=False)
            return str.__str__(self._run(compiled, conversation, messages, ""))

        # All probes together: an endless loop is not waited for again and again.
        with time_limit(self._max_seconds, jinja2.TemplateError("the template ran for too long")):
            return probe(render, compiled.words, always_with_tools=always_with_tools)

    def _compile(self, name: str, source: str) -> CompiledTemplate:
        try:
            return self._environment.compile_chat_template(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"the chat template {name!r}, line {error.lineno}: {error.message}") from None

    def _choose(self, has_tools: bool) -> str:
        names = [TOOL_TEMPLATE, DEFAULT_TEMPLATE] if has_tools else [DEFAULT_TEMPLATE]
        for name in names:
            if name in self._compiled:
                return name
        raise ServiceError(
            Reason.NO_CHAT_TEMPLATE,
            "the model's folder has no chat template, as chat_template.jinja or in tokenizer_config.json"
            + (f", but for {', '.join(map(repr, self._compiled))}" if self._compiled else ""),
        )

    def _run(
        self,
        compiled: CompiledTemplate,
        conversation: Conversation,
        messages: list[dict[str, Any]],
        prefix: str,
    ) -> str:
        # Such as `<|im_` + role + `|>`: the name of a role completes the token. Any other role is content.
        roles = {message["role"] for message in messages}
        known = {role: trusted(role) for role in roles if role in EXPECTED_ROLES or role in compiled.words}
        messages = [{**message, "role": known.get(message["role"], message["role"])} for message in messages]
        variables = {
            "documents": None,
            **conversation.variables,
            **self._special_tokens,
            "messages": messages,
            "tools": conversation.tools or None,
            "add_generation_prompt": conversation.add_generation_prompt,
        }
        pieces: list[str] = []
        num_chars = 0
        try:
            with time_limit(self._max_seconds, jinja2.TemplateError("the template ran for too long")):
                for piece in compiled.template.generate(variables):
                    num_chars += len(piece)
                    if num_chars > self._max_chars:
                        raise _failed(f"its output is longer than {self._max_chars} characters", prefix)
                    pieces.append(str(piece))  # not each is printed already
        except _TEMPLATE_FAULTS as error:
            detail = str(error) or type(error).__name__
            raise _failed(f"{_place_of(error)}{detail}", prefix) from None
        return joined(pieces)

    def _render_open(
        self, compiled: CompiledTemplate, conversation: Conversation, messages: list[Message], prefix: str
    ) -> str:
        *earlier, last = messages
        field = conversation.continued_field
        continued, marked = mark_end(last, field)
        # A message without content may have got an empty one.
        is_null = field == "content" and conversation.messages[-1]["content"] is None
        if continued is None or is_null:
            allowed = f"only if the last message has a text as {field}"
            raise out_of_range(f"{prefix}continue_final_message", True, allowed)
        text = self._run(compiled, conversation, [*earlier, marked], prefix)
        if (cut := cut_at_end(text, continued)) is None:
            raise _failed("it leaves out the last message, which cannot be continued then", prefix)
        return cut


def _place_of(error: BaseException) -> str:
    """Where in the template, for an error that is not a sentence of the template's own; empty if unknown."""
    line = None
    trace = None if type(error) is jinja2.TemplateError else error.__traceback__
    while trace is not None:
        # Jinja puts such a frame, with the template's line, in place of each of its compiled code.
        if "__jinja_exception__" in trace.tb_frame.f_globals:
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f"line {line}: "


def _failed(detail: str, prefix: str) -> ServiceError:
    message = f"the chat template cannot render this conversation: {detail}"
    return ServiceError(Reason.TEMPLATE_FAILED, message, field=f"{prefix}messages")
