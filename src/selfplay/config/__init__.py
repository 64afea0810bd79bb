"""The validated configuration of a run. Importing it does not load torch."""

from selfplay.config.loading import dump_config, load_config, preset_names
from selfplay.config.settings import Config

__all__ = ["Config", "dump_config", "load_config", "preset_names"]
