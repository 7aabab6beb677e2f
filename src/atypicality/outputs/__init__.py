"""What came in: outputs of a model in arrays and files, how they are split, and the limits of memory."""

from atypicality.outputs.model_outputs import ModelOutputs, Parts, check_outputs, three_way_split

__all__ = ["ModelOutputs", "Parts", "check_outputs", "three_way_split"]
