"""What the settings of all programs have."""

from sparring.config.base import Name, Settings


class ProgramSettings(Settings):
    """Base of all programs."""

    type: Name
    """Names the kind of program."""

    @property
    def names(self) -> list[str]:
        """The names of what is played."""
        return [self.type]
