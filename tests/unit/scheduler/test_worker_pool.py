"""Pool: one model, and what all of its workers can do."""

import pytest

from services.scheduler.worker_pool import WorkerPool
from shared.errors import Reason, ServiceError
from tests.support.fake_worker_model import make_info


def test_without_a_worker_there_is_no_model() -> None:
    with pytest.raises(ServiceError) as caught:
        WorkerPool().model_info()
    assert caught.value.reason is Reason.NO_WORKER


def test_sizes_are_sums_and_limits_the_smallest() -> None:
    pool = WorkerPool()
    pool.add(0, make_info(num_blocks=100, max_num_batched_tokens=64, max_logprobs=5))
    pool.add(1, make_info(num_blocks=50, max_num_batched_tokens=32, max_logprobs=9))
    info = pool.model_info()
    assert (info.num_blocks, info.max_num_batched_tokens, info.max_logprobs) == (150, 32, 5)
    assert info.max_model_len == 512
    assert pool.vocab_size == 1000


@pytest.mark.parametrize(("num_blocks", "expected"), [(2, 16), (5, 64), (32, 496), (33, 512), (1000, 512)])
def test_the_context_is_the_models_or_what_the_smallest_cache_holds(num_blocks: int, expected: int) -> None:
    pool = WorkerPool()
    pool.add(0, make_info(num_blocks=2000))
    pool.add(1, make_info(num_blocks=num_blocks))
    assert pool.model_info().max_model_len == expected


@pytest.mark.parametrize("field", ["model_fingerprint", "tokenizer_fingerprint"])
def test_a_worker_of_another_model_is_refused_by_name(field: str) -> None:
    pool = WorkerPool()
    pool.add(0, make_info())
    with pytest.raises(ValueError, match=f"{field} is 'other'"):
        pool.add(1, make_info(**{field: "other"}))
    assert pool.model_info().num_blocks == 257


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_blocks", 1),
        ("block_size", 0),
        ("vocab_size", 0),
        ("max_model_len", 1),
        ("max_num_batched_tokens", 0),
    ],
)
def test_a_worker_that_could_serve_nothing_is_refused(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        WorkerPool().add(0, make_info(**{field: value}))


def test_another_model_may_come_when_all_of_the_first_are_gone() -> None:
    pool = WorkerPool()
    pool.add(0, make_info())
    pool.remove(0)
    pool.remove(0)
    pool.add(1, make_info(model_fingerprint="other"))
    assert pool.model_info().model_fingerprint == "other"


def test_a_worker_may_come_back_changed_if_it_is_the_only_one() -> None:
    pool = WorkerPool()
    pool.add(0, make_info())
    pool.remove(0)
    pool.add(0, make_info(num_blocks=10))
    assert pool.model_info().num_blocks == 10


def test_what_is_told_is_a_copy() -> None:
    pool = WorkerPool()
    pool.add(0, make_info())
    pool.model_info().num_blocks = 1
    assert pool.model_info().num_blocks == 257


def test_what_all_workers_share_is_known_while_one_is_there() -> None:
    pool = WorkerPool()
    assert (pool.max_model_len, 0 in pool) == (0, False)
    pool.add(0, make_info(num_blocks=5))
    assert (pool.max_model_len, pool.block_size, 0 in pool) == (64, 16, True)
    pool.remove(0)
    assert (pool.max_model_len, 0 in pool) == (0, False)
