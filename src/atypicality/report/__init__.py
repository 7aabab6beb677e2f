"""The report: an `Evaluation` as one HTML file that needs no network and cannot reach one."""

from atypicality.report.page import render_report, write_report

__all__ = ["render_report", "write_report"]
