"""Measures of strength: matches, and exact ones of small games."""

from sparring.evaluation.kept_value import KeptValue, kept_value
from sparring.evaluation.match import play_match
from sparring.evaluation.nash_conv import nash_conv
from sparring.evaluation.results import (
    EvaluationResult,
    GameRecord,
    MatchResult,
    NashConvResult,
    Outcomes,
    read_evaluation,
    write_evaluation,
)

__all__ = [
    "EvaluationResult",
    "GameRecord",
    "KeptValue",
    "MatchResult",
    "NashConvResult",
    "Outcomes",
    "kept_value",
    "nash_conv",
    "play_match",
    "read_evaluation",
    "write_evaluation",
]
