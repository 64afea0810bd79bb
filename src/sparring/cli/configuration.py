"""``sparring config``: what is known of configurations."""

from typing import Annotated

import typer

from sparring.cli.options import json_text

SCHEMA = "schema"


def config(
    what: Annotated[
        str, typer.Argument(help="schema (JSON, for editors), or a preset, whose file is printed as it is.")
    ],
) -> None:
    """Print the JSON Schema of configurations, or the file of a preset."""
    if what != SCHEMA:
        from sparring.config.loading import preset_text

        print(preset_text(what), end="")
        return
    from sparring.config.schema import config_schema

    print(json_text(config_schema()), end="")
