"""The configuration that all three services share, and how it is read.

Each service's config.py is a frozen subclass. A field is declared once: its name is the flag
(`--max-num-seqs`) and the environment variable (`triptych_max_num_seqs`), its description is the help text,
its constraints are the check. The variables are in lower case because Kubernetes injects upper-case ones for
each Service of a namespace (RENDER_PORT=tcp://…): no name of a Service can produce one of ours. POSIX keeps
lower-case names for applications.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.wire import Address

ENV_PREFIX = "triptych_"
METRICS_PORT_OFFSET = 1000


class ConfigError(Exception):
    """A wrong flag, variable or file. The command prints its one line and exits with code 2."""


def _parse_address(value: Any) -> Any:
    return Address.parse(value) if isinstance(value, str) else value


def _must_be_file(path: Path) -> Path:
    try:
        path.open("rb").close()
    except OSError as error:
        raise ValueError(f"cannot read {str(path)!r}: {error.strerror}") from None
    return path


ListenAddress = Annotated[Address, BeforeValidator(_parse_address)]
ReadableFile = Annotated[Path, AfterValidator(_must_be_file)]


class LogLevel(StrEnum):
    """What is logged: this level and above."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class TlsConfig(BaseSettings):
    """Certificates. None given: plain text, for loopback and for meshes that encrypt by themselves."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, case_sensitive=True, frozen=True, extra="forbid", arbitrary_types_allowed=True
    )

    tls_cert: ReadableFile | None = Field(
        None, description="This process's certificate chain (PEM): its server's and, to peers, its own."
    )
    tls_key: ReadableFile | None = Field(None, description="The private key of --tls-cert (PEM).")
    tls_ca: ReadableFile | None = Field(
        None, description="The authority (PEM) that signs the peers. Given: connections to peers use TLS."
    )

    @model_validator(mode="after")
    def _cert_and_key_go_together(self) -> "TlsConfig":
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert and --tls-key go together")
        return self


class ServiceConfig(TlsConfig):
    """What every service takes."""

    listen: ListenAddress = Field(description="Where the service listens, HOST:PORT.")
    metrics_listen: ListenAddress | None = Field(
        None,
        description="Where Prometheus metrics are served over HTTP. (default: as --listen, port + 1000)",
    )
    log_level: LogLevel = Field(LogLevel.INFO, description="Log this and above. No level logs prompt text.")
    drain_seconds: float = Field(
        30.0,
        ge=0,
        description="After SIGTERM, how long running calls may go on before they end with an error.",
    )
    tls_client_auth: bool = Field(
        False, description="Serve only callers whose certificate --tls-ca signed (mutual TLS)."
    )

    @model_validator(mode="after")
    def _client_auth_needs_certificates(self) -> "ServiceConfig":
        if self.tls_client_auth and not (self.tls_ca and self.tls_cert):
            raise ValueError("--tls-client-auth needs --tls-ca, --tls-cert and --tls-key")
        return self

    @property
    def metrics_address(self) -> Address:
        """Where metrics are served."""
        if self.metrics_listen is not None:
            return self.metrics_listen
        port = self.listen.port + METRICS_PORT_OFFSET if self.listen.port else 0
        return self.listen.with_port(port % 65536)


Config = TypeVar("Config", bound=TlsConfig)


def load_config(config_class: type[Config], flags: dict[str, Any]) -> Config:
    """Flags that were given, then environment variables, then defaults. Raises ConfigError in one line."""
    try:
        return config_class(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        raise ConfigError("; ".join(_sentence(each) for each in error.errors())) from None


def flag_of(field_name: str) -> str:
    """max_num_seqs → --max-num-seqs."""
    return "--" + field_name.replace("_", "-")


def _sentence(error: Any) -> str:
    message: str = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:
        return message
    name = str(error["loc"][0])
    if error["type"] == "missing":
        return f"{flag_of(name)} (or {ENV_PREFIX}{name}) is needed"
    return f"{flag_of(name)} (or {ENV_PREFIX}{name}) is {str(error['input'])!r}: {message}"
