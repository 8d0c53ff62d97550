"""`triptych up`: render, scheduler and workers as child processes of one command, on one machine."""

import os
import signal
from typing import Any

import typer
from pydantic import Field, model_validator
from rich.console import Console

from services.cli.processes import ServiceProcess, check_ready, is_free, wait_a_moment
from services.render.config import RenderConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig
from shared.config import ENV_PREFIX, ConfigError, ServiceConfig, TlsConfig, flag_of, load_config
from shared.cores import num_usable_cores
from shared.wire import Address

# Of the services' own flags, those that `up` decides.
LEFT_OUT = frozenset({"listen", "metrics_listen", "worker", "scheduler"})

_CONFIG_CLASSES: dict[str, type[ServiceConfig]] = {
    "render": RenderConfig,
    "scheduler": SchedulerConfig,
    "worker": WorkerConfig,
}


class UpConfig(TlsConfig):
    """What `up` itself needs; every other flag goes to the services that know it."""

    workers: int = Field(1, ge=1, le=64, description="How many worker processes; they share the cores.")
    base_port: int = Field(
        50051,
        ge=1,
        le=64000,
        description="Render's port; then the scheduler's, then the workers'; metrics 1000 above each.",
    )

    @model_validator(mode="after")
    def _services_can_call_each_other(self) -> "UpConfig":
        if self.tls_cert is not None and self.tls_ca is None:
            raise ValueError("--tls-cert needs --tls-ca: the services call each other")
        return self


def up(given: dict[str, Any]) -> None:
    """Runs until Ctrl-C or SIGTERM (exit 0), or until a child dies (exit 1)."""
    given = _from_environment() | given
    config = load_config(UpConfig, {name: given.get(name) for name in UpConfig.model_fields})
    services = plan(config, given)
    for address in (each for service in services for each in (service.address, service.metrics_address)):
        if not is_free(address):
            raise ConfigError(f"--base-port is {config.base_port}: {address} is in use")
    raise typer.Exit(Supervisor(services, config, Console(highlight=False)).run())


def _from_environment() -> dict[str, Any]:
    """The variables that stand for flags of `up`; the children get them as flags."""
    classes: list[type[TlsConfig]] = [UpConfig, *_CONFIG_CLASSES.values()]
    names = {name for each in classes for name in each.model_fields} - LEFT_OUT
    return {name: os.environ[ENV_PREFIX + name] for name in names if ENV_PREFIX + name in os.environ}


def plan(config: UpConfig, given: dict[str, Any]) -> list[ServiceProcess]:
    """The child processes in the order in which they drain. Raises ConfigError before any is started."""
    addresses = [Address("127.0.0.1", config.base_port + offset) for offset in range(2 + config.workers)]
    scheduler, workers = addresses[1], addresses[2:]
    readiness = {"render": "TextService", "scheduler": "SchedulerService", "worker": "WorkerService"}
    decided: dict[str, dict[str, str]] = {
        "render": {"scheduler": str(scheduler)},
        "scheduler": {"worker": ",".join(map(str, workers))},
        "worker": {} if given.get("threads") else _share_of_cores(config.workers),
    }
    services: list[ServiceProcess] = []
    for address, command in zip(
        addresses, ["render", "scheduler", *["worker"] * config.workers], strict=True
    ):
        config_class = _CONFIG_CLASSES[command]
        flags = {name: value for name, value in given.items() if name in config_class.model_fields}
        flags |= {"listen": str(address), **decided[command]}
        child = load_config(config_class, flags)
        services.append(
            ServiceProcess(
                name=command if len(workers) == 1 or command != "worker" else f"worker {len(services) - 2}",
                command=command,
                arguments=_arguments(child, flags),
                address=address,
                metrics_address=child.metrics_address,
                readiness=f"triptych.v1.{readiness[command]}",
                drain_seconds=child.drain_seconds,
            )
        )
    return services


def _share_of_cores(num_workers: int) -> dict[str, str]:
    """One worker finds out by itself what it may use."""
    if num_workers == 1:
        return {}
    return {"threads": str(max(1, num_usable_cores() // num_workers))}


def _arguments(config: ServiceConfig, flags: dict[str, Any]) -> list[str]:
    """The flags as a command line; a switch is on it or not."""
    arguments: list[str] = []
    for name, value in flags.items():
        if type(config).model_fields[name].annotation is not bool:
            arguments.append(f"{flag_of(name)}={value}")
        elif getattr(config, name):
            arguments.append(flag_of(name))
    return arguments


class Supervisor:
    """Starts the children, says when each is ready, ends them all."""

    def __init__(self, services: list[ServiceProcess], config: TlsConfig, console: Console) -> None:
        self._services = services
        self._config = config
        self._console = console
        self._is_stopping = False

    def run(self) -> int:
        """The exit code: 0 after a signal, 1 if a child died, 2 if one refused its configuration."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        try:
            self.start()
            while not self._is_stopping:
                if (code := self._look()) is not None:
                    return code
                wait_a_moment()
            return 0
        finally:
            self.stop()

    def start(self) -> None:
        """Starts every child."""
        for service in self._services:
            service.start()

    def wait_until_ready(self) -> int | None:
        """None when all are ready; an exit code if one died first."""
        while not all(service.is_ready for service in self._services):
            if (code := self._look()) is not None:
                return code
            wait_a_moment()
        return None

    def stop(self) -> None:
        """Drains one after the other: nobody calls a service that has ended."""
        for service in self._services:
            service.stop()

    def _look(self) -> int | None:
        for service in self._services:
            code = service.poll()
            if code is not None:
                self._console.print(f"{service.name} ended with exit code {code}; stopping the rest")
                return 2 if code == 2 and not service.is_ready else 1
            if not service.is_ready and check_ready(service, self._config):
                service.is_ready = True
                self._console.print(f"{service.name} is ready on {service.address}")
        return None

    def _on_signal(self, _number: int, _frame: object) -> None:
        if self._is_stopping:
            for service in self._services:
                service.kill()
            os._exit(1)
        self._is_stopping = True
