from services.scheduler.core.batch_planner import plan_running
from services.scheduler.core.request import Request, Sequence


def make_sequence(num_uncomputed_tokens: int) -> Sequence:
    return Request("", "", [0] * num_uncomputed_tokens, 1, (0,), 0.0).sequences[0]


def test_decodes_come_before_prefills_and_get_one_token_each() -> None:
    prefill, *decodes = make_sequence(100), make_sequence(1), make_sequence(1)
    assert plan_running([prefill, *decodes], 10) == [(decodes[0], 1), (decodes[1], 1), (prefill, 8)]


def test_prefills_take_large_chunks_in_order_until_the_budget_is_used_up() -> None:
    first, second, third = (make_sequence(num_tokens) for num_tokens in (5, 9, 7))
    assert plan_running([first, second, third], 8) == [(first, 5), (second, 3)]


def test_nothing_is_planned_without_tokens() -> None:
    assert plan_running([make_sequence(1)], 0) == []
