"""The base of every section of the configuration."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Base of every section: unknown fields are errors, nothing is converted, docstrings are the help texts.

    What one field alone cannot tell is checked by validators, which raise ``InputError``.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
