"""One rule of the scheduling policy each, on loads small enough to follow by hand."""

from collections.abc import Sequence as ImmutableSequence

import pytest

from services.scheduler.core.prefix_cache import HashBlock
from services.scheduler.core.request import FinishReason, Request, RequestStatus
from services.scheduler.core.scheduler import MAX_MIGRATIONS
from services.scheduler.core.scheduler_output import SchedulerOutput
from tests.support.fake_worker_core import undisturbed_output
from tests.unit.scheduler.core.cluster import Cluster, constant_hash, one_byte_hash


def scheduled(output: SchedulerOutput | None) -> list[tuple[Request, int]]:
    """Which request gets how many tokens."""
    assert output is not None
    return [(each.sequence.request, each.num_scheduled_tokens) for each in output.scheduled]


def statuses(*requests: Request) -> list[RequestStatus]:
    return [request.sequences[0].status for request in requests]


def stop_token(prompt: ImmutableSequence[int], place: int) -> int:
    """The token that a request with this prompt generates there."""
    return undisturbed_output(Request("", "", prompt, place + 1, (0,), 0.0), 0)[0][place]


# Ends.


def test_an_output_ends_with_length_and_its_last_token_is_delivered() -> None:
    cluster = Cluster(10)
    request = cluster.add([1, 2, 3], max_tokens=5)
    assert cluster.run() == 5
    assert len(cluster.tokens(request)) == 5
    assert cluster.transcripts[request].finish_reasons == {0: FinishReason.LENGTH}
    cluster.check_ended()


def test_a_stop_token_ends_the_output_counts_and_is_not_delivered() -> None:
    cluster = Cluster(10)
    request = cluster.add([1, 2, 3], max_tokens=9, stop_token_ids=frozenset([stop_token([1, 2, 3], 2)]))
    cluster.run()
    assert cluster.transcripts[request].finish_reasons == {0: FinishReason.STOP}
    assert (len(cluster.tokens(request)), request.completion_tokens) == (2, 3)


@pytest.mark.parametrize(("min_tokens", "reason"), [(2, FinishReason.STOP), (3, FinishReason.LENGTH)])
def test_no_stop_token_ends_an_output_before_min_tokens(min_tokens: int, reason: FinishReason) -> None:
    cluster = Cluster(10)
    stop_token_ids = frozenset([stop_token([1, 2, 3], 2)])
    request = cluster.add([1, 2, 3], 3, stop_token_ids=stop_token_ids, min_tokens=min_tokens)
    cluster.run()
    assert cluster.transcripts[request].finish_reasons == {0: reason}


def test_one_failed_output_fails_its_request_and_no_other() -> None:
    cluster = Cluster(20)
    failed, other = cluster.add([1, 2, 3], n=2), cluster.add([4, 5, 6])
    cluster.step()
    cluster.begin()
    cluster.finish(failing=0)
    failure = cluster.transcripts[failed].failure
    assert failure is not None
    assert failure.reason == "SEQUENCE_FAILED"
    cluster.run()
    cluster.check_ended()
    assert cluster.transcripts[other].failure is None


def test_a_failed_sequence_caches_nothing() -> None:
    cluster = Cluster(20)
    cluster.add(range(9))
    cluster.begin()
    cluster.finish(failing=0)
    again = cluster.add(range(9))
    cluster.run()
    assert again.num_cached_tokens == 0


# Order and budget.


def test_decodes_get_their_tokens_before_a_long_prefill() -> None:
    cluster = Cluster(40, max_num_batched_tokens=10)
    short = cluster.add([1, 2], max_tokens=8)
    cluster.step()
    long = cluster.add(range(30))
    for _ in range(3):
        assert scheduled(cluster.step()) == [(short, 1), (long, 9)]


def test_a_stream_of_prompts_does_not_starve_a_prefill_that_runs() -> None:
    cluster = Cluster(100, max_num_batched_tokens=8, max_num_seqs=4)
    long = cluster.add(range(50))
    for priority in range(20):
        cluster.add(range(20, 30), priority=priority)
        cluster.step()
        if cluster.tokens(long):
            break
    assert cluster.tokens(long)


