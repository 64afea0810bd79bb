"""The base of every section of the configuration."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from selfplay.core.own_classes import CLASS_PATH

ClassPath = Annotated[str, Field(pattern=CLASS_PATH)]
"""The file and the name of a class of your own."""


class Settings(BaseModel):
    """Base of every section: unknown fields are errors, values are not converted, docstrings are help texts.

    Validators check conditions that involve several fields; they raise ``InputError``.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
