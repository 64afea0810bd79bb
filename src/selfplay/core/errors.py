"""Errors that are meant for people: one line that names the field and the fix."""

from pathlib import Path


class SelfplayError(Exception):
    """Base of every error this package raises on purpose."""


class InputError(SelfplayError):
    """Something the user gave is wrong (config, model, environment, file). The command line exits with 2.

    Args:
        field: what is wrong, named as the user wrote it (``env.id``, ``--games``, a path).
        problem: what is wrong with it.
        fix: what to do about it.
    """

    def __init__(self, field: str, problem: str, fix: str) -> None:
        self.field, self.problem, self.fix = field, problem, fix
        super().__init__(f"{field}: {problem}. {fix}")

    def __reduce__(self) -> tuple[type["InputError"], tuple[str, str, str]]:
        """Errors travel between processes; Python would rebuild this one from its message alone."""
        return type(self), (self.field, self.problem, self.fix)


class EpisodeError(SelfplayError):
    """One episode could not be finished; it costs that episode and nothing else.

    Subclasses whose cause would be the same again set ``worth_a_retry`` to False.
    """

    worth_a_retry = True


def reason_of(error: Exception) -> str:
    """What went wrong, in a line: our own errors speak for themselves, others say where they arose."""
    if isinstance(error, SelfplayError):
        return str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return repr(error)
    return f"{error!r} in {Path(trace.tb_frame.f_code.co_filename).name}, line {trace.tb_lineno}"