def test_no_more_sequences_run_than_a_step_has_tokens() -> None:
    cluster = Cluster(20, max_num_seqs=8, max_num_batched_tokens=2)
    for _ in range(5):
        cluster.add([1])
    cluster.step()
    assert len(cluster.running()) == 2
    cluster.run()


def test_admission_follows_priority_and_age() -> None:
    cluster = Cluster(20, max_num_seqs=1, aging_seconds=10)
    old = cluster.add([1], max_tokens=1, arrival_time=-30)
    high = cluster.add([2], max_tokens=1, arrival_time=0, priority=2)
    low = cluster.add([3], max_tokens=1, arrival_time=0)
    order = [scheduled(cluster.step())[0][0] for _ in range(3)]
    assert order == [old, high, low]


def test_a_higher_priority_does_not_stop_what_runs() -> None:
    cluster = Cluster(20, max_num_seqs=1)
    running = cluster.add([1])
    cluster.step()
    high = cluster.add([2], priority=9)
    cluster.step()
    assert statuses(running, high) == [RequestStatus.RUNNING, RequestStatus.WAITING]


# Blocks and preemption.


def test_the_newest_of_the_lowest_priority_is_preempted() -> None:
    cluster = Cluster(8, block_size=1, max_num_seqs=3)
    oldest = cluster.add([1], max_tokens=6, priority=-5)
    newest_low, newest = cluster.add([2], max_tokens=6), cluster.add([3], max_tokens=6, priority=1)
    while not cluster.scheduler.has_waiting or not cluster.running():
        cluster.step()
    assert statuses(oldest, newest_low, newest) == [
        RequestStatus.RUNNING,
        RequestStatus.PREEMPTED,
        RequestStatus.RUNNING,
    ]
    cluster.run()
    assert [each.sequences[0].num_preemptions > 0 for each in (oldest, newest_low)] == [False, True]


def test_nothing_new_starts_in_a_step_that_preempts() -> None:
    cluster = Cluster(8, block_size=1, max_num_seqs=2)
    oldest, _ = cluster.add([1], max_tokens=6), cluster.add([2], max_tokens=6)
    for _ in range(3):
        cluster.step()
    waiting = cluster.add([3], priority=9)
    assert scheduled(cluster.step()) == [(oldest, 1)]
    assert scheduled(cluster.step()) == [(oldest, 1), (waiting, 1)]


@pytest.mark.parametrize("num_usable", range(7, 12))
def test_a_preempted_output_goes_on_from_exactly_its_tokens(num_usable: int) -> None:
    cluster = Cluster(num_usable + 1, block_size=2)
    older, newer = cluster.add(range(5), max_tokens=9), cluster.add(range(7, 13), max_tokens=7)
    cluster.run()
    cluster.check_ended()
    assert older.sequences[0].num_preemptions == 0
    assert newer.sequences[0].num_preemptions > 0


def test_two_long_prompts_in_a_pool_for_one_run_one_after_the_other() -> None:
    cluster = Cluster(7, block_size=2, max_num_batched_tokens=4)
    requests = [cluster.add(range(start, start + 10), max_tokens=2) for start in (0, 50)]
    cluster.run(max_rounds=20)
    assert [each.sequences[0].num_preemptions for each in requests] == [0, 0]


def test_a_request_may_fill_the_whole_pool() -> None:
    cluster = Cluster(4, block_size=4)
    request = cluster.add(range(8), max_tokens=5)
    cluster.run()
    assert cluster.transcripts[request].finish_reasons == {0: FinishReason.LENGTH}


# The prefix cache.


