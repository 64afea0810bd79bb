"""The validated configuration of a run. Importing it does not load torch."""

from selfplay.config.config import Config
from selfplay.config.loading import dump_active, dump_config, load_config, preset_names
from selfplay.config.recipe import recipe_names

__all__ = ["Config", "dump_active", "dump_config", "load_config", "preset_names", "recipe_names"]
