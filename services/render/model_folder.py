"""What render needs of a Hugging Face model folder: limits, sampling defaults, special tokens, templates.

Reads JSON files and nothing else: no weights, no torch, no transformers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.v1 import types_pb2

from shared.config import ConfigError
from shared.errors import ServiceError
from shared.model_files import CheckpointError, Fields, eos_token_ids, read_json, read_text
from shared.sampling_params import validate
from shared.tokenizer_files import find_tokenizer_file

DEFAULT_TEMPLATE = "default"

# generation_config.json's name for each default, and ours.
_SAMPLING_DEFAULTS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


@dataclass(frozen=True)
class ModelFolder:
    """A model as render knows it."""

    path: Path
    # tokenizer.json or tiktoken.model.
    tokenizer_file: Path
    # The served name.
    name: str
    # Longest prompt plus output, in tokens.
    max_model_len: int
    # Rows of the output layer; token ids are below it.
    vocab_size: int
    # The union of config and generation_config, ascending.
    eos_token_ids: tuple[int, ...]
    # Only what the folder sets.
    sampling_defaults: types_pb2.SamplingParams
    # Variables of the chat template: bos_token, eos_token and so on, as text.
    special_tokens: Mapping[str, str]
    # Sources by name; DEFAULT_TEMPLATE is the one for ordinary chats. Empty: the model is no chat model.
    chat_templates: Mapping[str, str]


def load_model_folder(path: Path, served_model_name: str = "") -> ModelFolder:
    """Reads the folder. The served name defaults to the folder's. Raises ConfigError with a sentence."""
    try:
        return _load(path, served_model_name)
    except CheckpointError as error:
        raise ConfigError(str(error)) from None


def _load(path: Path, served_model_name: str) -> ModelFolder:
    if not path.is_dir():
        raise CheckpointError(f"the model folder {path} does not exist")
    config = Fields(path / "config.json", read_json(path / "config.json"))
    generation_file = path / "generation_config.json"
    generation_config = read_json(generation_file, required=False)
    tokenizer_config = read_json(path / "tokenizer_config.json", required=False)
    special_tokens_map = read_json(path / "special_tokens_map.json", required=False)
    max_model_len = config.integer("max_position_embeddings", at_least=1)
    vocab_size = config.integer("vocab_size", at_least=1)
    return ModelFolder(
        path=path,
        tokenizer_file=find_tokenizer_file(path),
        name=served_model_name or path.resolve().name,
        max_model_len=max_model_len,
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids(config, Fields(generation_file, generation_config)),
        sampling_defaults=_sampling_defaults(generation_config, vocab_size, max_model_len, path),
        special_tokens=_special_tokens(tokenizer_config, special_tokens_map),
        chat_templates=_chat_templates(path, tokenizer_config),
    )


def _sampling_defaults(
    generation_config: dict[str, Any], vocab_size: int, max_model_len: int, path: Path
) -> types_pb2.SamplingParams:
    """generation_config.json's defaults; `do_sample: false`, if it says so, means greedy."""
    file = path / "generation_config.json"
    found = {ours: generation_config.get(theirs) for theirs, ours in _SAMPLING_DEFAULTS.items()}
    defaults = {name: value for name, value in found.items() if value is not None}
    if generation_config.get("do_sample") is False:
        defaults["temperature"] = 0.0
    try:
        params = types_pb2.SamplingParams(**defaults)
        validate(
            params, vocab_size=vocab_size, max_logprobs=None, max_model_len=max_model_len, field=file.name
        )
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{file}: {error}") from None
    except ServiceError as error:
        raise CheckpointError(f"{file}: {error.message}") from None
    return params


def _special_tokens(*configs: dict[str, Any]) -> dict[str, str]:
    """Each named token's text, from the first file that sets it; a token is a text or an object.

    Besides the usual names: any other `…_token`, and the names under `extra_special_tokens`.
    """
    tokens: dict[str, str] = {}
    for config in configs:
        extra = config.get("extra_special_tokens")
        named = {name: value for name, value in config.items() if name.endswith("_token")}
        for name, value in {**named, **(extra if isinstance(extra, dict) else {})}.items():
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                tokens.setdefault(name, text)
    return tokens


def _chat_templates(path: Path, tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """Files of templates win over tokenizer_config.json, which holds one text or a list of named ones."""
    files: Iterable[Path] = sorted((path / "additional_chat_templates").glob("*.jinja"))
    templates = {file.stem: read_text(file) for file in files}
    if (path / "chat_template.jinja").is_file():
        templates[DEFAULT_TEMPLATE] = read_text(path / "chat_template.jinja")
    if templates:
        return templates
    value = tokenizer_config.get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT_TEMPLATE: value}
    entries = value if isinstance(value, list) else [value]
    for each in entries:
        texts = [each.get("name"), each.get("template")] if isinstance(each, dict) else [None]
        if not all(isinstance(text, str) for text in texts):
            file = path / "tokenizer_config.json"
            raise CheckpointError(f"{file}: chat_template is neither a text nor a list of named templates")
    return {each["name"]: each["template"] for each in entries}
