"""A saved head as an HTTP service: the Open Inference Protocol v2, a plain /predict, reload, metrics and limits."""
