"""Callers that know nothing of this repository's Python."""

import re
import subprocess
import sys
from pathlib import Path

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.e2e.stack import Stack

_ROOT = Path(__file__).parents[2]


def test_a_generic_client_calls_by_reflection_alone(stack: Stack) -> None:
    """As grpcurl does: descriptors from the server, messages as JSON, no stubs."""
    with grpc.insecure_channel(str(stack.render.address)) as channel:
        pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        method = pool.FindServiceByName("triptych.v1.TextService").FindMethodByName("Chat")
        request_class = message_factory.GetMessageClass(method.input_type)
        response_class = message_factory.GetMessageClass(method.output_type)
        request = json_format.ParseDict(
            {"request": {"messages": [{"role": "user", "content": "Repeat: red blue"}]}}, request_class()
        )
        call = channel.unary_stream(
            "/triptych.v1.TextService/Chat",
            request_serializer=request_class.SerializeToString,
            response_deserializer=response_class.FromString,
        )
        events = [json_format.MessageToDict(response)["event"] for response in call(request)]
    assert "".join(event.get("delta", {}).get("text", "") for event in events) == "Sure: red blue"
    assert events[-1]["finished"]["finishReason"] == "FINISH_REASON_STOP"


def _readme_code() -> list[str]:
    """The README's pieces of Python."""
    return re.findall(r"```python\n(.*?)```", (_ROOT / "README.md").read_text(), re.DOTALL)


def _run(code: str, stack: Stack) -> str:
    assert "127.0.0.1:50051" in code
    code = code.replace("127.0.0.1:50051", str(stack.render.address))
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, cwd=_ROOT, check=True
    ).stdout


def test_the_readme_client_works_as_printed(stack: Stack) -> None:
    client, _ = _readme_code()
    assert len(client.strip().splitlines()) <= 15
    assert "Ada" in _run(client, stack)


def test_the_readme_s_conversation_with_tools_is_rendered_as_printed(stack: Stack) -> None:
    """The second piece uses the channel of the first."""
    prompt = _run("".join(_readme_code()), stack)
    assert all(text in prompt for text in ("Weather in Oslo?", '{"city": "Oslo"}', "7 degrees", "weather"))
