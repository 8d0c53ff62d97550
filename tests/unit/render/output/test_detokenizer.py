"""Incremental decoding equals one-shot decoding."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as TokenizerFile
from tokenizers import decoders, models, normalizers

from services.render.output.detokenizer import ByteLevelDetokenizer, DetokenizerFactory, WindowDetokenizer
from services.render.tokenizer.tokenizer import Tokenizer
from tests.support.render_models import DEMO_MODEL, deepseek_tokenizer_, demo_tokenizer

CORPUS = (
    "Grüße, 你好世界! 👩‍👩‍👧 e\u0301 العربية हिन्दी 한국어 "
    "\U0001f3f3\ufe0f\u200d\U0001f308 \x00 \u2028 ｜end｜ 𝒳"
)

# Ids of ordinary, special and unknown tokens, and of bytes that are no characters.
ANY_ID = st.one_of(
    st.integers(0, 300),
    st.integers(0, 1023),
    st.integers(0, 129_279),
    st.integers(127_990, 128_830),
    st.integers(0, 2**32 - 1),
)


@cache
def sentencepiece_like() -> Tokenizer:
    """Spaces as ▁, unknown characters as byte tokens, the decoder that Llama's tokenizer.json has."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁the", "▁a", "b", "▁▁", "é", "你", "�", "."]
    file = TokenizerFile(models.BPE(dict(zip(pieces, range(1000), strict=False)), [], byte_fallback=True))
    file.add_special_tokens(["<s>", "</s>"])
    file.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    file.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return saved(file)


@cache
def wrapped() -> Tokenizer:
    """A byte-level vocabulary whose decoder is not named at the top, so that the general one is used."""
    file = TokenizerFile.from_file(str(DEMO_MODEL / "tokenizer.json"))
    file.decoder = decoders.Sequence([decoders.ByteLevel()])
    return saved(file)


def saved(file: TokenizerFile) -> Tokenizer:
    """Loaded from a file, as at the start."""
    with TemporaryDirectory() as folder:
        file.save(f"{folder}/tokenizer.json")
        return Tokenizer(Path(folder) / "tokenizer.json")


def incremental(tokenizer: Tokenizer, token_ids: list[int], skip_special_tokens: bool) -> str:
    """All deltas, joined."""
    detokenizer = DetokenizerFactory(tokenizer).create(skip_special_tokens=skip_special_tokens)
    text = ""
    for token_id in token_ids:
        text += detokenizer.feed(token_id)
    return text + detokenizer.flush()


@pytest.mark.parametrize("tokenizer", [demo_tokenizer, deepseek_tokenizer_, sentencepiece_like, wrapped])
@given(token_ids=st.lists(ANY_ID, max_size=60), skip_special_tokens=st.booleans())
@settings(max_examples=150, deadline=None)
def test_deltas_join_to_the_one_shot_decoding_for_any_ids(
    tokenizer: object, token_ids: list[int], skip_special_tokens: bool
) -> None:
    assert callable(tokenizer)
    one_shot = tokenizer().decode(token_ids, skip_special_tokens=skip_special_tokens)
    assert incremental(tokenizer(), token_ids, skip_special_tokens) == one_shot


@given(st.lists(st.integers(0, 266), max_size=150))
@settings(max_examples=150, deadline=None)
def test_long_runs_of_byte_tokens_decode_as_a_whole(token_ids: list[int]) -> None:
    one_shot = sentencepiece_like().decode(token_ids, skip_special_tokens=True)
    assert incremental(sentencepiece_like(), token_ids, skip_special_tokens=True) == one_shot


@pytest.mark.parametrize("tokenizer", [demo_tokenizer(), deepseek_tokenizer_()], ids=["demo", "deepseek"])
@given(text=st.one_of(st.text(max_size=40), st.just(CORPUS)))
@settings(max_examples=100, deadline=None)
def test_text_comes_back_and_no_delta_ends_within_a_character(tokenizer: Tokenizer, text: str) -> None:
    token_ids = tokenizer.encode(text, add_special_tokens=False, field="text")
    detokenizer = DetokenizerFactory(tokenizer).create(skip_special_tokens=False)
    so_far = ""
    for token_id in token_ids:
        so_far += detokenizer.feed(token_id)
        assert text.startswith(so_far)
    assert so_far + detokenizer.flush() == text


