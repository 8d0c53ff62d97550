"""SamplingParams become the worker's SamplingStep, in this file alone.

A parameter that has the same name in both messages is copied by name: a new one needs a default here if the
contract gives it one, and its range in shared/sampling_params.py.
"""

from collections import Counter
from collections.abc import Iterable

from triptych.v1 import types_pb2, worker_pb2

from services.scheduler.core.request import Sequence
from shared.sampling_params import resolve, validate

# What unset means, by types.proto.
_DEFAULTS = types_pb2.SamplingParams(
    temperature=1, top_p=1, min_p=0, presence_penalty=0, frequency_penalty=0, repetition_penalty=1, n=1
)
# But for the seed, which differs between the outputs of a request.
_COPIED = set(types_pb2.SamplingParams.DESCRIPTOR.fields_by_name).intersection(
    worker_pb2.SamplingStep.DESCRIPTOR.fields_by_name
) - {"seed"}


def resolve_params(params: types_pb2.SamplingParams, info: types_pb2.ModelInfo) -> types_pb2.SamplingParams:
    """With the contract's defaults. Raises ServiceError (PARAMETER_OUT_OF_RANGE)."""
    resolved = resolve(params, _DEFAULTS)
    validate(
        resolved,
        vocab_size=info.vocab_size,
        max_logprobs=info.max_logprobs,
        max_model_len=info.max_model_len,
    )
    return resolved


def common_sampling(
    params: types_pb2.SamplingParams, prompt_token_ids: Iterable[int]
) -> worker_pb2.SamplingStep:
    """What all steps of a request have in common; each copies it. `params` is resolved."""
    sampling = worker_pb2.SamplingStep(
        **{field.name: value for field, value in params.ListFields() if field.name in _COPIED}
    )
    if params.repetition_penalty != 1:
        sampling.prompt_token_ids.extend(sorted(set(prompt_token_ids)))
    return sampling


def add_sampling(step: worker_pb2.SequenceStep, common: worker_pb2.SamplingStep, sequence: Sequence) -> None:
    """Samples the sequence's next token from the step's last one."""
    request, output_token_ids = sequence.request, sequence.output_token_ids
    sampling = step.samplings.add()
    sampling.CopyFrom(common)
    sampling.query_index = len(step.token_ids) - 1
    sampling.seed = sequence.seed
    sampling.num_output_tokens = len(output_token_ids)
    if common.repetition_penalty != 1 or common.presence_penalty or common.frequency_penalty:
        sampling.output_token_counts.update(Counter(output_token_ids))
    if len(output_token_ids) < request.min_tokens:
        sampling.banned_token_ids.extend(sorted(request.stop_token_ids))
