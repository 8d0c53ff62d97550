"""Events into text events: text, tokens, log-probabilities and counts agree, at any division."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triptych.v1 import render_pb2, scheduler_pb2, types_pb2

from services.render.output.derenderer import Derenderer
from services.render.output.output_text import OutputTextFactory
from shared.errors import Reason, ServiceError
from shared.sampling_params import MAX_N
from tests.support.fake_scheduler import Response, aborted, admitted, chunk, finished, scheduled
from tests.support.render_models import demo_tokenizer
from tests.unit.render.output.test_detokenizer import byte_ids

STOP = types_pb2.FINISH_REASON_STOP
LENGTH = types_pb2.FINISH_REASON_LENGTH
ABORT = types_pb2.FINISH_REASON_ABORT


def ids_of(text: str) -> list[int]:
    return demo_tokenizer().encode(text, add_special_tokens=False, field="text")


def text_of(token_ids: Sequence[int]) -> str:
    return demo_tokenizer().decode(list(token_ids), skip_special_tokens=True)


def make(wait_for_timings: bool = False, **text_params: Any) -> Derenderer:
    """A derenderer for the demo tokenizer."""
    params = render_pb2.TextParams(**text_params)
    return Derenderer(OutputTextFactory(demo_tokenizer()), params, wait_for_timings=wait_for_timings)


def push_all(derenderer: Derenderer, events: Sequence[Response]) -> list[render_pb2.TextEvent]:
    return [text_event for event in events for text_event in derenderer.push(event)]


def test_a_request_is_admitted_once_and_first() -> None:
    for before in (admitted((1, 2)), chunk([5])):
        derenderer = make()
        derenderer.push(before)
        with pytest.raises(ServiceError) as caught:
            derenderer.push(admitted((1, 2)))
        assert (caught.value.reason, caught.value.field) == (Reason.PARAMETER_OUT_OF_RANGE, "event")


class Result:
    """One output's text events, joined."""

    def __init__(self, events: Sequence[render_pb2.TextEvent], output_index: int = 0) -> None:
        mine = [event for event in events if event.output_index == output_index]
        deltas = [event.delta for event in mine if event.HasField("delta")]
        self.text = "".join(delta.text for delta in deltas)
        self.token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
        self.logprob_ids = [logprobs.token.token_id for delta in deltas for logprobs in delta.logprobs]
        self.ends = [event.finished for event in mine if event.HasField("finished")]
        assert all(delta.text or delta.token_ids for delta in deltas), "no delta is empty"


@st.composite
def divided(draw: st.DrawFn, token_ids: Sequence[int]) -> list[list[int]]:
    """The tokens in chunks of random sizes."""
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(token_ids) - 1)), max_size=6)))
    return [list(token_ids[a:b]) for a, b in zip([0, *cuts], [*cuts, len(token_ids)], strict=True) if a < b]


