"""PyTorch: outputs of any classifier collected, and a fitted head as a module behind one."""

from atypicality.integrations.collecting import collect
from atypicality.integrations.torch_module import ReliabilityModule

__all__ = ["ReliabilityModule", "collect"]
