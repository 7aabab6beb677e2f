"""A fitted head as one ONNX file."""

from atypicality.shipping.onnx.export import export_onnx

__all__ = ["export_onnx"]