@given(st.data(), st.lists(st.integers(0, 1100), max_size=40), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_division_into_chunks_gives_the_one_shot_text_and_all_tokens(
    data: st.DataObject, token_ids: list[int], with_logprobs: bool
) -> None:
    chunks = [chunk(each, with_logprobs=with_logprobs) for each in data.draw(divided(token_ids))]
    derenderer = make()
    result = Result(push_all(derenderer, [admitted(), scheduled(), *chunks, finished()]))
    assert result.text == text_of(token_ids)
    assert result.token_ids == token_ids
    assert result.logprob_ids == (token_ids if with_logprobs else [])
    [end] = result.ends
    assert (end.finish_reason, end.usage.completion_tokens) == (LENGTH, len(token_ids))
    assert derenderer.is_complete


@given(
    st.data(),
    st.text("ab 你👍", max_size=25),
    st.lists(st.text("ab 你👍", min_size=1, max_size=3), min_size=1, max_size=3),
    st.booleans(),
    st.integers(0, 10),
)
@settings(max_examples=300, deadline=None)
def test_a_stop_string_keeps_the_tokens_up_to_the_one_that_completes_it(
    data: st.DataObject, text: str, stop: list[str], include: bool, min_tokens: int
) -> None:
    token_ids = ids_of(text)
    chunks = [chunk(each, with_logprobs=True) for each in data.draw(divided(token_ids))]
    derenderer = make(stop=stop, include_stop_in_output=include, min_tokens=min_tokens)
    result = Result(push_all(derenderer, [admitted(), scheduled(), *chunks, finished()]))
    kept, stop_string, num_tokens = one_shot(token_ids, stop, include, min_tokens)
    [end] = result.ends
    assert (result.text, end.stop_string) == (kept, stop_string)
    assert result.token_ids == result.logprob_ids == token_ids[:num_tokens]
    assert end.usage.completion_tokens == num_tokens
    assert end.finish_reason == (STOP if stop_string else LENGTH)
    assert derenderer.take_stopped() == ([0] if stop_string else [])


def one_shot(token_ids: list[int], stop: list[str], include: bool, min_tokens: int) -> tuple[str, str, int]:
    """Kept text, stop string and number of kept tokens, seen from the end."""
    text = text_of(token_ids)
    # Characters that are certain after each number of tokens: an incomplete one at the end is not.
    lengths = [len(text_of(token_ids[:count]).rstrip("\ufffd")) for count in range(len(token_ids) + 1)]
    for end in range(1, len(text) + 1):
        num_tokens = next(count for count, length in enumerate(lengths) if length >= end)
        found = [each for each in stop if text[:end].endswith(each)]
        if found and num_tokens >= min_tokens:
            longest = max(found, key=len)
            return text[: end if include else end - len(longest)], longest, num_tokens
    return text, "", len(token_ids)


def test_a_token_goes_with_the_text_that_it_completes() -> None:
    letter, *half = ids_of("a👍")[:-1]
    rest = ids_of("a👍")[-1]
    events = push_all(make(), [admitted(), chunk([letter, *half]), chunk([rest])])
    assert [(event.delta.text, list(event.delta.token_ids)) for event in events] == [
        ("a", [letter]),
        ("👍", [*half, rest]),
    ]


def test_a_token_that_ends_a_character_and_begins_another_waits_for_the_other() -> None:
    first, second, third = byte_ids(b"\xe4\xe4\xe4")
    events = push_all(make(), [admitted(), chunk([first]), chunk([second]), chunk([third]), finished()])
    deltas = [(event.delta.text, list(event.delta.token_ids)) for event in events[:-1]]
    assert deltas == [("\ufffd", [first]), ("\ufffd", [second]), ("\ufffd", [third])]


def test_the_end_comes_with_the_match_and_later_events_are_dropped() -> None:
    derenderer = make(stop=["STOP"])
    events = push_all(derenderer, [admitted(), scheduled(3), chunk(ids_of("a STOP b"))])
    assert events[-1].finished.stop_string == "STOP"
    assert not events[-1].finished.HasField("timings")
    assert (events[-1].finished.usage.prompt_tokens, events[-1].finished.usage.cached_tokens) == (10, 3)
    assert derenderer.is_complete
    assert push_all(derenderer, [chunk(ids_of("more")), aborted(), finished()]) == []


def test_who_waits_for_timings_gets_the_end_with_the_scheduler_s_own() -> None:
    derenderer = make(wait_for_timings=True, stop=["STOP"])
    events = push_all(derenderer, [admitted(), chunk(ids_of("a STOP"))])
    assert Result(events).ends == []
    assert derenderer.take_stopped() == [0]
    assert derenderer.take_stopped() == []
    assert not derenderer.is_complete
    [event] = push_all(derenderer, [chunk(ids_of("more")), aborted()])
    assert event.finished.finish_reason == STOP
    assert event.finished.stop_string == "STOP"
    assert event.finished.timings.total_seconds == 1.5
    assert event.finished.usage.completion_tokens == len(ids_of("a STOP"))
    assert derenderer.is_complete


def test_an_ending_token_counts_and_is_named() -> None:
    events = push_all(make(), [admitted(), chunk(ids_of("done")), finished(STOP, stop_token_id=1)])
    [end] = Result(events).ends
    assert end.WhichOneof("stop_cause") == "stop_token_id"
    assert (end.stop_token_id, end.seed) == (1, 7)
    assert end.usage.completion_tokens == len(ids_of("done")) + 1


def test_the_ending_token_s_log_probabilities_come_with_the_end() -> None:
    event = finished(STOP, stop_token_id=1)
    event.finished.stop_token_logprobs.token.token_id = 1
    [end] = Result(push_all(make(), [admitted(), event])).ends
    assert end.stop_token_logprobs.token.token_id == 1


def test_token_0_can_end_an_output() -> None:
    [end] = Result(push_all(make(), [admitted(), finished(STOP, stop_token_id=0)])).ends
    assert end.WhichOneof("stop_cause") == "stop_token_id"


def test_text_buffered_for_a_stop_string_is_sent_at_the_end() -> None:
    result = Result(push_all(make(stop=["STOP"]), [admitted(), chunk(ids_of("a ST")), finished(ABORT)]))
    assert result.text == "a ST"
    assert result.ends[0].finish_reason == ABORT


def test_outputs_are_decoded_apart_and_counted_together() -> None:
    first, second = ids_of("👍 one"), ids_of("two 你")
    events = [admitted(seeds=(5, 6))]
    for index in range(max(len(first), len(second))):
        events += [chunk(first[index : index + 1], 0)] if first[index:] else []
        events += [chunk(second[index : index + 1], 1)] if second[index:] else []
    derenderer = make()
    texts = push_all(derenderer, [*events, finished(output_index=1)])
    assert not derenderer.is_complete
    texts += push_all(derenderer, [finished(output_index=0)])
    assert derenderer.is_complete
    assert (Result(texts, 0).text, Result(texts, 1).text) == ("👍 one", "two 你")
    [end] = Result(texts, 0).ends
    assert (end.usage.completion_tokens, end.seed) == (len(first) + len(second), 5)


def test_special_tokens_are_left_out_unless_asked_for() -> None:
    events = [admitted(), chunk([3, *ids_of("hi")]), finished()]
    assert Result(push_all(make(), events)).text == "hi"
    assert Result(push_all(make(skip_special_tokens=False), events)).text == "<｜User｜>hi"


def test_prompt_log_probabilities_pass_through() -> None:
    logprobs = scheduler_pb2.PromptLogprobs(first_position=1)
    [event] = make().push(Response(prompt_logprobs=logprobs))
    assert event.prompt_logprobs == logprobs


def test_an_output_that_does_not_exist_is_refused() -> None:
    derenderer = make()
    derenderer.push(admitted(seeds=(1, 2)))
    with pytest.raises(ServiceError) as caught:
        derenderer.push(chunk([5], output_index=2))
    assert (caught.value.reason, caught.value.field) == (Reason.PARAMETER_OUT_OF_RANGE, "event.output_index")


def test_a_recorded_end_alone_brings_its_own_counts() -> None:
    end = finished()
    end.finished.usage.prompt_tokens = 12
    end.finished.usage.cached_tokens = 4
    [event] = push_all(make(), [end])
    assert (event.finished.usage.prompt_tokens, event.finished.usage.cached_tokens) == (12, 4)


def test_more_log_probabilities_than_tokens_do_no_harm() -> None:
    event = chunk(ids_of("hi"), with_logprobs=True)
    event.chunk.logprobs.add()
    result = Result(push_all(make(), [admitted(), event, Response(), finished()]))
    assert result.logprob_ids == ids_of("hi")


def test_nothing_of_the_prompt_is_ever_in_the_text() -> None:
    # The prompt may end within a character; the decoder starts afresh with the first generated token.
    tail = ids_of("👍")[-1:]
    result = Result(push_all(make(), [admitted(), chunk(tail), chunk(ids_of("hi")), finished()]))
    assert result.text == text_of([*tail, *ids_of("hi")])


def test_more_outputs_than_a_request_can_have_are_refused() -> None:
    make().push(admitted(seeds=range(MAX_N)))
    with pytest.raises(ServiceError, match=f"seeds is {MAX_N + 1} seeds; allowed: at most {MAX_N}") as caught:
        make().push(admitted(seeds=range(MAX_N + 1)))
    assert caught.value.field == "event.admitted.seeds"


def test_an_event_weighs_what_it_may_release() -> None:
    derenderer = make(stop=["a" * 1000])
    waiting = chunk(ids_of("a") * 500)
    assert derenderer.weight(waiting) == waiting.ByteSize()
    push_all(derenderer, [admitted(), waiting])
    end = finished(STOP)
    assert derenderer.weight(end) == end.ByteSize() + 500
    push_all(derenderer, [end])
    assert derenderer.weight(end) == end.ByteSize()
