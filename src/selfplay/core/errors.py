"""Errors for users: one line that names the field and the fix."""

from pathlib import Path


class SelfplayError(Exception):
    """Base class of every error that this package raises on purpose."""


class InputError(SelfplayError):
    """The user's input is wrong (config, model, environment, file). The command line exits with status 2.

    Args:
        field: the wrong input, named as the user wrote it (``env.id``, ``--games``, a path).
        problem: what is wrong with it.
        fix: how to correct it.
    """

    def __init__(self, field: str, problem: str, fix: str) -> None:
        self.field, self.problem, self.fix = field, problem, fix
        super().__init__(f"{field}: {problem}. {fix}")

    def __reduce__(self) -> tuple[type["InputError"], tuple[str, str, str]]:
        """Rebuild the error from its three parts in another process; Python would use only its message."""
        return type(self), (self.field, self.problem, self.fix)


class DamagedState(InputError):
    """A file of a saved state is missing, cannot be read or does not have its format.

    A state that is whole but does not fit the run raises a plain InputError.
    """


class EpisodeError(SelfplayError):
    """One episode failed; the other episodes continue.

    The episode is not retried, because it would fail again with the same seed; see :class:`TransientError`.
    """


class ContextError(EpisodeError):
    """A prompt and its longest possible answer exceed the model's context."""


class TransientError(EpisodeError):
    """A failure that may pass (a server, an engine, or a timeout), so the episode is retried."""


def is_transient(error: BaseException) -> bool:
    """Return whether another attempt with the same seed may succeed."""
    return isinstance(error, TransientError | TimeoutError | ConnectionError)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message without its full stop."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".")


def reason_of(error: Exception) -> str:
    """Return the reason of an error in one line. For errors of other packages, name the file and line too."""
    if isinstance(error, SelfplayError):
        return str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return repr(error)
    return f"{error!r} in {Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}"
