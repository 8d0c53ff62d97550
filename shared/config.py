"""The configuration that all three services share, and how it is read.

Each service's config.py is a frozen subclass. A field is declared once: its name is the flag
(`--max-num-seqs`) and the environment variable (`triptych_max_num_seqs`), its description is the help text,
its constraints are the check. The variables are in lower case because Kubernetes injects upper-case ones for
each Service of a namespace (RENDER_PORT=tcp://…): no name of a Service can produce one of ours. POSIX keeps
lower-case names for applications.
"""

import re
import ssl
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.model_files import CheckpointError, read_json
from shared.wire import MAX_PORT, Address

ENV_PREFIX = "triptych_"
METRICS_PORT_OFFSET = 1000
# What Kubernetes sets for each port of a Service named triptych or triptych-something, as NAME=VALUE.
_INJECTED = re.compile(
    r"TRIPTYCH(_[A-Z0-9_]+)?"
    r"(_SERVICE_HOST|_SERVICE_PORT(_[A-Z0-9_]+)?|_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)=.*"
    r"|TRIPTYCH(_[A-Z0-9_]+)?_PORT=(tcp|udp|sctp)://.*"
)
# How alike an upper-case variable is to one of ours, of 1, before it counts as that one misspelt.
_NEAR = 0.8


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


def _must_be_model_folder(path: Path) -> Path:
    try:
        read_json(path / "config.json")
    except CheckpointError as error:
        raise ValueError(str(error)) from None
    return path


ListenAddress = Annotated[Address, BeforeValidator(_parse_address)]
ReadableFile = Annotated[Path, AfterValidator(_must_be_file)]
# A Hugging Face folder; what else must be in it, its reader says.
ModelFolder = Annotated[Path, AfterValidator(_must_be_model_folder)]


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class TlsConfig(BaseSettings):
    """Certificates. None given: plain text, for loopback and for meshes that encrypt by themselves."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        case_sensitive=True,
        enable_decoding=False,  # a variable is written as its flag is, never as JSON
        frozen=True,
        extra="forbid",
        arbitrary_types_allowed=True,
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

    @model_validator(mode="after")
    def _certificates_are_valid(self) -> "TlsConfig":
        """Here, since gRPC says of a bad file only that it cannot listen, or nothing at all."""
        if self.tls_ca is not None:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(self.tls_ca)
            except ssl.SSLError:
                raise ValueError(f"--tls-ca: {str(self.tls_ca)!r} holds no certificates in PEM") from None
        if self.tls_cert is not None and self.tls_key is not None:
            try:
                # The password: without one, OpenSSL asks the terminal for that of an encrypted key.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_cert, self.tls_key, "")
            except ssl.SSLError:
                raise ValueError(
                    f"--tls-cert and --tls-key: {str(self.tls_cert)!r} and {str(self.tls_key)!r} are not "
                    "a certificate chain and its unencrypted key in PEM"
                ) from None
        return self


class ServiceConfig(TlsConfig):
    listen: ListenAddress = Field(description="Where the service listens, HOST:PORT.")
    metrics_listen: ListenAddress | None = Field(
        None,
        description="Where Prometheus metrics are served over HTTP. (default: as --listen, port + 1000)",
    )
    log_level: LogLevel = Field(LogLevel.INFO, description="Log this and above. No level logs prompt text.")
    drain_seconds: float = Field(
        30.0,
        ge=0,
        description="After SIGTERM, how long running calls may continue before they fail.",
    )
    tls_client_auth: bool = Field(
        False, description="Serve only callers whose certificate --tls-ca signed (mutual TLS)."
    )

    @model_validator(mode="after")
    def _client_auth_needs_certificates(self) -> "ServiceConfig":
        if self.tls_client_auth and not (self.tls_ca and self.tls_cert):
            raise ValueError("--tls-client-auth needs --tls-ca, --tls-cert and --tls-key")
        return self

    @model_validator(mode="after")
    def _metrics_port_exists(self) -> "ServiceConfig":
        if self.metrics_address.port > MAX_PORT:
            raise ValueError(
                f"--listen: port {self.listen.port} leaves no port {METRICS_PORT_OFFSET} above it for the "
                "metrics; give --metrics-listen"
            )
        return self

    @property
    def metrics_address(self) -> Address:
        if self.metrics_listen is not None:
            return self.metrics_listen
        return self.listen.with_port(self.listen.port + METRICS_PORT_OFFSET if self.listen.port else 0)


Config = TypeVar("Config", bound=TlsConfig)


def load_config(config_class: type[Config], flags: dict[str, Any]) -> Config:
    """Flags that were given, then environment variables, then defaults. Raises ConfigError in one line."""
    try:
        return config_class(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        raise ConfigError("; ".join(_sentence(each) for each in error.errors())) from None


def check_environment(environment: Mapping[str, str], known_fields: Iterable[str]) -> None:
    """Raises ConfigError for variables that look like ours and that no command reads.

    Those are all with our prefix in lower or mixed case, and in upper case those that resemble one of ours:
    other upper-case variables belong to others, to Kubernetes in particular.
    """
    known = set(known_fields)
    unknown = []
    for name, value in sorted(environment.items()):
        prefix, field_name = name[: len(ENV_PREFIX)], name[len(ENV_PREFIX) :]
        is_known = prefix == ENV_PREFIX and field_name in known
        if prefix.lower() != ENV_PREFIX or is_known or _INJECTED.fullmatch(f"{name}={value}"):
            continue
        cutoff = _NEAR if name.isupper() else 0.0
        if nearest := get_close_matches(field_name.lower(), known, n=1, cutoff=cutoff):
            unknown.append(f"{name} (did you mean {ENV_PREFIX}{nearest[0]}?)")
    if unknown:
        raise ConfigError(f"unknown environment variable: {', '.join(unknown)}")


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
