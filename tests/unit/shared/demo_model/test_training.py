"""The parts of training that a wrong number would not stop: dispatch, labels, schedule, optimiser, export."""

import json

import pytest

from shared.demo_model import PATH

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
train = pytest.importorskip("shared.demo_model.training.train")
rows = pytest.importorskip("shared.demo_model.training.rows")


@pytest.fixture(scope="module")
def config():
    smaller = {
        "num_hidden_layers": 2,
        "hidden_size": 48,
        "intermediate_size": 64,
        "moe_intermediate_size": 24,
    }
    return json.loads((PATH / "config.json").read_text()) | smaller


@pytest.fixture
def model(config):
    torch.manual_seed(0)
    return train.Model(config)


@pytest.fixture(scope="module")
def tokenizer():
    return rows.Tokenizer.from_file(str(PATH / "tokenizer.json"))


def test_experts_on_their_own_tokens_equal_a_loop_over_tokens_also_backwards(model):
    (moe,) = model.moe_layers()
    torch.nn.init.normal_(moe.shared_experts.down_proj, std=0.1)
    hidden = torch.randn(30, 48, requires_grad=True)
    parameters = [hidden, *moe.parameters()]
    actual = moe(hidden)
    expected = torch.stack([_routed_token(moe, token) for token in hidden]) + moe.shared_experts(hidden)
    torch.testing.assert_close(actual, expected)
    weights = torch.randn_like(actual)
    actual_gradients = torch.autograd.grad((actual * weights).sum(), parameters)
    expected_gradients = torch.autograd.grad((expected * weights).sum(), parameters, materialize_grads=True)
    torch.testing.assert_close(actual_gradients, expected_gradients)
    assert moe.last_load.sum() == 60


def test_labels_are_the_next_token_and_only_what_the_model_says(tokenizer):
    source = rows.Rows(tokenizer, 1)
    for row_len in (64, 200):
        for _ in range(20):
            token_ids, labels = source.next_row(row_len)
            assert len(token_ids) == len(labels) == row_len
            speaks = False
            for token_id, label, following in zip(token_ids, labels, token_ids[1:], strict=False):
                speaks = token_id == rows.ASSISTANT or (speaks and token_id != rows.EOS)
                assert label == (following if speaks else rows.NO_LABEL)


def test_a_run_ends_by_steps_or_by_time_with_the_rate_at_zero():
    schedule = train.Schedule(steps=1000, max_minutes=10)
    assert schedule.progress(500, 1) == 0.5
    assert schedule.progress(500, 8) == 0.8
    assert schedule.progress(500, 11) == schedule.progress(1000, 1) == 1
    assert schedule.rate_factor(999, 1.0) == 0
    assert schedule.rate_factor(0, 0.0) == 0.02
    assert schedule.rate_factor(100, 0.1) == 1
    assert schedule.row_lens(0.0) == (128,)
    assert schedule.row_lens(1.0) == (256, 1024)


def test_an_answer_counts_as_right_only_if_all_its_tokens_are():
    none, eos = rows.NO_LABEL, rows.EOS
    labels = torch.tensor([[none, 7, 8, eos, none, 9, eos], [none, 7, eos, none, none, 8, eos]])
    predicted = torch.tensor([[5, 7, 8, eos, 5, 6, eos], [5, 7, eos, 5, 5, 8, 8]])
    logits = torch.nn.functional.one_hot(predicted, 10).float().flatten(0, 1)
    assert train.share_of_right_answers(lambda _: logits, labels, labels) == 0.5


def test_orthogonalized_matrices_have_singular_values_near_one():
    torch.manual_seed(0)
    for shape in ((20, 50), (50, 20), (3, 20, 20)):
        singular = torch.linalg.svdvals(train._orthogonalize(torch.randn(shape)))
        assert (singular - 1).abs().median() < 0.2
        assert singular.max() < 1.3


def test_steps_lower_the_loss_and_move_the_bias_against_the_load(model, tokenizer):
    batch = train.next_batch(rows.Rows(tokenizer, 1), 4, 64)
    optimizer = train.Optimizer(model)
    losses = []
    for step in range(12):
        loss, answer_loss = train.weighted_loss(model, *batch, user_weight=0.15)
        loss.backward()
        (moe,) = model.moe_layers()
        overloaded = moe.last_load.argmax()
        before = moe.e_score_correction_bias[overloaded].item()
        optimizer.step(0.5)
        assert moe.e_score_correction_bias[overloaded].item() < before, f"step {step}"
        losses.append(answer_loss)
    assert losses[-1] < 0.7 * losses[0]


def test_a_written_checkpoint_loads_in_transformers(model, config, tmp_path):
    train.write_checkpoint(model, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded, info = transformers.DeepseekV3ForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, output_loading_info=True
    )
    assert not any(info[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for name, view in train.checkpoint_tensors(model):
        view.copy_(view if name.endswith("bias") else view.bfloat16())
    input_ids = torch.randint(5, 1024, (2, 40))
    with torch.no_grad():
        expected = loaded(input_ids).logits.flatten(0, 1)
        torch.testing.assert_close(model(input_ids), expected, atol=1e-4, rtol=1e-4)


def _routed_token(moe, token):
    """One token through its experts, as the paper writes it."""
    scores = torch.sigmoid(moe.gate @ token)
    group_size = moe.experts // moe.groups
    groups = [scores[start : start + group_size] for start in range(0, moe.experts, group_size)]
    best = max(range(moe.groups), key=lambda group: groups[group].topk(2).values.sum().item())
    chosen = (groups[best].topk(moe.top_k).indices + best * group_size).tolist()
    total = sum(scores[expert] for expert in chosen)
    output = 0
    for expert in chosen:
        gate, up = (moe.gate_up_proj[expert] @ token).chunk(2)
        down = moe.down_proj[expert] @ (torch.nn.functional.silu(gate) * up)
        output = output + moe.scaling * scores[expert] / total * down
    return output
