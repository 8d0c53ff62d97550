"""The workers of the pool as one: one model, and limits that each of them can keep."""

from triptych.v1 import types_pb2

from shared.errors import Reason, ServiceError

# With less a worker could serve nothing: one block is the null block, and a prompt takes one token of the
# context.
_LEAST = {
    "num_blocks": 2,
    "block_size": 1,
    "vocab_size": 1,
    "max_model_len": 2,
    "max_num_batched_tokens": 1,
}


class WorkerPool:
    """The models of the workers whose session is open."""

    def __init__(self) -> None:
        self._infos: dict[int, types_pb2.ModelInfo] = {}

    def add(self, worker: int, info: types_pb2.ModelInfo) -> None:
        """Raises ValueError if the worker serves another model, has another block size, or could serve
        nothing."""
        for field, least in _LEAST.items():
            if getattr(info, field) < least:
                raise ValueError(f"{field} is {getattr(info, field)}; allowed: at least {least}")
        for known in self._infos.values():
            for field in ("model_fingerprint", "tokenizer_fingerprint", "block_size"):
                if getattr(known, field) != getattr(info, field):
                    raise ValueError(
                        f"{field} is {getattr(info, field)!r}; the pool's is {getattr(known, field)!r}"
                    )
        self._infos[worker] = info

    def remove(self, worker: int) -> None:
        self._infos.pop(worker, None)

    def __contains__(self, worker: int) -> bool:
        return worker in self._infos

    @property
    def weight_dtypes(self) -> set[str]:
        """With more than one, an answer depends on the worker that gives it."""
        return {info.weight_dtype for info in self._infos.values()}

    @property
    def vocab_size(self) -> int:
        """Of any worker; there is one."""
        return next(iter(self._infos.values())).vocab_size

    @property
    def block_size(self) -> int:
        return next(iter(self._infos.values())).block_size

    @property
    def max_model_len(self) -> int:
        """What every worker can serve; 0 if there is none."""
        return min(map(_servable_len, self._infos.values()), default=0)

    def model_info(self) -> types_pb2.ModelInfo:
        """Sizes are sums over the workers, limits what each can keep. Raises NO_WORKER if there is none."""
        infos = list(self._infos.values())
        if not infos:
            raise ServiceError(Reason.NO_WORKER, "no worker is ready", retry_after_seconds=1.0)
        merged = types_pb2.ModelInfo()
        merged.CopyFrom(infos[0])
        merged.num_blocks = sum(info.num_blocks for info in infos)
        merged.max_model_len = self.max_model_len
        merged.max_num_batched_tokens = min(info.max_num_batched_tokens for info in infos)
        merged.max_logprobs = min(info.max_logprobs for info in infos)
        return merged


def _servable_len(info: types_pb2.ModelInfo) -> int:
    """The model's limit, or what the cache holds: the null block holds nothing."""
    return min(info.max_model_len, (info.num_blocks - 1) * info.block_size)
