from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.request import Request, RequestStatus

TOKENS = st.lists(st.integers(0, 9), max_size=12)


@given(TOKENS, TOKENS, st.integers(0, 30), st.integers(0, 30))
def test_tokens_are_read_across_the_border_of_prompt_and_output(
    prompt: list[int], output: list[int], start: int, stop: int
) -> None:
    (sequence,) = Request("", "", tuple(prompt), 1, (0,), 0.0).sequences
    sequence.output_token_ids = output
    assert sequence.token_ids(start, stop) == (prompt + output)[start:stop]


def test_a_request_is_finished_when_all_its_outputs_are() -> None:
    request = Request("", "", [1], 1, (5, 6), 0.0)
    assert [sequence.seed for sequence in request.sequences] == [5, 6]
    for sequence in request.sequences:
        assert not request.is_finished
        sequence.status = RequestStatus.FINISHED
    assert request.is_finished


def test_completion_tokens_count_all_outputs() -> None:
    request = Request("", "", [1], 9, (0, 1), 0.0)
    for sequence in request.sequences:
        sequence.output_token_ids += [7, 7]
    assert request.completion_tokens == 4
