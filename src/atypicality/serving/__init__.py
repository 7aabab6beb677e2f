"""A saved head as an HTTP service: the Open Inference Protocol v2, a plain /predict, reload, metrics and limits."""

from atypicality.serving.service import Limits, make_app

__all__ = ["Limits", "make_app"]
