"""The embedded model remembers what it was told, through three processes, whoever else is asking."""

import grpc
from triptych.v1 import render_pb2, render_pb2_grpc, types_pb2

from shared.demo_model.training.held_out import Question, held_out_questions
from shared.wire import CLIENT_OPTIONS
from tests.e2e.stack import Stack, ask, ask_all

# Histories from 30 to 900 tokens, so that a batch mixes prefill chunks with decodes of all lengths.
_TASKS = ("recall_1", "recall_2", "recall_4", "recall_6", "recall_8", "recall_8_long", "copy_5", "copy_10")
_PER_TASK = 13


def _questions() -> list[Question]:
    """Interleaved: neighbours in the batch have unrelated histories of different lengths."""
    by_task = [held_out_questions(2024, task, _PER_TASK) for task in _TASKS]
    return [question for group in zip(*by_task, strict=True) for question in group]


# The longest test, worth it: whole answers through three processes, batched against alone, show each mix-up
# of requests, blocks and positions that the parts' own tests could miss.
async def test_answers_are_right_and_the_same_32_at_a_time_as_one_at_a_time(stack: Stack) -> None:
    questions = _questions()
    chats = [question.messages for question in questions]
    together = await ask_all(stack, chats, at_once=32)
    alone = await ask_all(stack, chats, at_once=1)

    wrong = [
        (question.task, question.answer, answer.text)
        for question, answer in zip(questions, together, strict=True)
        if answer.text != question.answer
    ]
    assert len(questions) >= 100
    # The model itself is right in 97 to 100 of 100 (README); a mixed-up history would show in most answers.
    assert len(wrong) <= 0.06 * len(questions), wrong
    # fp32 sums differ in their last bits between batch sizes; only a near-tie could show it in greedy tokens.
    different = [i for i in range(len(chats)) if together[i].token_ids != alone[i].token_ids]
    assert len(different) <= 1, [(together[i].text, alone[i].text) for i in different]
    assert {answer.finished.finish_reason for answer in together} == {types_pb2.FINISH_REASON_STOP}


async def test_a_seeded_answer_is_the_same_in_a_crowd_as_alone(stack: Stack) -> None:
    messages = held_out_questions(7, "recall_4", 1)[0].messages
    others = [question.messages for question in _questions()[:24]]
    sampled = {"temperature": 1.5, "top_p": 0.9, "seed": 1234, "max_tokens": 24, "ignore_eos": True}
    (alone,) = await ask_all(stack, [messages], at_once=1, **sampled)
    crowd = await ask_all(stack, [messages, *others], at_once=32, **sampled)
    assert crowd[0].token_ids == alone.token_ids
    assert alone.finished.seed == 1234
    assert alone.finished.finish_reason == types_pb2.FINISH_REASON_LENGTH


async def test_a_conversation_that_goes_on_finds_its_history_in_the_prefix_cache(stack: Stack) -> None:
    question = held_out_questions(8, "recall_8", 1)[0]
    async with grpc.aio.insecure_channel(str(stack.render.address), options=CLIENT_OPTIONS) as channel:
        stub = render_pb2_grpc.TextServiceStub(channel)
        first = await ask(stub, question.messages)
        history = [*question.messages, {"role": "assistant", "content": first.text}]
        second = await ask(stub, [*history, {"role": "user", "content": "Repeat: red blue"}])
    assert second.text == "Sure: red blue"
    assert second.finished.usage.cached_tokens >= first.finished.usage.prompt_tokens // 16 * 16


async def test_every_boundary_accounts_for_its_time(stack: Stack) -> None:
    (answer,) = await ask_all(stack, [[{"role": "user", "content": "My name is Ada."}]], at_once=1)
    finished, timings = answer.finished, answer.finished.timings
    assert 0 < finished.render_seconds < finished.total_seconds
    assert 0 < timings.worker_seconds < timings.total_seconds < finished.total_seconds
    assert 0 < timings.queue_seconds <= timings.ttft_seconds <= timings.total_seconds


async def test_a_stop_string_ends_the_output_everywhere(stack: Stack) -> None:
    messages = [{"role": "user", "content": "Repeat: red blue green black white"}]
    async with grpc.aio.insecure_channel(str(stack.render.address), options=CLIENT_OPTIONS) as channel:
        stub = render_pb2_grpc.TextServiceStub(channel)
        request = render_pb2.RenderChatRequest(
            messages=[
                render_pb2.ChatMessage(role=each["role"], content=each["content"]) for each in messages
            ],
            text_params=render_pb2.TextParams(stop=["green"]),
        )
        text = ""
        async for response in stub.Chat(render_pb2.ChatRequest(request=request)):
            text += response.event.delta.text
            finished = response.event.finished
    assert text == "Sure: red blue "
    assert finished.stop_string == "green"
    assert finished.finish_reason == types_pb2.FINISH_REASON_STOP
    assert finished.timings.total_seconds > 0
