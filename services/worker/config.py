"""The worker's flags and environment variables."""

from enum import StrEnum
from pathlib import Path

from pydantic import ByteSize, Field, model_validator

from shared.config import ListenAddress, ModelFolder, ServiceConfig
from shared.demo_model import PATH as DEMO_MODEL
from shared.wire import Address

_DEFAULT_CACHE_MEMORY = 2**30


class DeviceChoice(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    MPS = "mps"
    CUDA = "cuda"


class DtypeChoice(StrEnum):
    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class WorkerConfig(ServiceConfig):
    listen: ListenAddress = Field(
        Address("127.0.0.1", 50053), description="Where the service listens, HOST:PORT."
    )
    model: ModelFolder = Field(
        DEMO_MODEL, description="A Hugging Face folder of a DeepSeek-V2 or V3 model. (default: embedded)"
    )
    served_model_name: str | None = Field(
        None, min_length=1, description="The model's name. (default: the folder's)"
    )
    device: DeviceChoice = Field(DeviceChoice.AUTO, description="auto takes an accelerator if there is one.")
    dtype: DtypeChoice = Field(
        DtypeChoice.AUTO, description="Type of weights and cache; auto: what suits checkpoint and device."
    )
    kv_cache_memory: ByteSize | None = Field(
        None, gt=0, description="Bytes for the KV cache, as in 512MiB or 20GB. (default: 1GiB)"
    )
    num_blocks: int | None = Field(None, ge=2, description="Instead: blocks, the null block included.")
    block_size: int = Field(16, ge=1, le=1024, description="Tokens per block.")
    max_num_batched_tokens: int = Field(8192, ge=1, description="Most tokens that one step may compute.")
    max_model_len: int | None = Field(
        None, ge=2, description="Longest prompt plus output. (default: the model's)"
    )
    threads: int | None = Field(
        None, ge=1, description="CPU threads. (default: the cores this process may use)"
    )
    step_overdue_seconds: float = Field(
        600.0, gt=0, description="A pass that takes longer turns readiness to NOT_SERVING until it returns."
    )
    poison_cache: bool = Field(
        False, description="To debug: fill unused slots of the cache with NaN before each step."
    )
    record: Path | None = Field(
        None,
        description="To debug: append sessions, steps and results to this file, for `triptych replay`. "
        "It holds the prompts' tokens.",
    )
    tls_allowed_peers: str | None = Field(
        None,
        description="With --tls-client-auth: certificates' names that may open a session, by commas.",
    )

    @model_validator(mode="after")
    def _one_cache_size(self) -> "WorkerConfig":
        if self.kv_cache_memory is not None and self.num_blocks is not None:
            raise ValueError("--kv-cache-memory and --num-blocks exclude each other")
        if self.tls_allowed_peers is not None and not self.tls_client_auth:
            raise ValueError("--tls-allowed-peers needs --tls-client-auth")
        return self

    @property
    def allowed_peers(self) -> frozenset[str] | None:
        """The names that may open a session; None: all."""
        if self.tls_allowed_peers is None:
            return None
        return frozenset(name for each in self.tls_allowed_peers.split(",") if (name := each.strip()))

    @property
    def cache_memory(self) -> int:
        """Bytes for the cache, unless num_blocks is given."""
        return self.kv_cache_memory or _DEFAULT_CACHE_MEMORY
