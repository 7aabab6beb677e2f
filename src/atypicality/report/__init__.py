"""The report: an `Evaluation`, or a monitor, as one HTML file that needs no network and cannot reach one."""

from atypicality.report.monitor_page import render_monitor, write_monitor
from atypicality.report.page import render_report, write_report

__all__ = ["render_monitor", "render_report", "write_monitor", "write_report"]
