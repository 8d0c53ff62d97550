"""Whether a SamplingStep is valid: the ranges of worker.proto and of SamplingParams."""

from triptych.v1 import worker_pb2

from services.worker.step.malformed import check_ids, check_range, malformed
from shared.sampling_params import FLOAT_RANGES, LOGIT_BIAS_RANGE


def check_sampling(field: str, sampling: worker_pb2.SamplingStep, vocab_size: int, max_logprobs: int) -> None:
    """Raises ServiceError (MALFORMED_STEP) for the first value out of range."""
    for name, bounds in FLOAT_RANGES.items():
        if (value := getattr(sampling, name)) not in bounds:
            malformed(f"{field}.{name}", value, str(bounds))
    last_id = vocab_size - 1
    check_ids(f"{field}.prompt_token_ids", sampling.prompt_token_ids, 0, last_id)
    check_ids(f"{field}.banned_token_ids", sampling.banned_token_ids, 0, last_id)
    for token_id in sampling.output_token_counts:
        check_range(f"{field}.output_token_counts (key)", token_id, 0, last_id)
    for token_id, bias in sampling.logit_bias.items():
        check_range(f"{field}.logit_bias (key)", token_id, 0, last_id)
        if bias not in LOGIT_BIAS_RANGE:
            malformed(f"{field}.logit_bias[{token_id}]", bias, str(LOGIT_BIAS_RANGE))
    if len(sampling.allowed_token_mask) > -(-vocab_size // 8):
        allowed = f"at most {-(-vocab_size // 8)}, a bit for each of vocab_size = {vocab_size}"
        malformed(f"{field}.allowed_token_mask", f"{len(sampling.allowed_token_mask)} bytes", allowed)
    if sampling.HasField("logprobs"):
        check_range(f"{field}.logprobs", sampling.logprobs, 0, max_logprobs)
