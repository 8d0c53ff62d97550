"""Decides what runs: the queue, each worker's running batch, preemption, and what a step's result means.

`schedule` plans a worker's next step; `update` takes its result and returns what happened. Between the two
the step is in flight: what is aborted meanwhile keeps its blocks until the step is back.
"""

from services.scheduler.core.batch_planner import plan_running
from services.scheduler.core.kv_cache_manager import KVCacheManager
from services.scheduler.core.prefix_cache import CachedBlock
from services.scheduler.core.request import FinishReason, Request, RequestStatus, Sequence
from services.scheduler.core.scheduler_output import (
    Event,
    FailedEvent,
    FinishedEvent,
    ModelRunnerOutput,
    PromptLogprobsEvent,
    SampledToken,
    SampleFailure,
    ScheduledEvent,
    ScheduledSequence,
    SchedulerOutput,
    SequenceOutput,
    TokenEvent,
)
from services.scheduler.core.waiting_queue import WaitingQueue
from services.scheduler.core.worker_state import WorkerState

# A request that was on so many lost workers is not given another one.
MAX_MIGRATIONS = 3


class Scheduler:
    """The queue and the workers' batches. Pure: time is an argument, in seconds on any steady clock."""

    def __init__(self, max_num_seqs: int, max_num_batched_tokens: int, priority_aging_seconds: float) -> None:
        """`max_num_seqs` sequences run on each worker; waiting that long raises the priority by one."""
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.workers: dict[int, WorkerState] = {}
        self.waiting = WaitingQueue(priority_aging_seconds)

    # Workers come and go.

    def add_worker(self, worker: int, kv_cache: KVCacheManager, max_num_batched_tokens: int) -> None:
        """A session is open and every block of the worker is empty."""
        budget = min(self.max_num_batched_tokens, max_num_batched_tokens)
        self.workers[worker] = WorkerState(kv_cache, budget, self.max_num_seqs)

    def remove_worker(self, worker: int) -> list[Event]:
        """The session is gone. Its sequences move to other workers.

        Requests that no other can hold fail, and those that have moved too often: it may be they that end
        the sessions.
        """
        state = self.workers.pop(worker)
        for sequence in state.running:
            self._requeue(sequence, state)
            sequence.num_migrations += 1
        message = "the worker was lost, and there is no other one that could go on"
        requests = dict.fromkeys(
            each.request
            for each in self.waiting
            if each.num_migrations > MAX_MIGRATIONS or not self._holders(each)
        )
        return [event for request in requests for event in self._fail(request, "WORKER_LOST", message)]

    # Requests come and go.

    def add_request(self, request: Request) -> None:
        """Queues it. Its further outputs wait until the first has computed the prompt that they share."""
        self.waiting.add(request.sequences[0])

    def abort(self, request: Request, output_index: int | None = None) -> list[Event]:
        """Ends the request or one output, wherever it is; nothing happens to what has ended."""
        sequences = (
            request.sequences if output_index is None else request.sequences[output_index : output_index + 1]
        )
        events: list[Event] = []
        for sequence in sequences:
            if not sequence.is_finished:
                self._end(sequence)
                events.append(FinishedEvent(sequence, FinishReason.ABORT))
        self._queue_further_outputs(request)
        return events

    # The loop: schedule, (execute), update.

    def schedule(self, worker: int, now: float) -> tuple[SchedulerOutput | None, list[Event]]:
        """The worker's next step; None if it has nothing to do."""
        state = self.workers[worker]
        assert state.in_flight is None, "one step at a time"
        scheduled, has_preempted = self._schedule_running(state)
        events: list[Event] = []
        # What a preempted one leaves is for those that run: nobody new comes in its place in the same step.
        if not has_preempted:
            budget = state.max_num_batched_tokens - sum(each.num_scheduled_tokens for each in scheduled)
            events = self._admit_waiting(worker, state, budget, now, scheduled)
        if scheduled:
            state.in_flight = SchedulerOutput(worker, tuple(scheduled))
        return state.in_flight, events

    def update(self, output: SchedulerOutput, result: ModelRunnerOutput, now: float) -> list[Event]:
        """Moves states and blocks by a step's result; drops the tokens of what ended meanwhile."""
        state = self.workers[output.worker]
        assert state.in_flight is output, "the result of another step"
        state.in_flight = None
        for sequence in state.ended_in_flight:
            state.kv_cache.free(sequence)
        state.ended_in_flight.clear()
        for request in dict.fromkeys(each.sequence.request for each in output.scheduled):
            request.worker_seconds += result.worker_seconds
        events: list[Event] = []
        for scheduled, sequence_output in zip(output.scheduled, result.sequences, strict=True):
            if not scheduled.sequence.is_finished:
                events += self._update_sequence(state, scheduled, sequence_output, now)
        return events

    # What is where.

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for their first step or to resume."""
        return len(self.waiting)

    @property
    def num_running(self) -> int:
        """Sequences in the running batches."""
        return sum(len(state.running) for state in self.workers.values())

    def has_place(self) -> bool:
        """Whether some worker's batch has room for one more."""
        return any(state.has_place for state in self.workers.values())

    def check_integrity(self) -> None:
        """Each sequence is in one place, and each block table is accounted for."""
        self.waiting.check_integrity()
        for sequence in self.waiting:
            assert sequence.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED), sequence
            assert sequence.worker is None, sequence
            assert not sequence.block_ids, sequence
            assert sequence.num_computed_tokens == 0, sequence
        for worker, state in self.workers.items():
            assert len(state.running) <= state.max_num_seqs
            for sequence in state.running:
                assert sequence.status is RequestStatus.RUNNING, sequence
                assert sequence.worker == worker, sequence
            state.kv_cache.check_integrity(state.running + state.ended_in_flight)
        places = [*self.waiting] + [each for state in self.workers.values() for each in state.running]
        assert len(places) == len(set(places)), "a sequence in two places"

    # Planning.

    def _schedule_running(self, state: WorkerState) -> tuple[list[ScheduledSequence], bool]:
        """Slots for those that run; when blocks run out, the newest of the lowest priority is preempted."""
        scheduled: list[ScheduledSequence] = []
        has_preempted = False
        for sequence, num_tokens in plan_running(state.running, state.max_num_batched_tokens):
            if sequence.status is not RequestStatus.RUNNING:
                continue  # preempted for one before it
            while not state.kv_cache.allocate_slots(sequence, sequence.num_computed_tokens + num_tokens):
                victim = state.choose_victim()
                self._preempt(victim, state)
                has_preempted = True
                scheduled = [each for each in scheduled if each.sequence is not victim]
                if victim is sequence:
                    break
            else:
                scheduled.append(ScheduledSequence(sequence, sequence.num_computed_tokens, num_tokens))
        return scheduled, has_preempted

    def _admit_waiting(
        self,
        worker: int,
        state: WorkerState,
        token_budget: int,
        now: float,
        scheduled: list[ScheduledSequence],
    ) -> list[Event]:
        """Starts waiting sequences, in order, while tokens, places and blocks last."""
        events: list[Event] = []
        while token_budget > 0 and state.has_place:
            sequence = next((each for each in self.waiting if state in self._takers(each)), None)
            if sequence is None or self._has_better_place(sequence, state):
                break
            computed_blocks = state.kv_cache.get_computed_blocks(sequence)
            if not state.kv_cache.can_admit(sequence, computed_blocks):
                break
            self.waiting.remove(sequence)
            self._start(sequence, worker, state, computed_blocks)
            request = sequence.request
            if request.first_scheduled_time is None:
                request.first_scheduled_time = now
                request.num_cached_tokens = sequence.num_computed_tokens
                events.append(ScheduledEvent(request))
            # All at once: two prefills that each hold half of what they need would only preempt each other.
            has_slots = state.kv_cache.allocate_slots(sequence, sequence.num_tokens)
            assert has_slots, "can_admit promised room"
            num_tokens = min(sequence.num_uncomputed_tokens, token_budget)
            scheduled.append(ScheduledSequence(sequence, sequence.num_computed_tokens, num_tokens))
            token_budget -= num_tokens
        return events

    def _holders(self, sequence: Sequence) -> list[WorkerState]:
        """The workers whose pool is large enough: pools may differ."""
        return [state for state in self.workers.values() if state.kv_cache.can_hold(sequence)]

    def _takers(self, sequence: Sequence) -> list[WorkerState]:
        """The workers that it may run on. Those that drain only go on with what ran, if no other can."""
        holders = self._holders(sequence)
        serving = [state for state in holders if not state.draining]
        return serving if serving or sequence.status is RequestStatus.WAITING else holders

    def _has_better_place(self, sequence: Sequence, state: WorkerState) -> bool:
        """Whether another worker has less to do and could start it now."""
        return any(
            other.num_uncomputed_tokens < state.num_uncomputed_tokens
            and other.has_place
            and other.kv_cache.can_admit(sequence, [])
            for other in self._takers(sequence)
        )

    def _start(
        self, sequence: Sequence, worker: int, state: WorkerState, computed_blocks: list[CachedBlock]
    ) -> None:
        state.kv_cache.adopt(sequence, computed_blocks)
        sequence.status = RequestStatus.RUNNING
        sequence.worker = worker
        state.running.append(sequence)

    def _preempt(self, sequence: Sequence, state: WorkerState) -> None:
        state.running.remove(sequence)
        self._requeue(sequence, state)
        sequence.num_preemptions += 1

    def _requeue(self, sequence: Sequence, state: WorkerState) -> None:
        """Back to the queue, to be recomputed from its tokens."""
        state.kv_cache.free(sequence)
        sequence.status = RequestStatus.PREEMPTED
        sequence.worker = None
        self.waiting.add(sequence)

    # Results.

    def _update_sequence(
        self, state: WorkerState, scheduled: ScheduledSequence, output: SequenceOutput, now: float
    ) -> list[Event]:
        sequence, request = scheduled.sequence, scheduled.sequence.request
        events: list[Event] = []
        if scheduled.wants_prompt_logprobs:
            events += self._report_prompt_logprobs(scheduled, output)
        if isinstance(output.sample, SampleFailure):
            return events + self._fail(request, "SEQUENCE_FAILED", output.sample.message)
        sequence.num_computed_tokens += scheduled.num_scheduled_tokens
        state.kv_cache.cache_full_blocks(sequence)
        if output.sample is not None:
            if request.first_token_time is None:
                request.first_token_time = now
            events += self._append_token(sequence, output.sample)
            self._queue_further_outputs(request)
        return events

    def _append_token(self, sequence: Sequence, token: SampledToken) -> list[Event]:
        """An ending token is counted but does not belong to the output; the last before LENGTH does."""
        request = sequence.request
        is_stop = (
            token.token_id in request.stop_token_ids and len(sequence.output_token_ids) >= request.min_tokens
        )
        sequence.output_token_ids.append(token.token_id)
        if is_stop:
            self._end(sequence)
            return [FinishedEvent(sequence, FinishReason.STOP, token)]
        events: list[Event] = [TokenEvent(sequence, token)]
        if len(sequence.output_token_ids) >= request.max_tokens:
            self._end(sequence)
            events.append(FinishedEvent(sequence, FinishReason.LENGTH))
        return events

    def _report_prompt_logprobs(self, scheduled: ScheduledSequence, output: SequenceOutput) -> list[Event]:
        """Each position once, also when a preempted prefill computes some again."""
        request = scheduled.sequence.request
        first_new = request.num_prompt_logprobs_reported + 1
        num_known = first_new - (scheduled.context_len + 1)
        positions = list(output.prompt_logprobs)[num_known:]
        if not positions:
            return []
        request.num_prompt_logprobs_reported += len(positions)
        return [PromptLogprobsEvent(request, first_new, positions)]

    # Ends.

    def _queue_further_outputs(self, request: Request) -> None:
        """Once the first output has a token, or ended, the prompt's full blocks are there to share."""
        first, *others = request.sequences
        if request.has_queued_all or not (first.output_token_ids or first.is_finished):
            return
        request.has_queued_all = True
        for sequence in others:
            if not sequence.is_finished:
                self.waiting.add(sequence)

    def _fail(self, request: Request, reason: str, message: str) -> list[Event]:
        """One failed output fails the whole request."""
        for sequence in request.sequences:
            self._end(sequence)
        return [FailedEvent(request, reason, message)]

    def _end(self, sequence: Sequence) -> None:
        """Takes it out of wherever it is. Blocks that a step in flight writes are freed when that is back."""
        if sequence.is_finished:
            return
        sequence.status = RequestStatus.FINISHED
        if sequence.worker is None:
            self.waiting.remove(sequence)
            return
        state = self.workers[sequence.worker]
        state.running.remove(sequence)
        if state.is_in_flight(sequence):
            state.ended_in_flight.append(sequence)
        else:
            state.kv_cache.free(sequence)
