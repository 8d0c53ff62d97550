"""`triptych up`: render, scheduler and workers as child processes of one command, on one machine."""

import os
import shlex
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pydantic import Field, model_validator

from services.cli.options import SERVICES, Flags
from services.cli.processes import ServiceProcess, check_ready, is_free
from shared.config import ENV_PREFIX, ConfigError, ServiceConfig, TlsConfig, flag_of, load_config
from shared.cores import num_usable_cores
from shared.wire import Address

# Of the services' own flags, those that `up` decides.
LEFT_OUT = frozenset({"listen", "metrics_listen", "worker", "scheduler"})
_POLL_SECONDS = 0.1
# Of the log of a child that died.
_NUM_LAST_LINES = 10


class UpConfig(TlsConfig):
    """What `up` itself needs; every other flag goes to the services that know it."""

    workers: int = Field(1, ge=1, le=64, description="How many worker processes; they share the cores.")
    base_port: int = Field(
        50051,
        ge=1,
        le=64000,
        description="Render's port; then the scheduler's, then the workers'; metrics 1000 above each.",
    )

    verbose: bool = Field(False, description="The services' logs go to stderr instead of files.")
    log_dir: Path | None = Field(
        None, description="Where each service appends to its log file. (default: a new temporary folder)"
    )

    @model_validator(mode="after")
    def _logs_go_to_one_place(self) -> "UpConfig":
        if self.verbose and self.log_dir is not None:
            raise ValueError("--verbose and --log-dir exclude each other")
        return self

    @model_validator(mode="after")
    def _services_can_call_each_other(self) -> "UpConfig":
        if self.tls_cert is not None and self.tls_ca is None:
            raise ValueError("--tls-cert needs --tls-ca: the services call each other")
        return self


def services_with(field_name: str) -> str | None:
    """A title of the help: the services that a flag of `up` is passed to; None: it is its own."""
    names = [name for name, each in SERVICES.items() if field_name in each.model_fields]
    if len(names) == len(SERVICES):
        return "All services"
    return " and ".join(names).capitalize() or None


def up(flags: Flags) -> int:
    """Runs until Ctrl-C or SIGTERM (exit 0), or until a child dies (exit 1)."""
    flags = _from_environment() | flags
    config = load_config(UpConfig, {name: flags.get(name) for name in UpConfig.model_fields})
    services = plan(config, flags)
    for address in (each for service in services for each in (service.address, service.metrics_address)):
        if not is_free(address):
            raise ConfigError(f"--base-port is {config.base_port}: {address} is in use")
    return Supervisor(services, config).run()


def _from_environment() -> Flags:
    """The variables that stand for flags of `up`; the children get them as flags."""
    classes: list[type[TlsConfig]] = [UpConfig, *SERVICES.values()]
    names = {name for each in classes for name in each.model_fields} - LEFT_OUT
    return {name: os.environ[ENV_PREFIX + name] for name in names if ENV_PREFIX + name in os.environ}


def plan(config: UpConfig, given: Flags) -> list[ServiceProcess]:
    """The child processes in the order in which they drain. Raises ConfigError before any is started."""
    addresses = [Address("127.0.0.1", config.base_port + offset) for offset in range(2 + config.workers)]
    scheduler, workers = addresses[1], addresses[2:]
    readiness = {"render": "TextService", "scheduler": "SchedulerService", "worker": "WorkerService"}
    decided: dict[str, dict[str, str]] = {
        "render": {"scheduler": str(scheduler)},
        "scheduler": {"worker": ",".join(map(str, workers))},
        "worker": {} if given.get("threads") else _share_of_cores(config.workers),
    }
    log_dir = None if config.verbose else _log_dir(config.log_dir)
    services: list[ServiceProcess] = []
    for address, command in zip(
        addresses, ["render", "scheduler", *["worker"] * config.workers], strict=True
    ):
        config_class = SERVICES[command]
        flags = {name: value for name, value in given.items() if name in config_class.model_fields}
        flags |= {"listen": str(address), **decided[command]}
        child = load_config(config_class, flags)
        name = command if len(workers) == 1 or command != "worker" else f"worker {len(services) - 2}"
        services.append(
            ServiceProcess(
                name=name,
                command=command,
                arguments=_arguments(child, flags),
                address=address,
                metrics_address=child.metrics_address,
                readiness=f"triptych.v1.{readiness[command]}",
                drain_seconds=child.drain_seconds,
                log_file=log_dir and log_dir / f"{name.replace(' ', '-')}.log",
            )
        )
    return services


