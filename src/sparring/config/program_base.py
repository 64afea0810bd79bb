"""What the settings of all programs have."""

from typing import Literal

from sparring.config.base import Name, Settings

Sharing = Literal["shared", "isolated"]


class ProgramSettings(Settings):
    """Base of all programs."""

    type: Name
    """Names the kind of program."""
    policies: Sharing | None = None
    """`shared`: all roles that are trained have the policy `default`. `isolated`: each has one of its own,
    with its name in lower case. By default as the program's other settings say; `[roles.NAME]` has the last
    word."""

    @property
    def names(self) -> list[str]:
        """The names of what is played."""
        return [self.type]
