"""Requests become token ids, or are refused with the field's path."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as TokenizerFile
from tokenizers.processors import TemplateProcessing
from triptych.v1 import render_pb2, types_pb2

from services.render.model_folder import load_model_folder
from services.render.output.text_params import MAX_STOP_CHARS, MAX_STOP_STRINGS
from services.render.renderer import Renderer
from services.render.template.check import load_chat_template
from services.render.time_limit import time_limit
from services.render.tokenizer.tokenizer import Tokenizer
from shared.errors import Reason, ServiceError
from shared.tokenizer_files import tokenizer_fingerprint
from tests.support.render_models import (
    DEMO_MODEL,
    TEMPLATES,
    deepseek_tokenizer_,
    demo_tokenizer,
    make_folder,
    tokenizer_of,
)

Params = types_pb2.SamplingParams
CONTEXT = 16


def make(folder: Path, tokenizer: Tokenizer | None = None, **options: Any) -> Renderer:
    """A renderer for a folder."""
    model = load_model_folder(folder)
    tokenizer = tokenizer or tokenizer_of(model.tokenizer_file)
    template = load_chat_template(model, tokenizer.control_tokens)
    return Renderer(model, tokenizer, template, **options)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    """Renders for the embedded model."""
    return make(DEMO_MODEL)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    """Renders for a model with a context of 16 tokens."""
    config = {"max_position_embeddings": CONTEXT}
    return make(make_folder(tmp_path_factory.mktemp("small"), config=config))


def chat(content: str = "hi", **fields: Any) -> render_pb2.RenderChatRequest:
    return render_pb2.RenderChatRequest(
        messages=[render_pb2.ChatMessage(role="user", content=content)], **fields
    )


def ids(count: int, **fields: Any) -> render_pb2.RenderCompletionRequest:
    token_ids = render_pb2.TokenIds(ids=[5] * count)
    return render_pb2.RenderCompletionRequest(token_ids=token_ids, **fields)


def refusal(renderer: Renderer, request: Any, prefix: str = "") -> ServiceError:
    """The error of rendering."""
    is_chat = isinstance(request, render_pb2.RenderChatRequest)
    with pytest.raises(ServiceError) as caught:
        (renderer.render_chat if is_chat else renderer.render_completion)(request, prefix)
    return caught.value


def test_a_chat_becomes_a_complete_generate_request(renderer: Renderer) -> None:
    request = chat(
        request_id="r-1",
        priority=-3,
        cache_salt="tenant",
        sampling_params=Params(seed=0, min_tokens=2),
        text_params=render_pb2.TextParams(stop=["END"]),
        return_prompt_text=True,
    )
    response = renderer.render_chat(request)
    rendered = response.generate_request
    assert response.prompt_text == "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜>"
    assert list(rendered.prompt_token_ids)[:2] == [0, 3]
    assert (rendered.request_id, rendered.model, rendered.priority) == ("r-1", "demo_model", -3)
    assert rendered.cache_salt == "tenant"
    assert rendered.tokenizer_fingerprint == tokenizer_fingerprint(DEMO_MODEL)
    assert rendered.sampling_params == Params(temperature=0, seed=0, min_tokens=2)
    assert response.text_params == render_pb2.TextParams(stop=["END"], min_tokens=2)
    assert renderer.render_chat(request) == response, "rendering is a pure function"


def test_the_prompt_s_text_is_returned_only_if_asked_for(renderer: Renderer) -> None:
    assert renderer.render_chat(chat()).prompt_text == ""


def test_zero_is_not_unset_through_rendering(renderer: Renderer) -> None:
    zeros = Params(temperature=0, seed=0, min_p=0, logprobs=0, prompt_logprobs=0, min_tokens=0)
    params = renderer.render_chat(chat(sampling_params=zeros)).generate_request.sampling_params
    assert params == zeros
    assert not params.HasField("max_tokens")
    text_params = render_pb2.TextParams(skip_special_tokens=False)
    kept = renderer.render_chat(chat(text_params=text_params)).text_params
    assert kept.HasField("skip_special_tokens")


@pytest.mark.parametrize("max_tokens", [None, 1, CONTEXT, 2**32 - 1])
@pytest.mark.parametrize("prompt_tokens", [1, CONTEXT - 1, CONTEXT, CONTEXT + 1])
def test_a_prompt_needs_room_for_one_token_whatever_max_tokens_says(
    small: Renderer, prompt_tokens: int, max_tokens: int | None
) -> None:
    request = ids(prompt_tokens, sampling_params=Params(max_tokens=max_tokens))
    if prompt_tokens < CONTEXT:
        rendered = small.render_completion(request).generate_request
        assert len(rendered.prompt_token_ids) == prompt_tokens
        assert rendered.sampling_params == request.sampling_params, (
            "the scheduler cuts a sum over the context"
        )
    else:
        error = refusal(small, request)
        assert (error.reason, error.field) == (Reason.PROMPT_TOO_LONG, "token_ids")
        assert error.metadata == {"prompt_tokens": str(prompt_tokens), "max_model_len": str(CONTEXT)}
        assert str(prompt_tokens) in error.message
        assert str(CONTEXT) in error.message


@pytest.mark.parametrize("max_tokens", [None, 1, CONTEXT])
@pytest.mark.parametrize("prompt_tokens", [1, CONTEXT - 1, CONTEXT, CONTEXT + 1])
def test_a_chat_needs_the_same_room(tmp_path: Path, prompt_tokens: int, max_tokens: int | None) -> None:
    settings = {"chat_template": "{{ messages[0].content }}"}
    folder = make_folder(tmp_path, config={"max_position_embeddings": CONTEXT}, tokenizer_config=settings)
    # A digit is a token.
    request = chat("7" * prompt_tokens, sampling_params=Params(max_tokens=max_tokens))
    if prompt_tokens < CONTEXT:
        rendered = make(folder, demo_tokenizer()).render_chat(request).generate_request
        assert len(rendered.prompt_token_ids) == prompt_tokens
        assert rendered.sampling_params == request.sampling_params
    else:
        error = refusal(make(folder, demo_tokenizer()), request)
        assert (error.reason, error.field) == (Reason.PROMPT_TOO_LONG, "messages")
        assert error.metadata == {"prompt_tokens": str(prompt_tokens), "max_model_len": str(CONTEXT)}


@pytest.mark.parametrize("kind", ["messages", "text"])
def test_a_text_that_cannot_fit_is_refused_by_its_length_before_it_is_tokenized(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"chat_template": "{{ messages[0].content }}"}
    folder = make_folder(tmp_path, config={"max_position_embeddings": CONTEXT}, tokenizer_config=settings)
    renderer = make(folder, demo_tokenizer())

    def request(text: str) -> render_pb2.RenderChatRequest | render_pb2.RenderCompletionRequest:
        return chat(text) if kind == "messages" else render_pb2.RenderCompletionRequest(text=text)

    # The longest token is the first one; nothing shorter than so many of it can be refused.
    longest = demo_tokenizer().token(0) or ""
    most = longest * (CONTEXT - 1)
    if kind == "text":
        rendered = renderer.render(request(most)).generate_request
        assert len(rendered.prompt_token_ids) == CONTEXT - 1

    def never(*_arguments: Any, **_named: Any) -> list[int]:
        raise AssertionError("it is tokenized")

    monkeypatch.setattr(Tokenizer, "encode", never)
    monkeypatch.setattr(Tokenizer, "encode_pieces", never)
    with pytest.raises(AssertionError):
        renderer.render(request(most))
    for num_chars in (len(most) + 1, 20_000_000):
        with pytest.raises(ServiceError) as caught:
            renderer.render(request(" " * num_chars))
        error = caught.value
        assert (error.reason, error.field) == (Reason.PROMPT_TOO_LONG, kind)
        min_tokens = -(-num_chars // len(longest))
        assert error.metadata == {
            "prompt_chars": str(num_chars),
            "min_prompt_tokens": str(min_tokens),
            "max_model_len": str(CONTEXT),
        }
        assert f"{num_chars} characters" in error.message
        assert f"at least {min_tokens} tokens, of {CONTEXT}" in error.message


@pytest.mark.parametrize("prompt_tokens", [1, CONTEXT])
def test_no_tokens_to_generate_is_refused(small: Renderer, prompt_tokens: int) -> None:
    error = refusal(small, ids(prompt_tokens, sampling_params=Params(max_tokens=0)))
    assert (error.reason, error.field) == (Reason.PARAMETER_OUT_OF_RANGE, "sampling_params.max_tokens")


def test_the_scheduler_s_limits_apply_if_they_are_smaller() -> None:
    info = types_pb2.ModelInfo(max_model_len=8, max_logprobs=2)
    renderer = make(DEMO_MODEL, scheduler_info=lambda: info)
    assert renderer.max_model_len == 8
    assert refusal(renderer, ids(8)).reason is Reason.PROMPT_TOO_LONG
    error = refusal(renderer, ids(1, sampling_params=Params(logprobs=3)))
    assert error.field == "sampling_params.logprobs"
    info.max_model_len = 10**6
    assert renderer.max_model_len == 2048


@pytest.mark.parametrize(
    ("request_", "reason", "field"),
    [
        (render_pb2.RenderCompletionRequest(), Reason.EMPTY_PROMPT, "prompt"),
        (render_pb2.RenderCompletionRequest(text=""), Reason.EMPTY_PROMPT, "text"),
        (ids(0), Reason.EMPTY_PROMPT, "token_ids"),
        (ids(1, model="other"), Reason.UNKNOWN_MODEL, "model"),
        (
            render_pb2.RenderCompletionRequest(token_ids=render_pb2.TokenIds(ids=[0, 1023, 1024])),
            Reason.PARAMETER_OUT_OF_RANGE,
            "token_ids.ids[2]",
        ),
        (chat(model="other"), Reason.UNKNOWN_MODEL, "model"),
        (chat("word " * 3000), Reason.PROMPT_TOO_LONG, "messages"),
        (render_pb2.RenderChatRequest(), Reason.PARAMETER_OUT_OF_RANGE, "messages"),
        (
            chat(sampling_params=Params(stop_token_ids=[1, 1024])),
            Reason.PARAMETER_OUT_OF_RANGE,
            "sampling_params.stop_token_ids[1]",
        ),
        (
            chat(sampling_params=Params(logit_bias={10**9: 1})),
            Reason.PARAMETER_OUT_OF_RANGE,
            "sampling_params.logit_bias[1000000000]",
        ),
        (
            chat(text_params=render_pb2.TextParams(stop=["a", ""])),
            Reason.PARAMETER_OUT_OF_RANGE,
            "text_params.stop[1]",
        ),
        (
            chat(text_params=render_pb2.TextParams(stop=["a"] * (MAX_STOP_STRINGS + 1))),
            Reason.PARAMETER_OUT_OF_RANGE,
            "text_params.stop",
        ),
        (
            chat(text_params=render_pb2.TextParams(stop=["a" * MAX_STOP_CHARS, "a"])),
            Reason.PARAMETER_OUT_OF_RANGE,
            "text_params.stop",
        ),
        (
            chat(text_params=render_pb2.TextParams(min_tokens=1)),
            Reason.PARAMETER_OUT_OF_RANGE,
            "text_params.min_tokens",
        ),
        (chat(tools_json=["{}"]), Reason.PARAMETER_OUT_OF_RANGE, "tools_json[0]"),
        (chat(tools_json=["{"]), Reason.INVALID_JSON, "tools_json[0]"),
        (
            chat(continue_final_message_field="content"),
            Reason.PARAMETER_OUT_OF_RANGE,
            "continue_final_message_field",
        ),
    ],
)
def test_each_refusal_names_its_reason_and_the_field_s_path(
    renderer: Renderer, request_: Any, reason: Reason, field: str
) -> None:
    error = refusal(renderer, request_)
    assert (error.reason, error.field) == (reason, field)
    assert refusal(renderer, request_, "request.").field == f"request.{field}"
    assert renderer.render_chat(chat()), "the next request is fine"


def test_a_model_without_a_template_renders_plain_prompts_only(small: Renderer) -> None:
    assert refusal(small, chat()).reason is Reason.NO_CHAT_TEMPLATE
    assert small.render_completion(render_pb2.RenderCompletionRequest(text="hi"))


def test_only_plain_prompts_get_what_the_tokenizer_adds(tmp_path: Path) -> None:
    file = TokenizerFile.from_file(str(DEMO_MODEL / "tokenizer.json"))
    file.post_processor = TemplateProcessing(single="<bos> $0", special_tokens=[("<bos>", 0)])
    template = {"chat_template": "{{ bos_token }}{{ messages[0].content }}"}
    folder = make_folder(tmp_path, tokenizer_config=template)
    file.save(str(folder / "tokenizer.json"))
    renderer = make(folder)
    from_chat = renderer.render_chat(chat("hi")).generate_request.prompt_token_ids
    plain = renderer.render_completion(render_pb2.RenderCompletionRequest(text="hi"))
    assert list(from_chat).count(0) == 1
    assert plain.generate_request.prompt_token_ids == from_chat
    bare = renderer.tokenize(render_pb2.TokenizeRequest(text="hi", add_special_tokens=False))
    assert [0, *bare.token_ids] == list(renderer.tokenize(render_pb2.TokenizeRequest(text="hi")).token_ids)


def test_detokenizing_keeps_special_tokens_unless_told_otherwise(renderer: Renderer) -> None:
    request = render_pb2.DetokenizeRequest(token_ids=[3, 70, 1023])
    assert renderer.detokenize(request).text.startswith("<｜User｜>")
    request.skip_special_tokens = True
    assert "User" not in renderer.detokenize(request).text


def test_an_id_that_the_model_does_not_have_is_not_detokenized_to_nothing(renderer: Renderer) -> None:
    with pytest.raises(ServiceError) as caught:
        renderer.detokenize(render_pb2.DetokenizeRequest(token_ids=[3, 2**32 - 1]))
    assert caught.value.reason is Reason.PARAMETER_OUT_OF_RANGE
    assert caught.value.field == "token_ids[1]"


def test_stages_are_observed() -> None:
    stages: list[str] = []
    renderer = make(DEMO_MODEL, observe=lambda stage, _seconds: stages.append(stage))
    renderer.render_chat(chat())
    assert stages == ["template", "tokenize"]


def test_a_stage_that_did_not_end_is_not_observed() -> None:
    stages: list[str] = []
    renderer = make(DEMO_MODEL, observe=lambda stage, _seconds: stages.append(stage))
    with pytest.raises(InterruptedError), time_limit(-1, InterruptedError()):
        renderer.render_chat(chat())
    assert stages == []


@pytest.mark.parametrize(
    ("style", "parser"),
    [
        ("deepseek_r1", render_pb2.PARSER_DEEPSEEK_R1),
        ("deepseek_v3_1", render_pb2.PARSER_DEEPSEEK_V3_1),
        ("kimi_k2", render_pb2.PARSER_KIMI_K2),
    ],
)
def test_a_continued_answer_goes_on_with_reasoning_if_it_leaves_reasoning_open(
    style: str, parser: render_pb2.Parser.ValueType, tmp_path: Path
) -> None:
    folder = make_folder(
        tmp_path, config={"vocab_size": 200_000}, tokenizer_config={"chat_template": TEMPLATES[style]}
    )
    renderer = make(folder, deepseek_tokenizer_(), parser=parser)

    def goes_on_with_reasoning(**fields: str) -> bool:
        request = chat(
            continue_final_message=True,
            continue_final_message_field="reasoning_content" if "reasoning_content" in fields else "",
        )
        request.messages.add(role="assistant", **fields)
        return renderer.render_chat(request).text_params.starts_in_reasoning

    assert goes_on_with_reasoning(content="<think>\nI")
    assert not goes_on_with_reasoning(content="I")
    assert not goes_on_with_reasoning(content="see <think>I")
    if style != "deepseek_r1":  # which shows no reasoning of earlier turns
        assert goes_on_with_reasoning(reasoning_content="I")


def test_only_reasoning_that_is_there_and_shown_can_be_continued(renderer: Renderer) -> None:
    fields: dict[str, Any] = {
        "continue_final_message": True, "continue_final_message_field": "reasoning_content"
    }  # fmt: skip
    error = refusal(renderer, chat(**fields))
    assert (error.reason, error.field) == (Reason.PARAMETER_OUT_OF_RANGE, "continue_final_message")
    request = chat(**fields)
    request.messages.add(role="assistant", content="x", reasoning_content="because")
    assert refusal(renderer, request).reason is Reason.TEMPLATE_FAILED


def test_the_readme_s_example_of_tools_renders_on_the_embedded_model(renderer: Renderer) -> None:
    tool = {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}},
    }
    call = render_pb2.ToolCall(id="call-0", name="weather", arguments_json='{"city": "Oslo"}')
    request = chat(
        "Weather in Oslo?",
        tools_json=[json.dumps(tool)],
        chat_template_kwargs_json='{"thinking": true}',
        return_prompt_text=True,
    )
    request.messages.add(role="assistant", tool_calls=[call])
    request.messages.add(role="tool", tool_call_id="call-0", content="7 degrees")
    text = renderer.render_chat(request).prompt_text
    for word in ("weather", '{"city": "Oslo"}', "7 degrees"):
        assert word in text
    assert "None" not in text
