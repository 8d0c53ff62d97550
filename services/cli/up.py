"""`triptych up`: render, scheduler and workers as child processes of one command, on one machine."""

import os
import signal
from typing import Any

import typer
from pydantic import Field
from rich.console import Console

from services.cli.processes import ServiceProcess, check_ready, wait_a_moment
from services.render.config import RenderConfig
from services.scheduler.config import SchedulerConfig
from services.worker.config import WorkerConfig
from shared.config import ENV_PREFIX, ServiceConfig, TlsConfig, load_config
from shared.wire import Address

# Of the services' own flags, those that `up` decides.
LEFT_OUT = frozenset({"listen", "metrics_listen", "worker", "scheduler"})

_CONFIG_CLASSES: dict[str, type[ServiceConfig]] = {
    "render": RenderConfig,
    "scheduler": SchedulerConfig,
    "worker": WorkerConfig,
}
_KILL_AFTER_DRAIN_SECONDS = 5.0


class UpConfig(TlsConfig):
    """What `up` itself needs; every other flag goes to the services that know it."""

    workers: int = Field(1, ge=1, le=64, description="How many worker processes; they share the cores.")
    base_port: int = Field(
        50051,
        ge=1,
        le=64000,
        description="Render's port; then the scheduler's, then the workers'; metrics 1000 above each.",
    )


def up(given: dict[str, Any]) -> None:
    """Runs until Ctrl-C or SIGTERM (exit 0), or until a child dies (exit 1)."""
    given = _from_environment() | given
    config = load_config(UpConfig, {name: given.get(name) for name in UpConfig.model_fields})
    services = plan(config, given)
    console = Console(highlight=False)
    code = Supervisor(services, config, console).run()
    raise typer.Exit(code)


def _from_environment() -> dict[str, Any]:
    """The variables that stand for flags of `up`; the children get them as flags."""
    classes: list[type[TlsConfig]] = [UpConfig, *_CONFIG_CLASSES.values()]
    names = {name for each in classes for name in each.model_fields} - LEFT_OUT
    return {name: os.environ[ENV_PREFIX + name] for name in names if ENV_PREFIX + name in os.environ}


def plan(config: UpConfig, given: dict[str, Any]) -> list[ServiceProcess]:
    """The child processes in the order in which they drain. Raises ConfigError before any is started."""
    addresses = [Address("127.0.0.1", config.base_port + offset) for offset in range(2 + config.workers)]
    scheduler, workers = addresses[1], addresses[2:]
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    decided: dict[str, dict[str, str]] = {
        "render": {"scheduler": str(scheduler)},
        "scheduler": {"worker": ",".join(map(str, workers))},
        "worker": {} if given.get("threads") else {"threads": str(max(1, num_cores // config.workers))},
    }
    readiness = {"render": "TextService", "scheduler": "SchedulerService", "worker": "WorkerService"}
    services: list[ServiceProcess] = []
    for address, command in zip(
        addresses, ["render", "scheduler", *["worker"] * config.workers], strict=True
    ):
        config_class = _CONFIG_CLASSES[command]
        flags = {name: str(value) for name, value in given.items() if name in config_class.model_fields}
        flags |= {"listen": str(address), **decided[command]}
        load_config(config_class, flags)
        name = command if config.workers == 1 or command != "worker" else f"worker {len(services) - 2}"
        services.append(ServiceProcess(name, command, address, f"triptych.v1.{readiness[command]}", flags))
    return services


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
        drain_seconds = float(self._services[0].flags.get("drain_seconds", 30.0))
        for service in self._services:
            service.stop(drain_seconds + _KILL_AFTER_DRAIN_SECONDS)

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
