"""The base of every section of the configuration."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Base of every section: unknown fields are errors, values are not converted, docstrings are help texts.

    Validators check conditions that involve several fields; they raise ``InputError``.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
