"""What a chat template can do: how messages are prepared for it, what is refused, what a start warns of."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

Message = dict[str, Any]

SYSTEM, DEVELOPER, USER, ASSISTANT, TOOL = "system", "developer", "user", "assistant", "tool"
EXPECTED_ROLES = (SYSTEM, DEVELOPER, USER, ASSISTANT, TOOL)


class NullContent(Enum):
    """What a message without content has in its place."""

    NULL = "null"
    ABSENT = "absent"
    EMPTY = "empty"


class Arguments(Enum):
    """What `function.arguments` of a call is."""

    TEXT = "text"
    OBJECT = "object"
    # Any JSON value.
    VALUE = "value"


@dataclass(frozen=True)
class Support:
    """Whether something gets into the prompt."""

    is_left_out: bool = False
    # The template's own error, where it refuses; its text reaches the caller of such a request.
    failure: str = ""

    @property
    def is_shown(self) -> bool:
        return not self.is_left_out and not self.failure


@dataclass(frozen=True)
class RoleSupport(Support):
    """A role's messages."""

    takes_parts: bool = False
    # None: no form of it can be rendered.
    null_content: NullContent | None = NullContent.NULL


@dataclass(frozen=True)
class CallSupport(Support):
    """An assistant's tool calls in earlier turns."""

    arguments: Arguments = Arguments.TEXT
    # Of messages with calls.
    null_content: NullContent | None = NullContent.NULL


@dataclass(frozen=True)
class Capabilities:
    """Of one template."""

    tools: Support = Support()
    calls: CallSupport = CallSupport()
    roles: Mapping[str, RoleSupport] = field(default_factory=dict)
    # Roles that the template does not name.
    other_roles: RoleSupport = RoleSupport()

    def role(self, name: str) -> RoleSupport:
        return self.roles.get(name, self.other_roles)

    @property
    def shown_roles(self) -> list[str]:
        """Those known by name."""
        return [name for name, support in self.roles.items() if support.is_shown]

    def summary(self) -> dict[str, str]:
        """For a log: how messages are prepared."""
        shown = self.shown_roles
        return {
            "roles": ",".join(shown) + (",any" if self.other_roles.is_shown else ""),
            "parts": ",".join(name for name in shown if self.roles[name].takes_parts) or "none",
            "arguments": self.calls.arguments.value if self.calls.is_shown else "none",
            "null_content": (self.role(ASSISTANT).null_content or NullContent.NULL).value,
        }

    def warnings(self) -> Iterator[str]:
        """A sentence for each thing that every chat template is expected to do and this one does not."""
        if not self.role(USER).is_shown:
            yield from _warning("user messages", self.role(USER))
            return
        for name in (SYSTEM, ASSISTANT, TOOL):
            yield from _warning(f"{name} messages", self.role(name))
        yield from _warning("tool calls of earlier turns", self.calls)
        yield from _warning("tool definitions", self.tools)
        if self.role(ASSISTANT).null_content is None or self.calls.null_content is None:
            yield "the chat template cannot render an assistant message without content"


def _warning(what: str, support: Support) -> Iterator[str]:
    if support.is_left_out:
        yield f"the chat template leaves out {what}: requests with them are refused"
    elif support.failure:
        yield f"the chat template does not take {what}: {support.failure}"
