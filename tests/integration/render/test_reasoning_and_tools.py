"""Reasoning and tool calls over real gRPC, from a conversation with tools to the calls that a client runs."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from triptych.v1 import render_pb2, types_pb2

from services.cli.chat import Conversation
from services.render.tokenizer.tokenizer import Tokenizer
from tests.integration.render.conftest import MakeRig, Rig
from tests.support.fake_scheduler import Generation, Response, aborted, admitted, chunk, finished, scheduled
from tests.support.render_models import DEEPSEEK_TOKENIZER, DEMO_MODEL, TEMPLATES, make_folder

TOOL = json.dumps({"type": "function", "function": {"name": "weather", "parameters": {}}})
CITY = '{"city": "Bern"}'
SECTION, CALL, SEP = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
CALL_END, SECTION_END = "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
FENCED = f"{SECTION}{CALL}function{SEP}weather\n```json\n{CITY}\n```{CALL_END}{SECTION_END}"
BARE = f"{SECTION}{CALL}weather{SEP}{CITY}{CALL_END}{SECTION_END}"
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
    f"{CITY}<|tool_call_end|><|tool_calls_section_end|>"
)
DSML = (
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n'
    '<｜DSML｜parameter name="city" string="true">Bern</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜function_calls>"
)
GLM = "<tool_call>weather<arg_key>city</arg_key><arg_value>Bern</arg_value></tool_call>"
# Style of the template, its variables, the output, and the reasoning, text and id of the call in it.
STYLES = {
    "v3": ("deepseek_v3", {}, f"I look.{FENCED}", "", "I look.", "call-generation-1-0-0"),
    "v3.1 thinks": (
        "deepseek_v3_1", {"thinking": True}, f"Bern?</think>I look.{BARE}", "Bern?", "I look.",
        "call-generation-1-0-0",
    ),
    "v3.1": ("deepseek_v3_1", {}, f"I look.{BARE}", "", "I look.", "call-generation-1-0-0"),
    "r1": ("deepseek_r1", {}, f"Bern?\n</think>\n\n{FENCED}", "Bern?\n", "\n\n", "call-generation-1-0-0"),
    "v3.2": (
        "deepseek_v3_2", {"thinking": True}, f"Bern?</think>I look.\n\n{DSML}", "Bern?", "I look.\n\n",
        "call-generation-1-0-0",
    ),
    "glm": (
        "glm_4_7_flash", {}, f"Bern?</think>I look.{GLM}", "Bern?", "I look.", "call-generation-1-0-0",
    ),
    "kimi": ("kimi_k2", {}, f"<think>Bern?</think>I look.{KIMI}", "Bern?", "I look.", "functions.weather:0"),
}  # fmt: skip


class Played:
    """A scripted output, and the request that it answers."""

    def __init__(self, tokenizer: Tokenizer, output: str, *, piece_size: int = 1) -> None:
        self._token_ids = tokenizer.encode(output, add_special_tokens=False, field="text")
        self._piece_size = piece_size
        self.events: list[Response] = []

    async def __call__(self, generation: Generation) -> AsyncIterator[Response]:
        self.events = [admitted(), scheduled()]
        for start in range(0, len(self._token_ids), self._piece_size):
            self.events.append(chunk(self._token_ids[start : start + self._piece_size], with_logprobs=True))
        self.events.append(finished(types_pb2.FINISH_REASON_STOP, stop_token_id=1))
        for event in self.events:
            yield event


def folder_of(path: Path, style: str, tokenizer_from: Path) -> Path:
    """A model with one of our templates."""
    settings = {"chat_template": TEMPLATES[style]}
    config = {"vocab_size": 129_280, "max_position_embeddings": 8192}
    folder = make_folder(path, tokenizer_from=tokenizer_from, tokenizer_config=settings, config=config)
    # A link, so that all the tests together load the tokenizer once.
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to(tokenizer_from / "tokenizer.json")
    return folder


async def rig_of(make_rig: MakeRig, folder: Path, output: str, piece_size: int = 1) -> tuple[Rig, Played]:
    """A rig whose scheduler plays this output."""

    async def script(generation: Generation) -> AsyncIterator[Response]:
        async for event in played(generation):
            yield event

    rig = await make_rig(script, folder)
    played = Played(rig.tokenizer, output, piece_size=piece_size)
    return rig, played


def chat(**fields: Any) -> render_pb2.RenderChatRequest:
    messages = [render_pb2.ChatMessage(role="user", content="Weather in Bern?")]
    return render_pb2.RenderChatRequest(messages=messages, tools_json=[TOOL], **fields)


async def read(call: Any) -> tuple[list[render_pb2.TextDelta], render_pb2.TextFinished]:
    """The call's deltas and its one end."""
    async with asyncio.timeout(20):
        events = [response.event async for response in call]
    [end] = [event.finished for event in events if event.HasField("finished")]
    return [event.delta for event in events if event.HasField("delta")], end


