"""The tokenizer, trained on synthetic chats, and chats as rows of token ids to train the model on."""

from itertools import islice

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from shared.demo_model.training.conversations import SYSTEM_PROMPTS, Conversation
from shared.demo_model.training.tasks import Turn
from shared.demo_model.training.values import Values
from shared.demo_model.training.word_lists import EASY_WORDS

SPECIAL_TOKENS = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
)
BOS, EOS, PAD, USER, ASSISTANT = range(len(SPECIAL_TOKENS))
NO_LABEL = -100
# Words with the space before them, single digits, runs of punctuation, white space; nothing is dropped.
_SPLIT = r" ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def train_tokenizer(seed: int, vocab_size: int) -> Tokenizer:
    """Byte-level BPE over 600 chats of 40 turns: any text round-trips, the chats' words are few tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    values = Values(seed)
    texts = list(SYSTEM_PROMPTS) * 20
    for _ in range(600):
        for turn in islice(Conversation(values), 40):
            texts += turn
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class Rows:
    """A seeded source of rows, one chat each, cut before the turn that would not fit and padded."""

    def __init__(self, tokenizer: Tokenizer, seed: int, held_out: bool = False) -> None:
        self._tokenizer = tokenizer
        one_token = [word for word in EASY_WORDS if len(self._encode(" " + word)) == 1]
        pieces = {piece.lstrip("Ġ") for piece in tokenizer.get_vocab()}
        ascii_pieces = sorted(piece for piece in pieces if piece.isascii() and piece.isalpha())
        self.values = Values(seed, held_out, one_token, ascii_pieces)

    def next_row(self, row_len: int) -> tuple[list[int], list[int]]:
        """(input_ids, labels), row_len each: a label is the next token if the model says it."""
        token_ids, labels = [BOS], [NO_LABEL]
        if self.values.chance(0.1):
            system = self._encode(self.values.one_of(SYSTEM_PROMPTS))
            token_ids += system
            labels += [NO_LABEL] * len(system)
        for turn in Conversation(self.values):
            turn_ids, turn_labels = self._encode_turn(turn)
            if len(token_ids) + len(turn_ids) > row_len + 1:
                break
            token_ids += turn_ids
            labels += turn_labels
        missing = row_len + 1 - len(token_ids)
        token_ids += [PAD] * missing
        labels += [NO_LABEL] * missing
        return token_ids[:-1], labels[1:]

    def _encode_turn(self, turn: Turn) -> tuple[list[int], list[int]]:
        """The turn as the chat template renders it, and its labels: NO_LABEL where the user speaks."""
        user = [USER, *self._encode(turn.user), ASSISTANT]
        assistant = [*self._encode(turn.assistant), EOS]
        return user + assistant, [NO_LABEL] * len(user) + assistant

    def _encode(self, text: str) -> list[int]:
        token_ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return token_ids
