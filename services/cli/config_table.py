"""`make docs`: the table of each service's settings, from its configuration class into its README."""

from pathlib import Path

from services.cli.options import SERVICES, describe
from shared.config import ENV_PREFIX, ServiceConfig, flag_of

BEGIN, END = "<!-- configuration: written by `make docs` -->", "<!-- end of configuration -->"
_HEAD = "| flag | variable | default | what it does |\n| --- | --- | --- | --- |\n"


def config_table(config_class: type[ServiceConfig]) -> str:
    """Markdown; what is particular to the service first."""
    fields = config_class.model_fields
    own = config_class.__annotations__
    rows = []
    for name in sorted(fields, key=lambda name: name not in own):
        text, default = describe(fields[name])
        if fields[name].annotation is bool:
            default = "off"
        rows.append(f"| `{flag_of(name)}` | `{ENV_PREFIX}{name}` | {default} | {text} |\n")
    return _HEAD + "".join(rows)


def with_table(text: str, config_class: type[ServiceConfig]) -> str:
    """The text of a README with its table renewed. ValueError if it has no place for one."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{config_table(config_class)}{END}{after}"


def main() -> None:
    for name, config_class in SERVICES.items():
        readme = Path(__file__).parents[1] / name / "README.md"
        readme.write_text(with_table(readme.read_text(), config_class))


if __name__ == "__main__":
    main()
