"""The committed checkpoint: a valid Hugging Face folder whose numbers our training forward reproduces."""

import json
import random
from itertools import islice

import pytest
from tokenizers import Tokenizer

from shared.demo_model import PATH
from shared.demo_model.training.conversations import Conversation
from shared.demo_model.training.held_out import held_out_questions
from shared.demo_model.training.values import Values

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
train = pytest.importorskip("shared.demo_model.training.train")

# fp32 on both sides, from the same weights; logits reach about 25, so this is 3e-5 of the largest.
LOGIT_TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def reference():
    return transformers.DeepseekV3ForCausalLM.from_pretrained(PATH, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(PATH)


@pytest.fixture(scope="module")
def ours():
    model = train.Model(json.loads((PATH / "config.json").read_text()))
    stored = safetensors.load_file(PATH / "model.safetensors")
    views = dict(train.checkpoint_tensors(model))
    assert views.keys() == stored.keys()
    for name, view in views.items():
        view.copy_(stored[name])
    return model


def test_the_training_forward_gives_the_logits_of_transformers(ours, reference, tokenizer):
    messages = []
    for turn in islice(Conversation(Values(5, held_out=True)), 30):
        messages += [
            {"role": "user", "content": turn.user},
            {"role": "assistant", "content": turn.assistant},
        ]
    input_ids = tokenizer.apply_chat_template(messages, return_tensors="pt", return_dict=False)
    assert 400 < input_ids.shape[1] < 1024
    with torch.no_grad():
        expected = reference(input_ids).logits[0]
        actual = ours(input_ids)
        selected = ours(input_ids, torch.tensor([0, 7, 300]))
    assert (actual - expected).abs().max().item() < LOGIT_TOLERANCE
    assert torch.equal(actual.argmax(-1), expected.argmax(-1))
    assert (selected - actual[[0, 7, 300]]).abs().max().item() < LOGIT_TOLERANCE


@pytest.mark.parametrize("task", ["recall_1", "recall_4", "copy_5", "reverse_3", "count", "unknown_0"])
def test_transformers_answers_held_out_questions_greedily(task, reference, tokenizer):
    questions = held_out_questions(20, task, 4)
    right = [_greedy_answer(reference, tokenizer, question) == question.answer for question in questions]
    assert sum(right) >= 3


def test_weights_are_bf16_and_the_routers_bias_is_fp32():
    stored = safetensors.load_file(PATH / "model.safetensors")
    for name, tensor in stored.items():
        assert tensor.dtype == (torch.float32 if name.endswith("e_score_correction_bias") else torch.bfloat16)
    assert (PATH / "model.safetensors").stat().st_size < 6_000_000


def test_the_chat_template_renders_the_marked_messages_and_nothing_else(tokenizer):
    messages = [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": "Hi\n"},
        {"role": "assistant", "content": "Hello! How can I help?"},
        {"role": "user", "content": "Repeat: a"},
    ]
    expected = (
        "<｜begin▁of▁sentence｜> Be brief. <｜User｜>Hi\n<｜Assistant｜>Hello! How can I help?"
        "<｜end▁of▁sentence｜><｜User｜>Repeat: a"
    )
    assert tokenizer.apply_chat_template(messages, tokenize=False) == expected
    with_prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert with_prompt == expected + "<｜Assistant｜>"


def test_special_tokens_have_the_ids_that_the_config_names(tokenizer):
    config = json.loads((PATH / "config.json").read_text())
    for name in ("bos_token", "eos_token", "pad_token"):
        assert tokenizer.convert_tokens_to_ids(getattr(tokenizer, name)) == config[f"{name}_id"]
    assert len(tokenizer) == config["vocab_size"]


def test_generation_defaults_are_greedy_and_leave_the_length_to_the_caller():
    defaults = json.loads((PATH / "generation_config.json").read_text())
    assert defaults["do_sample"] is False
    assert "max_new_tokens" not in defaults


def test_any_text_survives_the_tokenizer():
    tokenizer = Tokenizer.from_file(str(PATH / "tokenizer.json"))
    source = random.Random(1)
    texts = [_random_text(source) for _ in range(2000)]
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    assert [tokenizer.decode(text.ids) for text in encoded] == texts


def _random_text(source: random.Random) -> str:
    """Up to 40 characters: ASCII, white space, other scripts, emoji; all that UTF-8 can carry."""
    ranges = ((32, 127), (9, 14), (0xA0, 0x3000), (0x3000, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000))
    return "".join(chr(source.randrange(*source.choice(ranges))) for _ in range(source.randrange(1, 40)))


def _greedy_answer(model, tokenizer, question) -> str:
    prompt = tokenizer.apply_chat_template(
        list(question.messages), add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    output = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=80)
    return tokenizer.decode(output[0, prompt.shape[1] :], skip_special_tokens=True)
