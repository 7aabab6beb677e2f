"""The chart of a monitor: shares in every window beside the band of the reference."""

from typing import Any

from atypicality.charts.saving import public_chart
from atypicality.charts.style import PALETTE, Chart, altair, base, interval_of, tips

__all__ = ["monitor_history"]


@public_chart
def monitor_history(monitor: Any, stream: str = "atypicality", *, rolling: int = 1) -> Chart:
    """Shares of one stream of a monitor over time, with their intervals, beside the shaded band of the reference.

    Parameters
    ----------
    monitor : Monitor
    stream : str, default="atypicality"
        Also "confidence", "class", "error", "miss", "input", or the name of a field of words.
    rolling : int, default=1
        Windows that are taken together.

    {returns}
    >>> from atypicality.datasets import load_fashion_mnist
    >>> from atypicality.head import ReliabilityHead
    >>> from atypicality.monitoring import Monitor
    >>> train, calibration, test = load_fashion_mnist()
    >>> monitor = Monitor(ReliabilityHead().fit(train=train[:1000], calibration=calibration[:500]))
    >>> alarms = monitor.add(test[:200], at=0)
    >>> type(monitor_history(monitor, "error")).__name__
    'FacetChart'
    """
    alt = altair()
    rows = [row for row in monitor.history(rolling=rolling) if row["stream"] == stream]
    chart = base(rows, f"the stream {stream!r}", size=(260, 120), of="monitor")
    x = alt.X("window:T", title="Window")
    shown = tips(("window:T", "Window"), ("share:Q", "Share", ".4f"), ("rows:Q", "Rows", ",.0f"))
    band = chart.mark_area(color=PALETTE[-1], opacity=0.3).encode(
        x, alt.Y("reference_low:Q", title="Share"), alt.Y2("reference_high:Q")
    )
    bars = chart.mark_rule(color=PALETTE[0]).encode(x, *interval_of("Share"))
    marks = chart.mark_line(point=True, color=PALETTE[0]).encode(x, alt.Y("share:Q", title="Share"), tooltip=shown)
    layers = alt.layer(band, bars, marks, data=chart.data)
    return layers.facet(facet=alt.Facet("item:N", title=None), columns=3)