@pytest.mark.parametrize("prompt_len", [1, 15, 16, 17, 31, 32, 33])
def test_the_second_of_two_equal_prompts_computes_at_least_its_last_token(prompt_len: int) -> None:
    cluster = Cluster(10, block_size=16)
    for num_cached_tokens in (0, (prompt_len - 1) // 16 * 16):
        request = cluster.add(range(prompt_len))
        cluster.run()
        assert request.num_cached_tokens == num_cached_tokens
    cluster.check_ended()


@pytest.mark.parametrize("chunk_len", [1, 3, 16, 17, 64])
def test_chunks_of_any_length_give_the_same_output(chunk_len: int) -> None:
    cluster = Cluster(10, block_size=16, max_num_batched_tokens=chunk_len)
    cluster.add(range(50), prompt_logprobs=0)
    cluster.run()
    cluster.check_ended()


def test_a_generated_text_is_found_by_the_next_turn() -> None:
    cluster = Cluster(20)
    first = cluster.add(range(6), max_tokens=7)
    cluster.run()
    second = cluster.add([*range(6), *cluster.tokens(first), 1])
    cluster.run()
    assert second.num_cached_tokens == 12


def test_prefixes_are_shared_within_a_salt_only() -> None:
    cluster = Cluster(30)
    requests = [cluster.add(range(9), cache_salt=salt) for salt in ("a", "b", "a", "")]
    for _ in requests:
        cluster.run()
    cached = []
    for salt in ("a", "c"):
        request = cluster.add(range(9), cache_salt=salt)
        cluster.run()
        cached.append(request.num_cached_tokens)
    assert cached == [8, 0]


@pytest.mark.parametrize("hash_function", [one_byte_hash, constant_hash])
def test_forced_collisions_change_no_output(hash_function: HashBlock) -> None:
    cluster = Cluster(40, block_size=1, hash_function=hash_function)
    for start in [*range(30), *range(30)]:
        cluster.add(range(start, start + 9), cache_salt=str(start % 2))
        cluster.run()
    cluster.check_ended()


def test_further_outputs_share_the_prompt_that_the_first_computed() -> None:
    cluster = Cluster(20)
    request = cluster.add(range(9), n=3)
    assert scheduled(cluster.step()) == [(request, 9)]
    assert scheduled(cluster.step()) == [(request, 1)] * 3
    cluster.run()
    cluster.check_ended()


# Prompt log-probabilities.


def test_prompt_logprobs_survive_a_preempted_prefill_each_position_once() -> None:
    cluster = Cluster(14, block_size=1, max_num_batched_tokens=4)
    cluster.add([1, 2], max_tokens=12)
    cluster.step()
    prefill = cluster.add(range(7, 16), prompt_logprobs=0)
    cluster.run()
    assert prefill.sequences[0].num_preemptions > 0
    cluster.check_ended()


@pytest.mark.parametrize("num_steps", [0, 1])
def test_prompt_logprobs_come_from_another_output_if_the_first_is_aborted(num_steps: int) -> None:
    cluster = Cluster(20, max_num_batched_tokens=6)
    request = cluster.add(range(9), n=3, prompt_logprobs=0)
    for _ in range(num_steps):
        cluster.step()
    cluster.abort(request, 0)
    cluster.run()
    assert len(cluster.transcripts[request].prompt_logprobs) == 8


# Aborts.


def test_an_abort_ends_what_waits_runs_or_is_in_flight_and_leaves_what_has_ended() -> None:
    cluster = Cluster(20, max_num_seqs=2)
    ended = cluster.add([1], max_tokens=1)
    cluster.run()
    in_flight, running, waiting = cluster.add([2]), cluster.add([3]), cluster.add([4])
    cluster.step()
    assert [cluster.abort(each) for each in (ended, running, waiting)] == [0, 1, 1]
    cluster.begin()
    assert [cluster.abort(in_flight) for _ in range(2)] == [1, 0]
    assert cluster.gauges()[0] == 1
    cluster.finish()
    assert cluster.gauges()[0] == 0
    cluster.check_ended()


def test_an_unknown_request_or_output_is_not_an_error() -> None:
    cluster = Cluster(20)
    assert cluster.abort(cluster.add([1]), output_index=5) == 0
    assert len(cluster.scheduler.abort(Request("", "", [1], 1, (0,), 0.0))) == 1


def test_one_output_aborted_leaves_the_others() -> None:
    cluster = Cluster(20)
    request = cluster.add(range(5), n=3)
    cluster.abort(request, 2)
    cluster.step()
    cluster.begin()
    cluster.abort(request, 0)
    cluster.run()
    reasons = cluster.transcripts[request].finish_reasons
    assert reasons == {0: FinishReason.ABORT, 1: FinishReason.LENGTH, 2: FinishReason.ABORT}


def test_the_late_output_of_an_aborted_request_is_dropped_and_not_cached() -> None:
    cluster = Cluster(20)
    request = cluster.add(range(9))
    cluster.begin()
    cluster.abort(request)
    cluster.finish()
    assert cluster.tokens(request) == []
    assert cluster.gauges() == (0, 0, 19)


# Workers.


def test_load_is_spread_by_tokens_to_compute() -> None:
    cluster = Cluster(40, 40, max_num_batched_tokens=8)
    long, *short = cluster.add(range(60)), cluster.add([1]), cluster.add([2]), cluster.add([3])
    for _ in range(3):
        for worker in cluster.fakes:
            cluster.step(worker)
    assert [each.request for each in cluster.running(0)] == [long]
    assert [each.request for each in cluster.running(1)] == short


def test_a_worker_without_room_does_not_hold_up_the_other() -> None:
    cluster = Cluster(6, 40, block_size=4)
    large = cluster.add(range(18), max_tokens=2)
    cluster.step(0)
    for start in range(30, 50, 5):
        cluster.add(range(start, start + 5), max_tokens=2)
    cluster.begin(0)
    cluster.step(1)
    assert [each.request for each in cluster.running(0)] == [large]
    assert len(cluster.running(1)) == 4


def test_a_lost_worker_s_requests_go_on_elsewhere() -> None:
    cluster = Cluster(20, 20)
    request = cluster.add(range(9), max_tokens=6)
    cluster.step(0)
    cluster.begin(0)
    cluster.remove_worker(0)
    cluster.run()
    cluster.check_ended()
    assert request.sequences[0].num_migrations == 1


def test_a_request_whose_workers_are_lost_again_and_again_fails_before_it_has_had_them_all() -> None:
    cluster = Cluster(*[20] * (MAX_MIGRATIONS + 2))
    request = cluster.add(range(9), max_tokens=6)
    for worker in range(MAX_MIGRATIONS + 1):
        cluster.begin(worker)
        cluster.remove_worker(worker)
    failure = cluster.transcripts[request].failure
    assert failure is not None
    assert failure.reason == "WORKER_LOST"
    cluster.check_ended()


def test_a_worker_that_returns_has_nothing_cached() -> None:
    cluster = Cluster(20)
    for _ in range(2):
        request = cluster.add(range(9))
        cluster.run()
        assert request.num_cached_tokens == 0
        cluster.remove_worker(0)
        cluster.add_worker(0, 20)


def test_without_any_worker_all_requests_fail_once() -> None:
    cluster = Cluster(20, max_num_seqs=1)
    requests = [cluster.add([1], n=3), cluster.add([2])]
    cluster.step()
    cluster.remove_worker(0)
    failures = [cluster.transcripts[request].failure for request in requests]
    assert [failure.reason for failure in failures if failure] == ["WORKER_LOST"] * 2
    cluster.check_ended()


def test_a_request_that_no_remaining_worker_can_hold_fails_and_smaller_ones_go_on() -> None:
    cluster = Cluster(20)
    large, small = cluster.add(range(30)), cluster.add(range(5))
    cluster.step()
    cluster.add_worker(1, 4)
    cluster.remove_worker(0)
    assert cluster.transcripts[large].failure is not None
    cluster.run()
    cluster.check_ended()
    assert cluster.transcripts[small].failure is None


def test_a_worker_too_small_for_the_first_in_the_queue_takes_the_next() -> None:
    cluster = Cluster(20, max_num_seqs=1)
    cluster.add([1], max_tokens=20)
    cluster.step()
    cluster.add(range(30))
    small = cluster.add(range(5))
    cluster.add_worker(1, 4)
    assert scheduled(cluster.step(1)) == [(small, 5)]


def test_a_draining_worker_takes_nothing_new_but_goes_on() -> None:
    cluster = Cluster(20)
    running = cluster.add([1], max_tokens=3)
    cluster.step()
    cluster.scheduler.set_draining(0, True)
    waiting = cluster.add([2])
    while cluster.step():
        pass
    assert statuses(running, waiting) == [RequestStatus.FINISHED, RequestStatus.WAITING]


def test_what_a_draining_worker_preempts_resumes_there_if_there_is_no_other() -> None:
    cluster = Cluster(9, block_size=1)
    for start in (1, 2):
        cluster.add([start], max_tokens=6)
    cluster.step()
    cluster.scheduler.set_draining(0, True)
    cluster.run()
    cluster.check_ended()
    assert sum(each.sequences[0].num_preemptions for each in cluster.transcripts) > 0


# Counts.


def test_times_and_counts_are_those_of_the_request() -> None:
    cluster = Cluster(20)
    request = cluster.add(range(9), max_tokens=3)
    cluster.run()
    assert (request.first_scheduled_time, request.worker_seconds) == (request.first_token_time, 3.0)
    assert cluster.is_idle


def test_the_load_counts_requests_once_and_as_running_if_any_output_runs() -> None:
    cluster = Cluster(20, 9, max_num_seqs=1, max_num_batched_tokens=16)
    cluster.scheduler.set_draining(1, True)
    cluster.add(range(5), max_tokens=9, n=3)
    cluster.add([1])
    cluster.step()
    cluster.step()
    load = cluster.scheduler.load()
    assert (load.num_waiting, load.num_running) == (1, 1)
    first, second = load.workers[0], load.workers[1]
    assert (first.num_running, first.is_draining, first.max_num_batched_tokens) == (1, False, 16)
    assert (first.num_live_blocks, first.num_cached_blocks, first.num_free_blocks) == cluster.gauges(0)
    assert (second.num_running, second.is_draining, second.num_free_blocks) == (0, True, 8)


def test_a_load_is_a_snapshot() -> None:
    cluster = Cluster(20)
    before = cluster.scheduler.load()
    cluster.add([1])
    cluster.step()
    assert (before.num_running, before.workers[0].num_live_blocks) == (0, 0)
    assert cluster.scheduler.load() != before


def test_a_new_request_can_start_at_once_if_nothing_waits_and_a_batch_has_room() -> None:
    cluster = Cluster(20, max_num_seqs=1)
    scheduler = cluster.scheduler
    answers = [scheduler.has_idle_room]
    cluster.add([1])
    answers.append(scheduler.has_idle_room)
    cluster.step()
    answers.append(scheduler.has_idle_room)
    cluster.run()
    answers.append(scheduler.has_idle_room)
    assert answers == [True, False, False, True]


def test_a_draining_worker_is_no_room_for_a_new_request() -> None:
    cluster = Cluster(8, 8)
    cluster.scheduler.set_draining(0, True)
    assert cluster.scheduler.has_idle_room
    cluster.scheduler.set_draining(1, True)
    assert not cluster.scheduler.has_idle_room


def test_only_a_worker_that_does_not_drain_serves() -> None:
    cluster = Cluster(20)
    answers = [cluster.scheduler.has_serving_worker]
    for draining in (True, False):
        cluster.scheduler.set_draining(0, draining)
        answers.append(cluster.scheduler.has_serving_worker)
    cluster.remove_worker(0)
    assert [*answers, cluster.scheduler.has_serving_worker] == [True, False, True, False]
