"""A run's measurements: the tracker, its sinks and the report."""

from selfplay.tracking.report import build_report
from selfplay.tracking.sinks import JsonlSink, Metrics, Sink, TensorBoardSink, WandbSink, read_metrics
from selfplay.tracking.tracker import Tracker, is_wall_clock

__all__ = [
    "JsonlSink",
    "Metrics",
    "Sink",
    "TensorBoardSink",
    "Tracker",
    "WandbSink",
    "build_report",
    "is_wall_clock",
    "read_metrics",
]
