"""The renderer's flags and environment variables."""

from pathlib import Path

from pydantic import Field

from services.render.output.formats import ParserName
from services.render.tokenizer.choice import TokenizerName
from shared.config import ListenAddress, ServiceConfig
from shared.demo_model import PATH as DEMO_MODEL
from shared.wire import Address


class RenderConfig(ServiceConfig):
    """Checked once, when the process starts."""

    listen: ListenAddress = Field(
        Address("127.0.0.1", 50051), description="Where the service listens, HOST:PORT."
    )
    model: Path = Field(
        DEMO_MODEL,
        description="A Hugging Face folder; tokenizer, template and config are read. (default: embedded)",
    )
    chat_template: Path | None = Field(
        None, description="A Jinja file in place of the folder's chat templates. (default: the folder's)"
    )
    scheduler: ListenAddress | None = Field(
        None, description="Where generations run, HOST:PORT. Without it TextService refuses calls."
    )
    served_model_name: str | None = Field(
        None, min_length=1, description="The model's name; the worker's is the same. (default: the folder's)"
    )
    parser: ParserName = Field(
        ParserName.AUTO,
        description="The format of reasoning and tool calls in the output; auto: that of the chat template.",
    )
    tokenizer: TokenizerName = Field(
        TokenizerName.AUTO,
        description="The library that tokenizes; auto: the fastest that a self-test finds exact.",
    )
    trust_content: bool = Field(
        False, description="Take control tokens in the content of messages and tools for what they say."
    )
