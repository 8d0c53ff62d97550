"""Whether a SamplingStep is valid: the ranges of worker.proto and of SamplingParams."""

import math

from triptych.v1 import worker_pb2

from services.worker.step.malformed import check_ids, check_range, malformed


def check_sampling(field: str, sampling: worker_pb2.SamplingStep, vocab_size: int, max_logprobs: int) -> None:
    """Raises ServiceError (MALFORMED_STEP) for the first value out of range."""
    _check_numbers(field, sampling)
    last_id = vocab_size - 1
    check_ids(f"{field}.prompt_token_ids", sampling.prompt_token_ids, 0, last_id)
    check_ids(f"{field}.banned_token_ids", sampling.banned_token_ids, 0, last_id)
    for token_id in sampling.output_token_counts:
        check_range(f"{field}.output_token_counts (key)", token_id, 0, last_id)
    for token_id, bias in sampling.logit_bias.items():
        check_range(f"{field}.logit_bias (key)", token_id, 0, last_id)
        check_range(f"{field}.logit_bias[{token_id}]", bias, -100, 100)
    if len(sampling.allowed_token_mask) > -(-vocab_size // 8):
        allowed = f"at most {-(-vocab_size // 8)}, a bit for each of vocab_size = {vocab_size}"
        malformed(f"{field}.allowed_token_mask", f"{len(sampling.allowed_token_mask)} bytes", allowed)
    if sampling.HasField("logprobs"):
        check_range(f"{field}.logprobs", sampling.logprobs, 0, max_logprobs)


def _check_numbers(field: str, sampling: worker_pb2.SamplingStep) -> None:
    if not (0 <= sampling.temperature < math.inf):
        malformed(f"{field}.temperature", sampling.temperature, "finite numbers from 0")
    if not (0 < sampling.top_p <= 1):
        malformed(f"{field}.top_p", sampling.top_p, "above 0, up to 1")
    check_range(f"{field}.min_p", sampling.min_p, 0, 1)
    check_range(f"{field}.presence_penalty", sampling.presence_penalty, -2, 2)
    check_range(f"{field}.frequency_penalty", sampling.frequency_penalty, -2, 2)
    if not (0 < sampling.repetition_penalty < math.inf):
        malformed(f"{field}.repetition_penalty", sampling.repetition_penalty, "finite numbers above 0")
