"""Turns a conversation into the text that the model was trained on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes

from services.render.conversation import Conversation
from services.render.model_folder import DEFAULT_TEMPLATE, SPECIAL_TOKEN_NAMES
from services.render.template_environment import TemplateEnvironment
from shared.config import ConfigError
from shared.errors import Reason, ServiceError, out_of_range

# The template that Hugging Face prefers when there are tools.
TOOL_TEMPLATE = "tool_use"

# Marks where the last message ends. Private-use characters: no ordinary text holds them. The space at the
# end shows whether the template trims.
_END_MARK = "\ue0f0end\ue0f1 "

# What a template can raise by itself; anything else is our own bug.
_TEMPLATE_FAULTS = (
    jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
)  # fmt: skip

_SET_HERE = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template"}
).union(SPECIAL_TOKEN_NAMES)


@dataclass(frozen=True)
class _Compiled:
    template: jinja2.Template
    uses_tools: bool


class ChatTemplate:
    """A model's chat templates, compiled. Thread safe; each rendering is bounded in time and size."""

    def __init__(
        self,
        sources: Mapping[str, str],
        special_tokens: Mapping[str, str],
        *,
        max_seconds: float = 10.0,
        max_chars: int = 64 * 1024 * 1024,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """sources: by name, DEFAULT_TEMPLATE for ordinary chats. Raises ConfigError on a syntax error."""
        self._environment = TemplateEnvironment(now)
        self._special_tokens = dict(special_tokens)
        self._max_seconds = max_seconds
        self._max_chars = max_chars
        self._compiled = {name: self._compile(name, source) for name, source in sources.items()}
        # Variables that a caller may not set.
        self.reserved_names = _SET_HERE | self._environment.globals.keys()

    def render(self, conversation: Conversation, prefix: str = "") -> str:
        """The prompt's text. prefix: of field paths.

        Raises ServiceError: NO_CHAT_TEMPLATE, TOOLS_UNSUPPORTED, TEMPLATE_FAILED, PARAMETER_OUT_OF_RANGE.
        """
        compiled = self._choose(bool(conversation.tools))
        if conversation.tools and not compiled.uses_tools:
            raise ServiceError(
                Reason.TOOLS_UNSUPPORTED,
                "the model's chat template ignores tools",
                field=f"{prefix}tools_json",
            )
        if conversation.continue_final_message:
            return self._render_open(compiled, conversation, prefix)
        return self._run(compiled, conversation, conversation.messages, prefix)

    def _compile(self, name: str, source: str) -> _Compiled:
        try:
            template, tree = self._environment.compile_chat_template(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"the chat template {name!r}, line {error.lineno}: {error.message}") from None
        uses_tools = any(node.name == "tools" and node.ctx == "load" for node in tree.find_all(nodes.Name))
        return _Compiled(template, uses_tools)

    def _choose(self, has_tools: bool) -> _Compiled:
        names = [TOOL_TEMPLATE, DEFAULT_TEMPLATE] if has_tools else [DEFAULT_TEMPLATE]
        for name in names:
            if name in self._compiled:
                return self._compiled[name]
        raise ServiceError(Reason.NO_CHAT_TEMPLATE, "the model has no chat template; send a plain prompt")

    def _run(
        self, compiled: _Compiled, conversation: Conversation, messages: list[dict[str, Any]], prefix: str
    ) -> str:
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
            with self._environment.time_limit(self._max_seconds):
                for piece in compiled.template.generate(variables):
                    num_chars += len(piece)
                    if num_chars > self._max_chars:
                        raise _failed(f"its output is longer than {self._max_chars} characters", prefix)
                    pieces.append(piece)
        except _TEMPLATE_FAULTS as error:
            raise _failed(str(error) or type(error).__name__, prefix) from None
        return "".join(pieces)

    def _render_open(self, compiled: _Compiled, conversation: Conversation, prefix: str) -> str:
        """Renders with a mark at the end of the last message, and cuts there."""
        *earlier, last = conversation.messages
        content = last["content"]
        if not isinstance(content, str):
            raise out_of_range(f"{prefix}continue_final_message", True, "only if the last message has text")
        text = self._run(compiled, conversation, [*earlier, {**last, "content": content + _END_MARK}], prefix)
        end = text.rfind(_END_MARK.strip())
        if end < 0 or content.strip() not in text[:end]:
            raise _failed("it leaves out the last message, which cannot be continued then", prefix)
        is_trimmed = not text.startswith(_END_MARK, end)
        return text[:end].rstrip() if is_trimmed else text[:end]


def _failed(detail: str, prefix: str) -> ServiceError:
    message = f"the chat template cannot render this conversation: {detail}"
    return ServiceError(Reason.TEMPLATE_FAILED, message, field=f"{prefix}messages")