def _log_dir(given: Path | None) -> Path:
    try:
        if given is None:
            return Path(tempfile.mkdtemp(prefix="triptych-"))
        given.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--log-dir: cannot make {str(given)!r}: {error.strerror}") from None
    return given


def _share_of_cores(num_workers: int) -> dict[str, str]:
    """A single worker detects its own cores."""
    if num_workers == 1:
        return {}
    return {"threads": str(max(1, num_usable_cores() // num_workers))}


def _arguments(config: ServiceConfig, flags: Flags) -> list[str]:
    """The flags as a command line; a switch is on it or not."""
    arguments: list[str] = []
    for name, value in flags.items():
        if type(config).model_fields[name].annotation is not bool:
            arguments.append(f"{flag_of(name)}={value}")
        elif getattr(config, name):
            arguments.append(flag_of(name))
    return arguments


_print = partial(print, flush=True)


class Supervisor:
    """Starts the children, reports when each is ready, stops them all."""

    def __init__(
        self,
        services: list[ServiceProcess],
        config: TlsConfig,
        say: Callable[[str], None] = _print,
    ) -> None:
        self._services = services
        self._config = config
        self._say = say
        self._is_stopping = False

    def run(self) -> int:
        """The exit code: 0 after a signal, 1 if a child died, 2 if one refused its configuration."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        if (log_file := self._services[0].log_file) is not None:
            self._say(f"the logs are in {log_file.parent}")
        has_greeted = False
        try:
            self.start()
            while not self._is_stopping:
                if (code := self._poll()) is not None:
                    return code
                if not has_greeted and self._are_ready():
                    has_greeted = True
                    self._say(_what_to_try(self._services[0].address, self._config))
                time.sleep(_POLL_SECONDS)
            return 0
        finally:
            self.stop()

    def start(self) -> None:
        for service in self._services:
            service.start()

    def wait_until_ready(self) -> int | None:
        """None when all are ready; an exit code if one died first."""
        while not self._are_ready():
            if (code := self._poll()) is not None:
                return code
            time.sleep(_POLL_SECONDS)
        return None

    def stop(self) -> None:
        """Shuts them down in order, so that no service calls one that has ended."""
        for service in self._services:
            service.stop()

    def _are_ready(self) -> bool:
        return all(service.is_ready for service in self._services)

    def _poll(self) -> int | None:
        for service in self._services:
            code = service.poll()
            if code is not None:
                for line in service.last_lines(_NUM_LAST_LINES):
                    self._say(f"  {line}")
                self._say(f"{service.name} ended with exit code {code}; stopping the rest")
                return 2 if code == 2 and not service.is_ready else 1
            if not service.is_ready and check_ready(service, self._config):
                service.is_ready = True
                self._say(f"{service.name} is ready on {service.address}")
        return None

    def _on_signal(self, _number: int, _frame: object) -> None:
        if self._is_stopping:
            for service in self._services:
                service.kill()
            os._exit(1)
        self._is_stopping = True


def _what_to_try(render: Address, tls: TlsConfig) -> str:
    """The next commands, with the certificates that they need."""
    paths = {name: getattr(tls, f"tls_{name}") for name in ("ca", "cert", "key")}
    given = {name: shlex.quote(str(path.absolute())) for name, path in paths.items() if path is not None}
    chat = "".join(f" --tls-{name} {path}" for name, path in given.items())
    curl = "".join(f" -{'cacert' if name == 'ca' else name} {path}" for name, path in given.items())
    request = '{"request": {"messages": [{"role": "user", "content": "My name is Nadia."}]}}'
    return f"""
Try, in another terminal:
  triptych chat --render {render}{chat} "My name is Nadia."
  grpcurl{curl or " -plaintext"} -d '{request}' {render} triptych.v1.TextService/Chat

Ctrl-C ends all of it."""
