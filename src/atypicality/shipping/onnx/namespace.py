"""The array API, as far as formulas use it, over an ONNX graph: what runs a formula here writes it down.

A `Traced` value is a tensor of the graph, or a constant that enters the graph when an operator first needs it. What is
made of constants alone is computed at once. Types follow the standard: a Python number takes the type of the array
beside it, and of two arrays the narrower one is cast.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atypicality.shipping.onnx.graph import Graph

__all__ = ["GraphNamespace", "Traced"]

Number = bool | int | float

_OPERATORS: dict[str, tuple[str, Callable[..., Any]]] = {
    "add": ("Add", np.add),
    "sub": ("Sub", np.subtract),
    "mul": ("Mul", np.multiply),
    "truediv": ("Div", np.divide),
    "matmul": ("MatMul", np.matmul),
    "and": ("And", np.logical_and),
    "or": ("Or", np.logical_or),
    "lt": ("Less", np.less),
    "le": ("LessOrEqual", np.less_equal),
    "gt": ("Greater", np.greater),
    "ge": ("GreaterOrEqual", np.greater_equal),
    "eq": ("Equal", np.equal),
}


class Traced:
    """A tensor of a graph by its name, or a constant by its value."""

    __array_ufunc__ = None  # NumPy leaves operators to this class

    def __init__(self, graph: Graph, dtype: Any, ndim: int, *, name: str = "", value: NDArray[Any] | None = None):
        self.graph, self.dtype, self.ndim = graph, np.dtype(dtype), ndim
        self.value, self._name = value, name

    @property
    def name(self) -> str:
        """Name in the graph; a constant is stored when it is first asked for."""
        if self.value is not None and not self._name:
            self._name = self.graph.constant(self.value)
        return self._name

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a constant: that of other tensors is not known."""
        assert self.value is not None, "formulas ask only parameters for their shape"
        return self.value.shape

    def __getitem__(self, key: Any) -> "Traced":
        if isinstance(key, Traced):
            name = self.graph("Gather", self.name, key.name)
            return Traced(self.graph, self.dtype, self.ndim + key.ndim - 1, name=name)
        if key == (slice(None), None):
            return Traced(self.graph, self.dtype, 2, name=self.graph("Unsqueeze", self.name, np.array([1])))
        rows, columns = key
        if rows == slice(None) and isinstance(columns, int):
            return Traced(self.graph, self.dtype, 1, name=self.graph("Gather", self.name, np.array(columns), axis=1))
        columned = rows == slice(None) and isinstance(columns, slice) and columns.stop - (columns.start or 0) == 1
        assert columned, "no other part of an array than one column is taken by a formula that is traced"
        name = self.graph("Gather", self.name, np.array([columns.start or 0]), axis=1)
        return Traced(self.graph, self.dtype, 2, name=name)

    def __neg__(self) -> "Traced":
        return _apply("Neg", np.negative, self)

    def __invert__(self) -> "Traced":
        return _apply("Not", np.logical_not, self)

    def __pow__(self, power: int) -> "Traced":
        assert power == 2, "formulas square, and take no other power"
        return self * self

    __hash__ = None  # type: ignore[assignment]  # == makes a tensor

    if TYPE_CHECKING:  # made below, from one table

        def __add__(self, other: Any) -> "Traced": ...
        def __mul__(self, other: Any) -> "Traced": ...
        def __or__(self, other: Any) -> "Traced": ...
        def __gt__(self, other: Any) -> "Traced": ...
        def __ge__(self, other: Any) -> "Traced": ...


def _operator(kind: str, function: Callable[..., Any], *, swapped: bool = False) -> Callable[[Traced, Any], Traced]:
    def operate(self: Traced, other: Any) -> Traced:
        pair = _together(self.graph, other, self) if swapped else _together(self.graph, self, other)
        return _apply(kind, function, *pair)

    return operate


for _name, (_kind, _function) in _OPERATORS.items():
    setattr(Traced, f"__{_name}__", _operator(_kind, _function))
    if _name in ("add", "sub", "mul", "truediv"):
        setattr(Traced, f"__r{_name}__", _operator(_kind, _function, swapped=True))


