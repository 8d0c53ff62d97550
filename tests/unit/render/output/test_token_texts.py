"""Log-probabilities carry what their tokens stand for."""

from collections.abc import Callable

import pytest
from triptych.v1 import render_pb2, scheduler_pb2, types_pb2

from services.render.output.derenderer import Derenderer
from services.render.output.output_text import OutputTextFactory
from services.render.tokenizer.tokenizer import Tokenizer
from tests.support.fake_scheduler import Response, admitted, chunk, finished
from tests.support.render_models import deepseek_tokenizer_, demo_tokenizer
from tests.unit.render.output.test_detokenizer import CORPUS, byte_ids, sentencepiece_like, wrapped


def filled(tokenizer: Tokenizer, token_ids: list[int]) -> list[types_pb2.TokenLogprob]:
    positions = [
        types_pb2.PositionLogprobs(token=types_pb2.TokenLogprob(token_id=each)) for each in token_ids
    ]
    OutputTextFactory(tokenizer).token_texts.fill(positions)
    return [position.token for position in positions]


def position_of(*token_ids: int) -> types_pb2.PositionLogprobs:
    first, *others = [types_pb2.TokenLogprob(token_id=each) for each in token_ids]
    return types_pb2.PositionLogprobs(token=first, top=others)


@pytest.mark.parametrize("tokenizer", [demo_tokenizer, deepseek_tokenizer_])
def test_a_text_s_tokens_have_its_bytes_whatever_parts_of_characters_they_are(
    tokenizer: Callable[[], Tokenizer],
) -> None:
    tokens = filled(tokenizer(), tokenizer().encode(CORPUS, add_special_tokens=False, field="text"))
    assert b"".join(token.bytes for token in tokens) == CORPUS.encode()
    assert any("\ufffd" in token.text for token in tokens)


@pytest.mark.parametrize("tokenizer", [sentencepiece_like, wrapped])
def test_tokens_of_other_vocabularies_read_as_they_do_within_a_text(
    tokenizer: Callable[[], Tokenizer],
) -> None:
    text = " the a\u00e9. the b" if tokenizer is sentencepiece_like else " the words 12 a"
    token_ids = tokenizer().encode(text, add_special_tokens=False, field="text")
    tokens = filled(tokenizer(), token_ids)
    joined = "".join(token.text for token in tokens)
    # Llama's normalizer puts a space before the text, which its decoder takes off again.
    assert joined == (" " + text if tokenizer is sentencepiece_like else text)
    assert [token.bytes.decode() for token in tokens] == [token.text for token in tokens]


def test_half_a_character_has_its_bytes_and_a_replacement_as_text() -> None:
    first, *_ = filled(demo_tokenizer(), byte_ids("你".encode()))
    assert (first.text, first.bytes) == ("\ufffd", "你".encode()[:1])
    [token] = filled(sentencepiece_like(), [3 + 0xE4])
    assert (token.text, token.bytes) == ("\ufffd", b"\xe4")
    [token] = filled(sentencepiece_like(), [3 + 0x41])
    assert (token.text, token.bytes) == ("A", b"A")


def test_special_tokens_have_their_spelling_and_unknown_ids_nothing() -> None:
    for tokenizer, token_id in ((demo_tokenizer(), 3), (sentencepiece_like(), 1)):
        special, unknown = filled(tokenizer, [token_id, 2**32 - 1])
        assert (special.text, special.bytes) == (
            tokenizer.token(token_id),
            str(tokenizer.token(token_id)).encode(),
        )
        assert (unknown.text, unknown.bytes) == ("", b"")


@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_tokens_and_alternatives_are_described_wherever_log_probabilities_are_sent(
    skip_special_tokens: bool,
) -> None:
    token_id, special = demo_tokenizer().encode("a", add_special_tokens=False, field="text")[0], 3
    prompt = Response(
        prompt_logprobs=scheduler_pb2.PromptLogprobs(positions=[position_of(token_id, special)])
    )
    delta = chunk([token_id, special])
    delta.chunk.logprobs.extend([position_of(token_id, special), position_of(special, token_id)])
    end = finished(types_pb2.FINISH_REASON_STOP, stop_token_id=special)
    end.finished.stop_token_logprobs.CopyFrom(position_of(special, token_id))
    params = render_pb2.TextParams(skip_special_tokens=skip_special_tokens)
    derenderer = Derenderer(OutputTextFactory(demo_tokenizer()), params)
    given = [admitted(), prompt, delta, end]
    sent = [event for each in given for event in derenderer.push(each)]
    positions = [
        *sent[0].prompt_logprobs.positions,
        *(position for event in sent for position in event.delta.logprobs),
        sent[-1].finished.stop_token_logprobs,
    ]
    spelling = demo_tokenizer().token(special)
    texts = [(position.token.text, *(each.text for each in position.top)) for position in positions]
    assert texts == [("a", spelling), ("a", spelling), (spelling, "a"), (spelling, "a")]
    assert all(each.bytes == each.text.encode() for position in positions for each in position.top)
    assert not delta.chunk.logprobs[0].token.text, "what came in stays as it is"