def byte_ids(data: bytes) -> list[int]:
    """One token for each byte, of the demo tokenizer's alphabet."""
    vocabulary = json.loads((DEMO_MODEL / "tokenizer.json").read_text())
    tokens = DetokenizerFactory(demo_tokenizer()).token_bytes
    assert tokens is not None
    single = {tokens[token_id]: token_id for token_id in vocabulary["model"]["vocab"].values()}
    return [single[bytes([byte])] for byte in data]


def test_nothing_is_sent_while_bytes_may_still_complete_a_character() -> None:
    detokenizer = DetokenizerFactory(demo_tokenizer()).create(skip_special_tokens=True)
    deltas = [detokenizer.feed(token_id) for token_id in byte_ids("👍".encode())]
    assert deltas == ["", "", "", "👍"]


def test_invalid_bytes_do_not_stall_the_stream() -> None:
    detokenizer = DetokenizerFactory(demo_tokenizer()).create(skip_special_tokens=True)
    deltas = [detokenizer.feed(token_id) for token_id in byte_ids(b"\x80\x80\xe4a")]
    assert deltas == ["\ufffd", "\ufffd", "", "\ufffda"]


def test_a_truncated_character_at_the_end_is_flushed_once() -> None:
    detokenizer = DetokenizerFactory(demo_tokenizer()).create(skip_special_tokens=True)
    assert [detokenizer.feed(token_id) for token_id in byte_ids("a你".encode()[:3])] == ["a", "", ""]
    assert detokenizer.has_incomplete_text
    assert (detokenizer.flush(), detokenizer.flush()) == ("\ufffd", "")


@pytest.mark.parametrize("tokenizer", [demo_tokenizer(), sentencepiece_like()], ids=["demo", "sentencepiece"])
@given(texts=st.lists(st.lists(st.integers(3, 266), max_size=20), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_nothing_reaches_across_a_token_that_is_not_decoded(
    tokenizer: Tokenizer, texts: list[list[int]]
) -> None:
    detokenizer = DetokenizerFactory(tokenizer).create(skip_special_tokens=False)
    tag, texts = 1, [[token_id for token_id in ids if token_id > 4] for ids in texts]
    parts = ["".join(map(detokenizer.feed, ids)) + detokenizer.flush_before(tag) for ids in texts]
    one_shot = tokenizer.decode([each for ids in texts for each in [*ids, tag]], skip_special_tokens=False)
    assert parts == one_shot.split(tokenizer.token(tag))[:-1]


def test_what_a_window_decodes_again_stays_small() -> None:
    decoded = []

    class Counting:
        def token(self, token_id: int) -> str | None:
            return sentencepiece_like().token(token_id)

        def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
            decoded.append(len(token_ids))
            return sentencepiece_like().decode(token_ids, skip_special_tokens=skip_special_tokens)

    byte, piece, replacement, tag = 3 + 0xE4, 3 + 256 + 1, 3 + 256 + 7, 1
    detokenizer = WindowDetokenizer(Counting(), frozenset())  # type: ignore[arg-type]
    for token_id in (piece, replacement, tag, byte, piece):
        for _ in range(500):
            if token_id == tag:
                detokenizer.flush_before(tag)
            else:
                detokenizer.feed(token_id)
    # A run of byte tokens is decoded whole, when it ends, and once more when it leaves the window.
    assert sum(decoded) < 2500 * 70
    assert sum(count > 100 for count in decoded) <= 2


def test_each_kind_of_decoder_has_its_detokenizer() -> None:
    kinds = [
        DetokenizerFactory(each).create(skip_special_tokens=True)
        for each in (demo_tokenizer(), sentencepiece_like())
    ]
    assert isinstance(kinds[0], ByteLevelDetokenizer)
    assert isinstance(kinds[1], WindowDetokenizer)