@pytest.mark.parametrize("piece_size", [1, 1000])
@pytest.mark.parametrize("tokenizer_from", [DEEPSEEK_TOKENIZER, DEMO_MODEL], ids=["deepseek", "demo"])
@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)
async def test_a_chat_streams_reasoning_text_and_calls(
    make_rig: MakeRig, tmp_path: Path, style: Any, tokenizer_from: Path, piece_size: int
) -> None:
    template, variables, output, reasoning, text, call_id = style
    rig, played = await rig_of(make_rig, folder_of(tmp_path, template, tokenizer_from), output, piece_size)
    request = chat(chat_template_kwargs_json=json.dumps(variables))
    deltas, end = await read(rig.text.Chat(render_pb2.ChatRequest(request=request)))
    assert "".join(delta.reasoning_content for delta in deltas) == reasoning
    assert "".join(delta.text for delta in deltas) == text
    assert list(end.tool_calls) == [render_pb2.ToolCall(id=call_id, name="weather", arguments_json=CITY)]
    pieces = [piece for delta in deltas for piece in delta.tool_calls]
    assert (pieces[0].id, pieces[0].name) == (call_id, "weather")
    assert "".join(piece.arguments_json for piece in pieces) == CITY
    assert (end.finish_reason, end.stop_token_id) == (types_pb2.FINISH_REASON_TOOL_CALLS, 1)
    token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
    assert token_ids == [token_id for event in played.events for token_id in event.chunk.token_ids]
    assert token_ids == [each.token.token_id for delta in deltas for each in delta.logprobs]
    # A stored request and its recorded events give the same, with nothing else known.
    rendered = await rig.render.RenderChat(request)
    params = render_pb2.DerenderParams(text_params=rendered.text_params)
    messages = [
        render_pb2.DerenderRequest(params=params),
        *(render_pb2.DerenderRequest(event=event) for event in played.events),
    ]
    again, again_end = await read(rig.render.Derender(iter(messages)))
    assert again == deltas
    assert again_end.tool_calls == end.tool_calls


async def test_the_tools_schemas_tell_strings_from_json_wherever_the_output_is_read(
    make_rig: MakeRig, tmp_path: Path
) -> None:
    values = {"zip": "3011", "note": "null", "days": "3", "unknown": "null"}
    pairs = [f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in values.items()]
    output = f"</think><tool_call>weather{''.join(pairs)}</tool_call>"
    folder = folder_of(tmp_path, "glm_4_7_flash", DEEPSEEK_TOKENIZER)
    rig, played = await rig_of(make_rig, folder, output)
    optional = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    properties = {"zip": {"type": "string"}, "note": optional, "days": {"type": "integer"}}
    function = {"name": "weather", "parameters": {"type": "object", "properties": properties}}
    request = chat()
    request.tools_json[:] = [json.dumps({"type": "function", "function": function})]
    rendered = await rig.render.RenderChat(request)
    params = render_pb2.DerenderParams(text_params=rendered.text_params)
    _, end = await read(rig.text.Chat(render_pb2.ChatRequest(request=request)))
    messages = [
        render_pb2.DerenderRequest(params=params),
        *(render_pb2.DerenderRequest(event=event) for event in played.events),
    ]
    _, again = await read(rig.render.Derender(iter(messages)))
    for [call] in (end.tool_calls, again.tool_calls):
        assert call.arguments_json == '{"zip": "3011", "note": null, "days": 3, "unknown": null}'


async def test_the_call_s_result_goes_back_into_the_next_prompt(make_rig: MakeRig, tmp_path: Path) -> None:
    rig, _ = await rig_of(make_rig, folder_of(tmp_path, "deepseek_v3_1", DEEPSEEK_TOKENIZER), BARE)
    request = chat(return_prompt_text=True)
    _, end = await read(rig.text.Chat(render_pb2.ChatRequest(request=request)))
    request.messages.add(role="assistant", tool_calls=end.tool_calls)
    request.messages.add(role="tool", content="rain", tool_call_id=end.tool_calls[0].id)
    rendered = await rig.render.RenderChat(request)
    assert BARE in rendered.prompt_text
    assert not rendered.text_params.starts_in_reasoning


@pytest.mark.parametrize(
    "request_",
    [
        chat(continue_final_message=True),
        chat(add_generation_prompt=False),
    ],
    ids=["continued", "closed"],
)
async def test_a_message_that_spells_the_tag_opens_no_reasoning(
    make_rig: MakeRig, tmp_path: Path, request_: render_pb2.RenderChatRequest
) -> None:
    rig = await make_rig(None, folder_of(tmp_path, "deepseek_v3_1", DEEPSEEK_TOKENIZER))
    request_.messages[-1].role = "assistant" if request_.continue_final_message else "user"
    request_.messages[-1].content = "The <think> tag"
    assert not (await rig.render.RenderChat(request_)).text_params.starts_in_reasoning


