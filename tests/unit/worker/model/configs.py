"""Small configurations for tests of single parts."""

from pathlib import Path
from typing import Any

from services.worker.model.configuration import ModelConfig
from shared.model_files import Fields
from tests.support.checkpoint_variants import SIZES


def make_config(architecture: str = "DeepseekV3ForCausalLM", **values: Any) -> ModelConfig:
    """The tests' sizes with some changed, read like any config.json."""
    fields = Fields(Path("config.json"), {**SIZES, "architectures": [architecture], **values})
    return ModelConfig.from_fields(fields, Fields(Path("generation_config.json"), {}))
