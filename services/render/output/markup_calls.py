"""Calls whose arguments are written parameter by parameter, not as JSON: callers get a JSON object's text."""

import json
import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import ClassVar, TypeAlias

from services.render.output.call_reader import MAX_HEADER_CHARS, MalformedCallError
from services.render.request.json_text import read_json


class ValueType(Enum):
    """What a parameter takes, as far as it is known."""

    STRING = auto()
    # `null` is null, all else a string.
    STRING_OR_NULL = auto()
    # What does not read as JSON is a string.
    JSON = auto()


# By function and parameter; JSON where nothing else is known.
ValueTypes: TypeAlias = Mapping[str, Mapping[str, ValueType]]


class ArgumentsWriter:
    """The text of a JSON object in pieces: strings as they come, other values when they are complete."""

    def __init__(self) -> None:
        self._has_parameters = False
        self._type = ValueType.JSON
        self._value: list[str] = []

    def begin(self, name: str, value_type: ValueType) -> str:
        start = ", " if self._has_parameters else "{"
        self._has_parameters, self._type, self._value = True, value_type, []
        return f"{start}{_quoted(name)}: " + ('"' if value_type is ValueType.STRING else "")

    def feed(self, text: str) -> str:
        if self._type is ValueType.STRING:
            return _quoted(text)[1:-1]
        self._value.append(text)
        return ""

    def end(self) -> str:
        if self._type is ValueType.STRING:
            return '"'
        value = "".join(self._value)
        is_json = value.strip() == "null" if self._type is ValueType.STRING_OR_NULL else _is_json(value)
        return value.strip() if is_json else _quoted(value)

    def close(self) -> str:
        return "}" if self._has_parameters else "{}"


class _Part(Enum):
    """Where a reader is in its call."""

    NAME = auto()
    BETWEEN = auto()  # before, between and after parameters: white space
    KEY = auto()
    AFTER_KEY = auto()  # white space
    VALUE = auto()
    # Something that stands in no call; up to the next tag, so that the same is abandoned at any division.
    MALFORMED = auto()


class DsmlCallReader:
    """DeepSeek V3.2: `<｜DSML｜invoke name="f">`, then for each parameter
    `<｜DSML｜parameter name="k" string="true">v</｜DSML｜parameter>`.

    Attributes are no part of the tags here: they are read as text.
    """

    TAGS = (PARAMETER, PARAMETER_END) = ("<｜DSML｜parameter", "</｜DSML｜parameter>")
    _PATTERNS: ClassVar = {
        _Part.NAME: re.compile(r'\s+name="(?P<name>[^"]+)"\s*>'),
        _Part.KEY: re.compile(r'\s+name="(?P<name>[^"]*)"\s+string="(?P<is_string>true|false)"\s*>'),
    }

    def __init__(self) -> None:
        self.name = self.call_id = ""
        self._part = _Part.NAME
        self._attributes = ""
        self._arguments = ArgumentsWriter()

    def feed(self, text: str, tag: str) -> str:
        match self._part, tag:
            case _Part.NAME | _Part.KEY | _Part.MALFORMED, "":
                return self._feed_attributes(text)
            case _Part.BETWEEN, self.PARAMETER:
                self._part, self._attributes = _Part.KEY, ""
                return ""
            case _Part.VALUE, "":
                return self._arguments.feed(text)
            case _Part.VALUE, self.PARAMETER_END:
                self._part = _Part.BETWEEN
                return self._arguments.end()
            case _Part.BETWEEN, "":
                if text.strip():
                    self._part, self._attributes = _Part.MALFORMED, text
                return ""
        raise MalformedCallError

    def close(self) -> str:
        if self._part is not _Part.BETWEEN:
            raise MalformedCallError
        return self._arguments.close()

    def _feed_attributes(self, text: str) -> str:
        self._attributes += text
        pattern = self._PATTERNS.get(self._part)
        match = pattern.match(self._attributes[:MAX_HEADER_CHARS]) if pattern else None
        if match is None:
            if len(self._attributes) > MAX_HEADER_CHARS:
                raise MalformedCallError
            return ""
        rest = self._attributes[match.end() :]
        if self._part is _Part.NAME:
            self.name, self._part = match["name"], _Part.BETWEEN
            return self.feed(rest, "")
        self._part = _Part.VALUE
        value_type = ValueType.STRING if match["is_string"] == "true" else ValueType.JSON
        return self._arguments.begin(match["name"], value_type) + self.feed(rest, "")


class GlmCallReader:
    """GLM-4.7: the name, then `<arg_key>k</arg_key><arg_value>v</arg_value>` for each parameter."""

    TAGS = (KEY, KEY_END, VALUE, VALUE_END) = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")

    def __init__(self, value_types: ValueTypes) -> None:
        self.name = self.call_id = ""
        self._value_types = value_types
        self._part = _Part.NAME
        # The name or key being read, or what is malformed.
        self._word = ""
        self._arguments = ArgumentsWriter()

    def feed(self, text: str, tag: str) -> str:
        match self._part, tag:
            case _Part.NAME | _Part.BETWEEN, self.KEY:
                self._end_name()
                self._part, self._word = _Part.KEY, ""
            case _Part.NAME | _Part.KEY | _Part.MALFORMED, "":
                self._word += text
                if len(self._word) > MAX_HEADER_CHARS:
                    raise MalformedCallError
            case _Part.KEY, self.KEY_END:
                self._part = _Part.AFTER_KEY
            case _Part.AFTER_KEY, self.VALUE:
                self._part = _Part.VALUE
                key = self._word.strip()
                value_type = self._value_types.get(self.name, {}).get(key, ValueType.JSON)
                return self._arguments.begin(key, value_type)
            case _Part.VALUE, "":
                return self._arguments.feed(text)
            case _Part.VALUE, self.VALUE_END:
                self._part = _Part.BETWEEN
                return self._arguments.end()
            case _Part.BETWEEN | _Part.AFTER_KEY, "":
                if text.strip():
                    self._part, self._word = _Part.MALFORMED, text
            case _:
                raise MalformedCallError
        return ""

    def close(self) -> str:
        self._end_name()
        if self._part is not _Part.BETWEEN:
            raise MalformedCallError
        return self._arguments.close()

    def _end_name(self) -> None:
        if self._part is _Part.NAME:
            if len(words := self._word.split()) != 1:
                raise MalformedCallError
            self.name, self._part = words[0], _Part.BETWEEN


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        read_json(text)
    except ValueError:
        return False
    return True