def _together(graph: Graph, *operands: Any) -> list[Traced]:
    """Operands as traced values of one type; numbers take that of the arrays."""
    dtype = np.result_type(*(operand.dtype for operand in operands if isinstance(operand, Traced)))
    return [
        _cast(operand, dtype) if isinstance(operand, Traced) else _constant(graph, np.asarray(operand, dtype))
        for operand in operands
    ]


def _constant(graph: Graph, value: NDArray[Any]) -> Traced:
    return Traced(graph, value.dtype, value.ndim, value=value)


def _cast(value: Traced, dtype: Any) -> Traced:
    if value.dtype == dtype:
        return value
    if value.value is not None:
        return _constant(value.graph, value.value.astype(dtype))
    return Traced(value.graph, dtype, value.ndim, name=value.graph.cast(value.name, dtype))


def _apply(kind: str, function: Callable[..., Any], *operands: Traced) -> Traced:
    """An operator on values of one type; on constants alone the result itself."""
    graph, values = operands[0].graph, [operand.value for operand in operands]
    if all(value is not None for value in values):
        return _constant(graph, np.asarray(function(*values)))
    dtype = function(*(np.ones((1, 1), operand.dtype) for operand in operands)).dtype
    name = graph(kind, *(operand.name for operand in operands))
    return Traced(graph, dtype, max(operand.ndim for operand in operands), name=name)


def _entrywise(kind: str, function: Callable[..., Any]) -> Callable[["GraphNamespace", Traced], Traced]:
    return lambda xp, x: _apply(kind, function, x)


def _along_rows(kind: str) -> Callable[..., Traced]:
    """A reduction of each row (n, m): its entries become one."""

    def reduce(xp: "GraphNamespace", x: Traced, *, axis: int, keepdims: Any = False) -> Traced:
        name = x.graph(kind, x.name, np.array([1]), keepdims=int(keepdims))
        return Traced(x.graph, x.dtype, 1 + int(keepdims), name=name)

    return reduce