async def test_a_stop_string_ends_the_text_alone_and_reasoning_is_counted(
    make_rig: MakeRig, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, "deepseek_r1", DEEPSEEK_TOKENIZER)
    rig, _ = await rig_of(make_rig, folder, "I think STOP</think>Here: STOP and on")
    request = chat(text_params=render_pb2.TextParams(stop=["STOP"]))
    deltas, end = await read(rig.text.Chat(render_pb2.ChatRequest(request=request)))
    assert "".join(delta.reasoning_content for delta in deltas) == "I think STOP"
    assert "".join(delta.text for delta in deltas) == "Here: "
    assert end.stop_string == "STOP"
    counts = [rig.tokenizer.encode(each, add_special_tokens=False, field="") for each in
              ("I think STOP</think>", "Here: STOP")]  # fmt: skip
    assert end.usage.reasoning_tokens == len(counts[0])
    assert end.usage.completion_tokens == sum(map(len, counts))


async def test_a_stop_string_in_the_reasoning_ends_the_output_where_asked_for(
    make_rig: MakeRig, tmp_path: Path
) -> None:
    async def script(generation: Generation) -> AsyncIterator[Response]:
        yield admitted()
        for token_id in rig.tokenizer.encode("I think STOP and on", add_special_tokens=False, field="text"):
            yield chunk([token_id])
        await generation.aborted[0].wait()
        yield aborted()

    rig = await make_rig(script, folder_of(tmp_path, "deepseek_r1", DEEPSEEK_TOKENIZER))
    request = chat(text_params=render_pb2.TextParams(stop=["STOP"], stop_in_reasoning=True))
    deltas, end = await read(rig.text.Chat(render_pb2.ChatRequest(request=request)))
    assert "".join(delta.reasoning_content for delta in deltas) == "I think "
    assert not any(delta.text for delta in deltas)
    assert (end.finish_reason, end.stop_string) == (types_pb2.FINISH_REASON_STOP, "STOP")


async def test_a_plain_completion_is_text_whatever_it_holds(make_rig: MakeRig, tmp_path: Path) -> None:
    rig, _ = await rig_of(make_rig, folder_of(tmp_path, "deepseek_v3_1", DEEPSEEK_TOKENIZER), BARE)
    request = render_pb2.RenderCompletionRequest(text="<｜Assistant｜><think>")
    deltas, end = await read(rig.text.Complete(render_pb2.CompleteRequest(request=request)))
    assert "".join(delta.text for delta in deltas) == BARE
    assert (end.finish_reason, len(end.tool_calls)) == (types_pb2.FINISH_REASON_STOP, 0)


async def test_the_chat_command_keeps_reasoning_out_of_the_answer(
    make_rig: MakeRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = "[b]\nSo :smile:</think>\nBern."
    rig, _ = await rig_of(make_rig, folder_of(tmp_path, "deepseek_r1", DEMO_MODEL), output)
    assert await Conversation(rig.text, show_timings=False).say("Where?") == "\nBern."
    shown = capsys.readouterr()
    assert shown.err == "[b]\nSo :smile:"
    assert "smile" not in shown.out


@pytest.mark.parametrize(
    "field",
    [
        {"parser": render_pb2.PARSER_KIMI_K2},
        {"starts_in_reasoning": True},
        {"string_parameters": [render_pb2.StringParameters(function="f")]},
    ],
)
async def test_a_caller_cannot_say_how_the_output_is_read(make_rig: MakeRig, field: dict[str, Any]) -> None:
    rig = await make_rig(None)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.render.RenderChat(chat(text_params=render_pb2.TextParams(**field)))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(caught.value.details()).startswith(f"text_params.{next(iter(field))} is ")


@pytest.mark.parametrize(
    ("text_params", "message"),
    [
        ({"parser": 99}, "PARSER_KIMI_K2"),
        ({"starts_in_reasoning": True}, "params.text_params.starts_in_reasoning is true"),
        (
            {"starts_in_reasoning": True, "parser": render_pb2.PARSER_DEEPSEEK_V3},
            "the parser knows no reasoning",
        ),
        (
            {
                "string_parameters": [render_pb2.StringParameters(function="f")],
                "parser": render_pb2.PARSER_KIMI_K2,
            },
            "params.text_params.string_parameters is set; allowed: unset",
        ),
    ],
)
async def test_a_parser_that_does_not_exist_or_knows_no_reasoning_is_refused(
    make_rig: MakeRig, text_params: dict[str, Any], message: str
) -> None:
    rig = await make_rig(None)
    params = render_pb2.DerenderParams(text_params=render_pb2.TextParams(**text_params))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rig.render.Derender(iter([render_pb2.DerenderRequest(params=params)])).read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert message in str(caught.value.details())
