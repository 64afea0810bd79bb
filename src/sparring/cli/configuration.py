"""``sparring config``: what is known of configurations."""

from enum import StrEnum
from typing import Annotated

import typer

from sparring.cli.options import json_text


class What(StrEnum):
    """What is printed."""

    SCHEMA = "schema"


def config(what: Annotated[What, typer.Argument(help="The JSON Schema of a file, for editors.")]) -> None:
    """Print the JSON Schema of configurations, by which editors complete and check TOML."""
    from sparring.config.schema import config_schema

    assert what is What.SCHEMA
    print(json_text(config_schema()), end="")
