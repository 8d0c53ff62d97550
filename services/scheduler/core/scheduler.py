"""Decides what runs: the queue, each worker's running batch, preemption, and what a step's result means.

`schedule` plans a worker's next step; `update` takes its result and returns what happened. Between the two
the step is in flight: a sequence that is aborted then keeps its blocks until the step returns.
"""

from typing import Generic

from services.scheduler.core.batch_planner import plan_running
from services.scheduler.core.events import Event, FailedEvent, FinishedEvent, ScheduledEvent
from services.scheduler.core.kv_cache_manager import KVCacheManager
from services.scheduler.core.load import SchedulerLoad
from services.scheduler.core.placement import can_any_hold, choose_next
from services.scheduler.core.request import FinishReason, Request, RequestStatus, Sequence
from services.scheduler.core.results import apply_result
from services.scheduler.core.scheduler_output import (
    LogprobsT,
    ModelRunnerOutput,
    ScheduledSequence,
    SchedulerOutput,
    SequenceOutput,
)
from services.scheduler.core.waiting_queue import WaitingQueue
from services.scheduler.core.worker_state import WorkerState

# A request that has lost more workers than this fails: it may be the cause.
MAX_MIGRATIONS = 3


class Scheduler(Generic[LogprobsT]):
    """The queue and the workers' batches. Pure: time is an argument, in seconds on any steady clock."""

    def __init__(self, max_num_seqs: int, max_num_batched_tokens: int, priority_aging_seconds: float) -> None:
        """`max_num_seqs` sequences run on each worker; waiting that long raises the priority by one."""
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._workers: dict[int, WorkerState] = {}
        self._waiting = WaitingQueue(priority_aging_seconds)

    # Workers come and go.

    def add_worker(self, worker: int, kv_cache: KVCacheManager, max_num_batched_tokens: int) -> None:
        """A session is open and every block of the worker is empty."""
        budget = min(self._max_num_batched_tokens, max_num_batched_tokens)
        self._workers[worker] = WorkerState(worker, kv_cache, budget, self._max_num_seqs)

    def set_draining(self, worker: int, draining: bool) -> None:
        """A draining worker gets nothing new; what runs there continues."""
        self._workers[worker].is_draining = draining

    def remove_worker(self, worker: int) -> list[Event[LogprobsT]]:
        """The session has ended. Its sequences migrate to other workers.

        Requests that no other worker can hold fail, and so do those that have migrated too often.
        """
        state = self._workers.pop(worker)
        for sequence in list(state.running):
            state.preempt(sequence)
            self._waiting.add(sequence)
            sequence.num_migrations += 1
        message = "the worker was lost, and no other worker could continue the request"
        failed = dict.fromkeys(
            each.request
            for each in self._waiting
            if each.num_migrations > MAX_MIGRATIONS or not can_any_hold(each, self._workers.values())
        )
        for request in failed:
            self._end_all(request)
        return [FailedEvent(request, "WORKER_LOST", message) for request in failed]

    # Requests come and go.

    def add_request(self, request: Request) -> None:
        """Queues it. Its further outputs wait until the first has computed the prompt that they share."""
        self._waiting.add(request.sequences[0])

    def abort(self, request: Request, output_index: int | None = None) -> list[Event[LogprobsT]]:
        """Ends the request or one output, wherever it is; nothing happens to what has ended."""
        sequences = (
            request.sequences if output_index is None else request.sequences[output_index : output_index + 1]
        )
        events: list[Event[LogprobsT]] = []
        for sequence in sequences:
            if not sequence.is_finished:
                self._end(sequence)
                events.append(FinishedEvent(sequence, FinishReason.ABORT))
        self._queue_further_outputs(request)
        return events

    # The loop: schedule, (execute), update.

    def schedule(self, worker: int, now: float) -> tuple[SchedulerOutput | None, list[Event[LogprobsT]]]:
        """The worker's next step; None if it has nothing to do."""
        state = self._workers[worker]
        assert state.in_flight is None, "one step at a time"
        scheduled, has_preempted = self._schedule_running(state)
        events: list[Event[LogprobsT]] = []
        # The blocks that a preemption frees are for what runs: nothing new starts in the same step.
        if not has_preempted:
            events = self._start_waiting(state, now, scheduled)
        return state.begin_step(scheduled), events

    def update(
        self, output: SchedulerOutput, result: ModelRunnerOutput[LogprobsT], now: float
    ) -> list[Event[LogprobsT]]:
        """Applies a step's result; drops the tokens of sequences that ended in flight."""
        state = self._workers[output.worker]
        state.end_step(output)
        for request in dict.fromkeys(each.sequence.request for each in output.scheduled):
            request.worker_seconds += result.worker_seconds
        events: list[Event[LogprobsT]] = []
        for scheduled, sequence_output in zip(output.scheduled, result.sequences, strict=True):
            if not scheduled.sequence.is_finished:
                events += self._update_sequence(state, scheduled, sequence_output, now)
        return events

    # The load.

    @property
    def has_waiting(self) -> bool:
        """Whether any sequence waits for its first step or to resume."""
        return len(self._waiting) > 0

    @property
    def has_serving_worker(self) -> bool:
        """Whether some worker takes new requests."""
        return any(not state.is_draining for state in self._workers.values())

    @property
    def has_idle_room(self) -> bool:
        """Whether nothing waits and a serving worker has room: a new request starts with the next step."""
        return not self.has_waiting and any(
            state.has_room and not state.is_draining for state in self._workers.values()
        )

    def load(self) -> SchedulerLoad:
        running = {request for state in self._workers.values() for request in state.running_requests}
        waiting = {sequence.request for sequence in self._waiting}
        workers = {worker: state.load() for worker, state in self._workers.items()}
        return SchedulerLoad(len(waiting - running), len(running), workers)

    def check_integrity(self) -> None:
        """Each sequence is in one place, and each block table is accounted for."""
        self._waiting.check_integrity()
        for state in self._workers.values():
            state.check_integrity()
        places = [*self._waiting, *(each for state in self._workers.values() for each in state.running)]
        assert len(places) == len(set(places)), "a sequence in two places"

    # Planning.

    def _schedule_running(self, state: WorkerState) -> tuple[list[ScheduledSequence], bool]:
        """Slots for what runs; when blocks run out, the newest of the lowest priority is preempted."""
        scheduled: list[ScheduledSequence] = []
        has_preempted = False
        for sequence, num_tokens in plan_running(state.running, state.max_num_batched_tokens):
            if sequence.status is not RequestStatus.RUNNING:
                continue  # preempted for one before it
            while not state.kv_cache.allocate_slots(sequence, sequence.num_computed_tokens + num_tokens):
                victim = state.choose_victim()
                state.preempt(victim)
                self._waiting.add(victim)
                victim.num_preemptions += 1
                has_preempted = True
                scheduled = [each for each in scheduled if each.sequence is not victim]
                if victim is sequence:
                    break
            else:
                scheduled.append(ScheduledSequence(sequence, sequence.num_computed_tokens, num_tokens))
        return scheduled, has_preempted

    def _start_waiting(
        self, state: WorkerState, now: float, scheduled: list[ScheduledSequence]
    ) -> list[Event[LogprobsT]]:
        """Adds waiting sequences to the step, in order, while tokens, room and blocks last."""
        events: list[Event[LogprobsT]] = []
        token_budget = state.max_num_batched_tokens - sum(each.num_scheduled_tokens for each in scheduled)
        while token_budget > 0 and state.has_room:
            chosen = choose_next(self._waiting, state, self._workers.values())
            if chosen is None:
                break
            sequence, computed_blocks = chosen
            self._waiting.remove(sequence)
            state.start(sequence, computed_blocks)
            request = sequence.request
            if request.first_scheduled_time is None:
                request.first_scheduled_time = now
                request.num_cached_tokens = sequence.num_computed_tokens
                events.append(ScheduledEvent(request))
            num_tokens = min(sequence.num_uncomputed_tokens, token_budget)
            scheduled.append(ScheduledSequence(sequence, sequence.num_computed_tokens, num_tokens))
            token_budget -= num_tokens
        return events

    # Results and ends.

    def _update_sequence(
        self,
        state: WorkerState,
        scheduled: ScheduledSequence,
        output: SequenceOutput[LogprobsT],
        now: float,
    ) -> list[Event[LogprobsT]]:
        events = apply_result(scheduled, output, now)
        match events[-1:]:
            case [FailedEvent(request=request)]:
                self._end_all(request)
                return events
            case [FinishedEvent(sequence=sequence)]:
                state.kv_cache.cache_full_blocks(sequence)
                self._end(sequence)
            case _:
                state.kv_cache.cache_full_blocks(scheduled.sequence)
        self._queue_further_outputs(scheduled.sequence.request)
        return events

    def _queue_further_outputs(self, request: Request) -> None:
        """Once the first output has a token, or has ended, the prompt's full blocks are there to share."""
        first, *others = request.sequences
        if request.has_queued_all or not (first.output_token_ids or first.is_finished):
            return
        request.has_queued_all = True
        for sequence in others:
            if not sequence.is_finished:
                self._waiting.add(sequence)

    def _end_all(self, request: Request) -> None:
        """One failed output fails the whole request."""
        for sequence in request.sequences:
            self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        """Takes it out of wherever it is."""
        if sequence.is_finished:
            return
        sequence.status = RequestStatus.FINISHED
        if sequence.worker is None:
            self._waiting.remove(sequence)
        else:
            self._workers[sequence.worker].end(sequence)
