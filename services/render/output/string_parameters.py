"""Which parameters of the tools take strings, from their JSON schemas."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from triptych.v1 import render_pb2

from services.render.output.markup_calls import ValueType, ValueTypes


def string_parameters(tools: Sequence[Mapping[str, Any]]) -> list[render_pb2.StringParameters]:
    """tools: definitions, each a function or with one under `function`."""
    found = []
    for tool in tools:
        function = tool.get("function", tool)
        schema = function.get("parameters") if isinstance(function, dict) else None
        properties = schema.get("properties") if isinstance(schema, dict) else None
        if not isinstance(properties, dict) or not isinstance(function.get("name"), str):
            continue
        types = {name: _types(schema) for name, schema in properties.items()}
        names = [name for name, each in types.items() if each == {"string"}]
        nullable_names = [name for name, each in types.items() if each == {"string", "null"}]
        if names or nullable_names:
            found.append(
                render_pb2.StringParameters(
                    function=function["name"], names=names, nullable_names=nullable_names
                )
            )
    return found


def value_types(parameters: Iterable[render_pb2.StringParameters]) -> ValueTypes:
    return {
        each.function: {
            **dict.fromkeys(each.names, ValueType.STRING),
            **dict.fromkeys(each.nullable_names, ValueType.STRING_OR_NULL),
        }
        for each in parameters
    }


def _types(schema: Any) -> set[str]:
    """JSON's types that a schema allows; "any" among them where it does not say."""
    if not isinstance(schema, dict):
        return {"any"}
    if isinstance(declared := schema.get("type"), str):
        return {declared}
    if isinstance(declared, list):
        return {each for each in declared if isinstance(each, str)}
    for key in ("anyOf", "oneOf"):
        if isinstance(schemas := schema.get(key), list):
            return {each for child in schemas for each in _types(child)}
    if isinstance(values := schema.get("enum", [schema.get("const", 0)]), list):
        return {
            "string" if isinstance(value, str) else "null" if value is None else "any" for value in values
        }
    return {"any"}