class GraphNamespace:
    """The functions of the array API that formulas call, each adding operators to one graph."""

    bool, int32, int64 = np.dtype(np.bool_), np.dtype(np.int32), np.dtype(np.int64)
    float32, float64 = np.dtype(np.float32), np.dtype(np.float64)
    inf, nan = np.inf, np.nan

    def __init__(self, graph: Graph, n_classes: int) -> None:
        self.graph, self.n_classes = graph, n_classes

    def input(self, name: str, dtype: Any, width: int | None) -> Traced:
        """Declare an input (batch, width), or (batch,) where width is None, which becomes a column."""
        value = Traced(self.graph, dtype, 1 if width is None else 2, name=self.graph.input(name, dtype, width))
        return value[:, None] if width is None else value

    def output(self, name: str, value: Traced, width: int | None) -> None:
        """Declare an output (batch, width), or (batch,) made from a column where width is None."""
        self.graph.output(name, value.name, value.dtype, width)

    def asarray(self, value: Any) -> Traced:
        """A constant; it enters the graph when it is used."""
        return _constant(self.graph, np.asarray(value))

    def astype(self, x: Traced, dtype: Any, *, copy: Any = True) -> Traced:
        """A value in another type."""
        return _cast(x, np.dtype(dtype))

    def zeros_like(self, x: Traced) -> Traced:
        """One zero of the type of `x`: operators broadcast it."""
        return self.asarray(np.zeros((), x.dtype))

    def ones_like(self, x: Traced) -> Traced:
        """One 1 of the type of `x`: operators broadcast it."""
        return self.asarray(np.ones((), x.dtype))

    def where(self, condition: Traced, x: Any, y: Any) -> Traced:
        """Entries of x where the condition holds, else of y."""
        a, b = _together(self.graph, x, y)
        if condition.value is not None and a.value is not None and b.value is not None:
            return self.asarray(np.where(condition.value, a.value, b.value))
        name = self.graph("Where", condition.name, a.name, b.name)
        return Traced(self.graph, a.dtype, max(condition.ndim, a.ndim, b.ndim), name=name)

    exp, log = _entrywise("Exp", np.exp), _entrywise("Log", np.log)
    abs, sqrt = _entrywise("Abs", np.abs), _entrywise("Sqrt", np.sqrt)
    isinf, isnan = _entrywise("IsInf", np.isinf), _entrywise("IsNaN", np.isnan)
    max, min, sum = _along_rows("ReduceMax"), _along_rows("ReduceMin"), _along_rows("ReduceSum")

    def isfinite(self, x: Traced) -> Traced:
        """Whether entries are neither infinite nor NaN."""
        return ~(self.isinf(x) | self.isnan(x))

    def any(self, x: Traced, *, axis: int, keepdims: Any = False) -> Traced:
        """Whether a row of a mask holds a True."""
        return _cast(self.max(_cast(x, np.int32), axis=axis, keepdims=keepdims), np.bool_)

    def all(self, x: Traced, *, axis: int, keepdims: Any = False) -> Traced:
        """Whether a row of a mask holds no False."""
        return _cast(self.min(_cast(x, np.int32), axis=axis, keepdims=keepdims), np.bool_)

    def argmax(self, x: Traced, *, axis: int, keepdims: Any = False) -> Traced:
        """Place of the first of the largest entries of each row."""
        name = self.graph("ArgMax", x.name, axis=1, keepdims=int(keepdims))
        return Traced(self.graph, np.int64, 1 + int(keepdims), name=name)

    def sort(self, x: Traced, *, axis: int, descending: Any, stable: Any) -> Traced:
        """Rows of one entry per class in descending order; a constant width makes it three times faster."""
        width = np.array([self.n_classes])
        return Traced(self.graph, x.dtype, 2, name=self.graph("TopK", x.name, width, n_outputs=2, axis=1))

    def topk(self, x: Traced, count: int, dim: int) -> tuple[Traced]:
        """The largest entries of each row in descending order, as torch gives them."""
        name = self.graph("TopK", x.name, np.array([count]), n_outputs=2, axis=dim)
        return (Traced(self.graph, x.dtype, 2, name=name),)

    def cumulative_sum(self, x: Traced, *, axis: int) -> Traced:
        """Sums of everything up to each place of a row."""
        return Traced(self.graph, x.dtype, 2, name=self.graph("CumSum", x.name, np.array(1)))

    def take(self, x: Traced, indices: Traced, *, axis: int) -> Traced:
        """Rows or columns by their number."""
        return Traced(self.graph, x.dtype, x.ndim, name=self.graph("Gather", x.name, indices.name, axis=axis))

    def concat(self, arrays: list[Traced], *, axis: int) -> Traced:
        """Arrays side by side."""
        name = self.graph("Concat", *(array.name for array in arrays), axis=axis)
        return Traced(self.graph, arrays[0].dtype, 2, name=name)

    def searchsorted(self, edges: Traced, values: Traced, *, side: str = "left") -> Traced:
        """How many of the sorted edges lie below each finite value, or at most at it where the side is "right".

        A binary search written out: log2 of the number of edges steps of one comparison per row.
        """
        size = edges.shape[0]
        if not size or edges.value is None:
            return self.asarray(np.zeros((1, 1), np.int64))
        steps = int(size).bit_length()
        padded = self.asarray(np.concatenate([edges.value, np.full(2**steps - size, np.inf)]))
        position = self.asarray(np.zeros((1, 1), np.int64))
        for step in (2**power for power in reversed(range(steps))):
            edge = padded[position + (step - 1)]
            passed = values >= edge if side == "right" else values > edge
            position = position + _cast(passed, np.int64) * step
        return position

    def each(self, function: Callable[..., Traced], *sequences: Traced) -> Traced:
        """Columns (n, m) that a function makes of the m entries of constant sequences: a loop of the graph."""
        arrays = [np.ascontiguousarray(sequence.value) for sequence in sequences if sequence.value is not None]

        def body(*names: str) -> str:
            entries = [
                Traced(self.graph, array.dtype, array.ndim - 1, name=name)
                for name, array in zip(names, arrays, strict=True)
            ]
            return function(*entries).name

        rows = self.graph.scan(arrays, body)
        return Traced(self.graph, np.float64, 2, name=self.graph("Transpose", rows, perm=[1, 0]))
