"""A run as one page of HTML."""

from sparring.view.report.page import build_report

__all__ = ["build_report"]
