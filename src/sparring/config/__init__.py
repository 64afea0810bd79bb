"""The validated configuration of a run. Importing it does not load torch."""

from sparring.config.config import Config
from sparring.config.loading import config_problems, dump_active, dump_config, load_config, preset_names
from sparring.config.recipe import recipe_names

__all__ = [
    "Config",
    "config_problems",
    "dump_active",
    "dump_config",
    "load_config",
    "preset_names",
    "recipe_names",
]
