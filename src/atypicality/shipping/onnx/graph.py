"""An ONNX graph under construction: a value is the name of a tensor."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.validation import require

__all__ = ["Graph", "Value"]

OPSET = 18
IR_VERSION = 8  # both of early 2023: old enough for the runtimes in use, new enough for every operator here
LARGEST_BYTES = 2**31 - 2**20
"""Of constants: a protocol buffer holds less than 2 GiB, and the operators need a little of it."""
BATCH = "batch"

Value = str
Operand = Value | float | NDArray[Any] | np.generic


class Graph:
    """Nodes and constants in the order of their making: the same calls give the same bytes."""

    def __init__(self) -> None:
        onnx = require("onnx", extra="onnx", feature="ONNX export")
        self.helper, self.numpy_helper = onnx.helper, onnx.numpy_helper
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.constants: dict[tuple[str, tuple[int, ...], bytes], Any] = {}
        self._made = self._stored = 0

    def __call__(self, kind: str, *operands: Operand, n_outputs: int = 1, **attributes: Any) -> Value:
        """Add an operator and give its first output; numbers and arrays among the operands become constants."""
        names = [f"{kind.lower()}_{self._made}{f'_{i}' if i else ''}" for i in range(n_outputs)]
        self._made += 1
        values = [operand if isinstance(operand, str) else self.constant(operand) for operand in operands]
        self.nodes.append(self.helper.make_node(kind, values, names, name=names[0], **attributes))
        return names[0]

    def constant(self, value: float | NDArray[Any] | np.generic) -> Value:
        """A constant in its own type (a Python number is float64); equal constants are stored once."""
        array = np.asarray(value, order="C")
        key = (array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).digest())
        if key not in self.constants:
            self._stored += array.nbytes
            if self._stored > LARGEST_BYTES:
                raise ValueError(
                    f"this head has constants of more than {LARGEST_BYTES / 2**30:.2g} GiB, and an ONNX file holds no "
                    "more. Use covariance='tied' or 'diagonal', or n_components."
                )
            self.constants[key] = self.numpy_helper.from_array(array, f"constant_{len(self.constants)}")
        return str(self.constants[key].name)

    def cast(self, value: Value, dtype: Any) -> Value:
        """The value in another type."""
        return self("Cast", value, to=self._type(dtype))

    def reduce(self, kind: str, value: Value) -> Value:
        """A reduction of each row (n, k) to a column (n, 1)."""
        return self(kind, value, np.array([1]), keepdims=1)

    def input(self, name: str, dtype: Any, width: int | None) -> Value:
        """Declare an input (batch, width), or (batch,) where width is None."""
        self.inputs.append(self._declared(name, dtype, [BATCH] if width is None else [BATCH, width]))
        return name

    def output(self, name: str, value: Value, dtype: Any, width: int | None) -> None:
        """Declare an output (batch, width), or (batch,) made from a column where width is None."""
        if width is None:
            self.nodes.append(
                self.helper.make_node("Squeeze", [value, self.constant(np.array([1]))], [name], name=name)
            )
        else:
            self.nodes.append(self.helper.make_node("Identity", [value], [name], name=name))
        self.outputs.append(self._declared(name, dtype, [BATCH] if width is None else [BATCH, width]))

    def pass_through(self, name: str) -> None:
        """Let an input also be an output."""
        self.outputs.extend(declared for declared in self.inputs if declared.name == name)

    def scan(self, sequences: list[NDArray[Any]], body: "Body") -> Value:
        """Values (m, n) that `body` makes, one row (n,) from each of the m entries of the sequences."""
        outer, self.nodes = self.nodes, []
        names = [f"entry_{self._made}_{i}" for i in range(len(sequences))]
        made = body(*names)
        graph = self.helper.make_graph(
            self.nodes,
            "one_entry",
            [self._declared(name, array.dtype, array.shape[1:]) for name, array in zip(names, sequences, strict=True)],
            [self._declared(made, np.float64, [BATCH])],
        )
        self.nodes = outer
        return self("Scan", *sequences, body=graph, num_scan_inputs=len(sequences))

    def model(self, name: str, *, doc: str = "", metadata: dict[str, str] | None = None) -> Any:
        """The finished model."""
        graph = self.helper.make_graph(
            self.nodes, name, self.inputs, self.outputs, list(self.constants.values()), doc_string=doc
        )
        model = self.helper.make_model(
            graph, opset_imports=[self.helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, doc_string=doc
        )
        self.helper.set_model_props(model, metadata or {})
        return model

    def _declared(self, name: str, dtype: Any, shape: Any) -> Any:
        return self.helper.make_tensor_value_info(name, self._type(dtype), list(shape))

    def _type(self, dtype: Any) -> int:
        return int(self.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


Body = Any  # a function of the entries' names that adds nodes and gives the name of their result
