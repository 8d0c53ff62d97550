"""choose_next: which waiting sequence a worker starts, asked of states made by hand."""

from services.scheduler.core.kv_cache_manager import KVCacheManager
from services.scheduler.core.placement import can_any_hold, choose_next
from services.scheduler.core.request import Request, RequestStatus, Sequence
from services.scheduler.core.worker_state import WorkerState

BLOCK_SIZE = 4


def make_worker(worker: int = 0, num_blocks: int = 11, max_num_seqs: int = 8) -> WorkerState:
    """Holds `num_blocks` - 1 blocks of four tokens."""
    kv_cache = KVCacheManager(num_blocks, BLOCK_SIZE, "a model")
    return WorkerState(worker, kv_cache, max_num_batched_tokens=64, max_num_seqs=max_num_seqs)


def make_sequence(prompt_len: int, start: int = 0) -> Sequence:
    prompt = range(start, start + prompt_len)
    return Request("g", "r", prompt, max_tokens=1, seeds=(0,), arrival_time=0.0).sequences[0]


def chosen(waiting: list[Sequence], worker: WorkerState, *others: WorkerState) -> Sequence | None:
    placement = choose_next(waiting, worker, [worker, *others])
    return placement and placement[0]


def test_the_first_in_the_queue_starts_with_what_the_cache_holds_of_it() -> None:
    worker = make_worker()
    earlier, again, other = make_sequence(9), make_sequence(9), make_sequence(9, start=50)
    worker.start(earlier, [])
    earlier.num_computed_tokens = 9
    worker.kv_cache.cache_full_blocks(earlier)
    placement = choose_next([again, other], worker, [worker])
    assert placement is not None
    assert placement[0] is again
    assert [block.block_id for block in placement[1]] == earlier.block_ids[:2]


def test_nothing_starts_from_an_empty_queue_and_asking_changes_nothing() -> None:
    worker, sequence = make_worker(), make_sequence(9)
    assert chosen([], worker) is None
    assert chosen([sequence], worker) is chosen([sequence], worker) is sequence
    assert (sequence.status, worker.running) == (RequestStatus.WAITING, [])


def test_one_that_does_not_fit_now_is_not_overtaken() -> None:
    worker = make_worker(num_blocks=5)
    worker.start(make_sequence(9), [])
    assert chosen([make_sequence(8, start=50), make_sequence(1)], worker) is None


def test_one_that_never_fits_is_overtaken() -> None:
    small = make_sequence(1)
    assert chosen([make_sequence(90), small], make_worker()) is small


def test_a_worker_with_less_to_compute_and_room_is_better() -> None:
    busy, idle = make_worker(0), make_worker(1)
    busy.start(make_sequence(9), [])
    sequence = make_sequence(5, start=50)
    assert chosen([sequence], busy, idle) is None
    assert chosen([sequence], idle, busy) is sequence


def test_a_worker_without_a_place_or_blocks_is_not_better() -> None:
    busy = make_worker(0, num_blocks=30)
    busy.start(make_sequence(40), [])
    full = make_worker(1, max_num_seqs=1)
    full.start(make_sequence(1), [])
    crowded = make_worker(2, num_blocks=10)
    crowded.start(make_sequence(33), [])
    sequence = make_sequence(5, start=50)
    assert chosen([sequence], busy, full, crowded) is sequence


def test_a_draining_worker_starts_nothing_new_and_resumes_only_what_no_other_can() -> None:
    draining, other, small = make_worker(0), make_worker(1), make_worker(2, num_blocks=2)
    draining.is_draining = True
    new, preempted = make_sequence(9), make_sequence(9)
    preempted.status = RequestStatus.PREEMPTED
    assert chosen([new], draining) is None
    assert chosen([preempted], draining) is preempted
    assert chosen([preempted], draining, small) is preempted
    assert chosen([preempted], draining, other) is None
    assert chosen([preempted], other, draining) is preempted


def test_some_worker_can_hold_it_or_none() -> None:
    workers = [make_worker(0, num_blocks=3), make_worker(1, num_blocks=5)]
    held = [can_any_hold(make_sequence(prompt_len), workers) for prompt_len in (8, 9, 16, 17)]
    assert held == [True, True, True, False]
