"""Commands of ``sparring`` that a message prints, to be copied into a shell."""

import shlex


def shell_command(*words: object) -> str:
    """Return a command of ``sparring`` as a shell reads it: ids of games and paths may need quotes."""
    return shlex.join(["sparring", *map(str, words)])
