"""An ONNX graph under construction, and the row-wise pieces that every part of a head is made of.

A value is the name of a tensor. One number per row is kept as a column (n, 1), so that it broadcasts. All arithmetic
is float64 unless a piece says otherwise: inputs and probabilities are float32, what lies between must not be.
"""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atypicality.validation import require

__all__ = ["Graph", "Value", "column_of", "cut", "interpolate", "row_any", "softmax"]

OPSET = 18
IR_VERSION = 8
"""Both of early 2023: old enough for the runtimes in use, new enough for every operator here."""
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


def column_of(graph: Graph, value: Value) -> Value:
    """One number per row (n,) as a column (n, 1)."""
    return graph("Unsqueeze", value, np.array([1]))


def row_any(graph: Graph, mask: Value) -> Value:
    """Whether a row of a mask (n, k) holds a True, as a column."""
    return graph.cast(graph.reduce("ReduceMax", graph.cast(mask, np.int32)), np.bool_)


def cut(graph: Graph, edges: NDArray[np.float64], value: Value, *, inclusive: bool = False) -> Value:
    """How many of the sorted edges lie below each value (n, 1), or at most at it where `inclusive`.

    Values must be finite. A binary search written out: log2 of the number of edges steps of one comparison per row.
    """
    if not edges.size:
        return graph.constant(np.array([[0]]))
    steps = int(edges.size).bit_length()
    padded = np.r_[edges, np.full(2**steps - edges.size, np.inf)]  # infinity is above every finite value
    position: Operand = np.array([[0]])
    for step in (2**power for power in reversed(range(steps))):
        edge = graph("Gather", padded, graph("Add", position, np.array(step - 1)))
        passed = graph("GreaterOrEqual" if inclusive else "Greater", value, edge)
        position = graph("Add", position, graph("Mul", graph.cast(passed, np.int64), np.array(step)))
    return str(position)


def interpolate(graph: Graph, values: NDArray[np.float64], levels: NDArray[np.float64], at: Value) -> Value:
    """Piecewise linear through (values, levels), as `numpy.interp`: 0 before the first, constant after the last."""
    place = cut(graph, values, at, inclusive=True)
    slopes = np.diff(levels) / np.diff(values)
    slope = graph("Gather", np.r_[0.0, slopes, 0.0], place)
    away = graph("Sub", at, graph("Gather", np.r_[values[:1], values], place))
    return graph("Add", graph("Mul", slope, away), graph("Gather", np.r_[0.0, levels], place))


def softmax(graph: Graph, scores: Value, hidden: Value) -> Value:
    """Softmax (n, k) of each row over the entries that are not hidden; those get 0."""
    top = graph.reduce("ReduceMax", graph("Where", hidden, -np.inf, scores))
    weights = graph("Where", hidden, 0.0, graph("Exp", graph("Sub", scores, top)))
    return graph("Div", weights, graph.reduce("ReduceSum", weights))
