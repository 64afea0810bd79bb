"""One validated configuration, free of torch."""

from selfplay.config.loading import dump_config, load_config, preset_names
from selfplay.config.settings import Config

__all__ = ["Config", "dump_config", "load_config", "preset_names"]
