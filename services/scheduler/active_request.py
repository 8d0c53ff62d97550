"""The requests that were admitted and have not ended, and how the core's events reach their callers."""

from collections.abc import Iterable
from time import monotonic

from triptych.v1 import scheduler_pb2, types_pb2, worker_pb2

from services.scheduler import metrics
from services.scheduler.core import events as core
from services.scheduler.core.request import FinishReason, Request, Sequence
from services.scheduler.core.scheduler import Scheduler
from services.scheduler.output_stream import OutputStream
from services.scheduler.step import Logprobs
from shared.errors import Reason, ServiceError


class ActiveRequest:
    """Turns the core's events into messages and measures the times between them."""

    def __init__(self, request: Request, sampling: worker_pb2.SamplingStep, stream: OutputStream) -> None:
        """`sampling`: as sampling.common_sampling makes it."""
        self.request = request
        self.sampling = sampling
        self.stream = stream
        # By output_index.
        self.finish_reasons: dict[int, FinishReason] = {}
        self._last_token_time: dict[int, float] = {}

    @property
    def is_over(self) -> bool:
        """Its last event has been published. (The core's request may be finished earlier: one step can end
        several outputs, and each has its `finished`.)"""
        return self.stream.is_finished

    def admitted(self) -> None:
        request = self.request
        self.stream.put(
            scheduler_pb2.GenerateResponse(
                admitted=scheduler_pb2.RequestAdmitted(
                    generation_id=request.generation_id,
                    seeds=request.seeds,
                    max_tokens=request.max_tokens,
                    prompt_tokens=len(request.prompt_token_ids),
                )
            )
        )
        metrics.PROMPT_TOKENS.inc(len(request.prompt_token_ids))
        metrics.PROMPT_LEN.observe(len(request.prompt_token_ids))

    def publish(self, event: core.Event[Logprobs], now: float) -> bool:
        """False: the caller reads too slowly, and the stream has ended with SLOW_READER."""
        match event:
            case core.ScheduledEvent():
                return self._scheduled()
            case core.PromptLogprobsEvent():
                return self._prompt_logprobs(event)
            case core.TokenEvent():
                return self._token(event, now)
            case core.FinishedEvent():
                return self._finished(event, now)
            case core.FailedEvent():
                self.stream.fail(ServiceError(Reason[event.reason], event.message))
                return True

    def _scheduled(self) -> bool:
        queue_seconds = self._since_arrival(self.request.first_scheduled_time)
        metrics.QUEUE_TIME.observe(queue_seconds)
        metrics.CACHED_TOKENS.inc(self.request.num_cached_tokens)
        event = scheduler_pb2.RequestScheduled(
            cached_tokens=self.request.num_cached_tokens, queue_seconds=queue_seconds
        )
        return self.stream.put(scheduler_pb2.GenerateResponse(scheduled=event))

    def _prompt_logprobs(self, event: core.PromptLogprobsEvent[Logprobs]) -> bool:
        message = scheduler_pb2.PromptLogprobs(first_position=event.first_position, positions=event.positions)
        return self.stream.put(scheduler_pb2.GenerateResponse(prompt_logprobs=message))

    def _token(self, event: core.TokenEvent[Logprobs], now: float) -> bool:
        index = event.sequence.output_index
        self._observe_token(index, now)
        response = scheduler_pb2.GenerateResponse(output_index=index)
        response.chunk.token_ids.append(event.token.token_id)
        if event.token.logprobs is not None:
            response.chunk.logprobs.append(event.token.logprobs)
        return self.stream.put(response)

    def _finished(self, event: core.FinishedEvent[Logprobs], now: float) -> bool:
        sequence = event.sequence
        self.finish_reasons[sequence.output_index] = event.finish_reason
        metrics.PREEMPTIONS.inc(sequence.num_preemptions)
        metrics.FINISHED_OUTPUTS.labels(event.finish_reason.name).inc()
        metrics.OUTPUT_LEN.observe(len(sequence.output_token_ids))
        finished = scheduler_pb2.OutputFinished(
            finish_reason=types_pb2.FinishReason.Value(f"FINISH_REASON_{event.finish_reason.name}"),
            usage=types_pb2.Usage(
                prompt_tokens=len(self.request.prompt_token_ids),
                cached_tokens=self.request.num_cached_tokens,
                completion_tokens=self.request.completion_tokens,
            ),
            timings=self._timings(sequence, now),
        )
        if event.stop_token is not None:
            self._observe_token(sequence.output_index, now)
            finished.stop_token_id = event.stop_token.token_id
            if event.stop_token.logprobs is not None:
                finished.stop_token_logprobs.CopyFrom(event.stop_token.logprobs)
        response = scheduler_pb2.GenerateResponse(output_index=sequence.output_index, finished=finished)
        is_read = self.stream.put(response)
        if len(self.finish_reasons) == len(self.request.sequences):
            self.stream.finish()
        return is_read

    def _observe_token(self, output_index: int, now: float) -> None:
        metrics.COMPLETION_TOKENS.inc()
        last = self._last_token_time.get(output_index)
        if last is not None:
            metrics.ITL.observe(now - last)
        elif not self._last_token_time:
            metrics.TTFT.observe(self._since_arrival(self.request.first_token_time))
        self._last_token_time[output_index] = now

    def _timings(self, sequence: Sequence, now: float) -> types_pb2.RequestTimings:
        return types_pb2.RequestTimings(
            queue_seconds=self._since_arrival(self.request.first_scheduled_time),
            ttft_seconds=self._since_arrival(self.request.first_token_time),
            total_seconds=self._since_arrival(now),
            worker_seconds=self.request.worker_seconds,
            num_preemptions=sequence.num_preemptions,
            num_moves=sequence.num_migrations,
        )

    def _since_arrival(self, time: float | None) -> float:
        """Zero for what has not happened."""
        return 0.0 if time is None else time - self.request.arrival_time


class ActiveRequests:
    """By generation_id, from submission to the last event."""

    def __init__(self, scheduler: Scheduler[Logprobs]) -> None:
        self._scheduler = scheduler
        self._requests: dict[str, ActiveRequest] = {}

    def add(self, active: ActiveRequest) -> None:
        self._requests[active.request.generation_id] = active

    def get(self, generation_id: str) -> ActiveRequest | None:
        return self._requests.get(generation_id)

    def __len__(self) -> int:
        return len(self._requests)

    def sampling_of(self, request: Request) -> worker_pb2.SamplingStep:
        """Of a request that has not ended."""
        return self._requests[request.generation_id].sampling

    def publish(self, events: Iterable[core.Event[Logprobs]]) -> None:
        """Hands each event to its request's stream. A request whose reader is too slow is aborted."""
        now = monotonic()
        for event in events:
            active = self._requests.get(event.request.generation_id)
            if active is None:
                continue  # it has ended with an earlier event of this list
            if not active.publish(event, now):
                self._scheduler.abort(active.request)
            if active.is_over:
                del self._requests[active.request.generation_id]
