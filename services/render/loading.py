"""From the configuration to a renderer, for the service and for work without one."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from triptych.v1 import types_pb2

from services.render.config import RenderConfig
from services.render.model_folder import DEFAULT_TEMPLATE, ModelFolder, load_model_folder
from services.render.output.formats import PARSERS, ParserName, choose_parser
from services.render.renderer import Renderer
from services.render.template.capabilities import Capabilities
from services.render.template.chat_template import ChatTemplate
from services.render.template.check import load_chat_template
from services.render.tokenizer.tokenizer import Tokenizer
from shared.config import ConfigError
from shared.model_files import CheckpointError, read_text


class Loaded(NamedTuple):
    """A renderer, and what was chosen for it."""

    renderer: Renderer
    tokenizer: Tokenizer
    parser: ParserName
    # Why this one.
    parser_reason: str
    # Of the template for chats without tools; None: the model has none.
    capabilities: Capabilities | None
    # Sentences on what does not fit together in the folder, and on what the chat template cannot do.
    warnings: tuple[str, ...]


def load_renderer(
    config: RenderConfig,
    *,
    scheduler_info: Callable[[], types_pb2.ModelInfo | None] = lambda: None,
    observe: Callable[[str, float], None] = lambda _stage, _seconds: None,
) -> Loaded:
    """Further arguments: as Renderer's. Raises ConfigError for what the user can mend."""
    model = load_model_folder(config.model, config.served_model_name or "")
    if config.chat_template is not None:
        model = replace(model, chat_templates={DEFAULT_TEMPLATE: _read_template(config.chat_template)})
    tokenizer = Tokenizer(model.tokenizer_file, config.tokenizer)
    parser, reason = choose_parser(config.parser, model.chat_templates.values())
    try:
        chat_template = load_chat_template(model, None if config.trust_content else tokenizer.control_tokens)
    except ConfigError as error:
        if config.chat_template is None:
            raise
        raise ConfigError(f"--chat-template is {config.chat_template}: {error}") from None
    renderer = Renderer(
        model,
        tokenizer,
        chat_template,
        parser=PARSERS[parser],
        scheduler_info=scheduler_info,
        observe=observe,
    )
    return Loaded(
        renderer,
        tokenizer,
        parser,
        reason,
        chat_template.capabilities.get(DEFAULT_TEMPLATE),
        tuple(_warnings(model, tokenizer, chat_template)),
    )


def _read_template(file: Path) -> str:
    try:
        return read_text(file)
    except CheckpointError as error:
        raise ConfigError(f"--chat-template: {error}") from None


def _warnings(model: ModelFolder, tokenizer: Tokenizer, chat_template: ChatTemplate) -> Iterator[str]:
    yield from chat_template.warnings()
    for name in sorted(chat_template.unset_special_tokens):
        yield f"the chat template prints {name}, which no file of {model.path} sets: nothing stands there"
    if (token := tokenizer.token(model.vocab_size)) is not None:
        yield (
            f"vocab_size is {model.vocab_size} in {model.path / 'config.json'}, but the tokenizer has more "
            f"tokens ({token!r} is {model.vocab_size}): the model cannot read them"
        )
