"""Measures of strength: matches, and exact ones of small games."""

from sparring.evaluation.kept_value import KeptValue, kept_value
from sparring.evaluation.match import play_match
from sparring.evaluation.match_result import GameRecord, MatchResult, Outcomes
from sparring.evaluation.nash_conv import NashConvResult, nash_conv
from sparring.evaluation.result_files import EvaluationResult, read_evaluation, write_evaluation
from sparring.evaluation.tables import comparison_table, match_table

__all__ = [
    "EvaluationResult",
    "GameRecord",
    "KeptValue",
    "MatchResult",
    "NashConvResult",
    "Outcomes",
    "comparison_table",
    "kept_value",
    "match_table",
    "nash_conv",
    "play_match",
    "read_evaluation",
    "write_evaluation",
]
