"""A graph of ONNX that is written operation by operation."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from transformer_jax.ops.int8_products import static_factor

#: The versions of the operators and of the file's form, which runtimes since 2022 read.
OPSET, IR_VERSION = 17, 8

#: The kinds of arrays, as ONNX numbers them.
FLOAT, INT64, BOOL = 1, 7, 9

#: A file of more bytes has its weights beside it: no message of protobuf has 2 GiB.
_LARGEST = 2**31 - 2**24


class Graph:
    """Nodes and weights. An operation takes names and arrays, and returns the name of its result.

    Args:
        int8: whether matrices are held in int8, and what they are multiplied with is rounded.
    """

    def __init__(self, int8: bool = False) -> None:
        self._int8, self._numbers = int8, itertools.count()
        self._ends: dict[str, list[Any]] = {"inputs": [], "outputs": []}
        self._nodes: list[Any] = []
        self._weights: dict[str, np.ndarray] = {}
        self._rounded: dict[str, list[str]] = {}
        self._named: dict[str, str] = {}  #: results that are outputs

    def __call__(self, op: str, *inputs: Any, outputs: Sequence[str] = (), **more: Any) -> str:
        """Adds a node; returns its first output."""
        from onnx import helper

        names = [each if isinstance(each, str) else self.weight(each) for each in inputs]
        made = [*outputs] or [f"{op}_{next(self._numbers)}"]
        self._nodes.append(helper.make_node(op, names, made, **more))
        return made[0]

    def choose(self, condition: str, *branches: Callable[[], str]) -> str:
        """The result of the first of two branches where a condition holds, else of the second."""
        from onnx import helper

        outer, graphs = self._nodes, []
        for write in branches:
            self._nodes = []
            result = helper.make_tensor_value_info(write(), FLOAT, None)
            graphs.append(helper.make_graph(self._nodes, "branch", [], [result]))
        self._nodes = outer
        return self("If", condition, then_branch=graphs[0], else_branch=graphs[1])

    def end(self, name: str, shape: Sequence[int | str], kind: int = FLOAT, of: str = "") -> str:
        """Declares an input, or of a result an output; dynamic sizes have names."""
        from onnx import helper

        if of:
            self._named[of] = name
        info = helper.make_tensor_value_info(name, kind, shape)
        ends = self._ends["outputs" if of else "inputs"]
        if info not in ends:
            ends.append(info)
        return name

    def weight(self, value: Any) -> str:
        """Adds an array."""
        name = f"weight_{next(self._numbers)}"
        self._weights[name] = np.asarray(value, order="C")
        return name

    def dense(self, x: str, kernel_IO: np.ndarray) -> str:
        """[..., I] -> [..., O]."""
        if self._int8:
            return self._product(x, *map(self.weight, _in_int8(kernel_IO)))
        return self("MatMul", x, kernel_IO)

    def table(self, rows_VE: np.ndarray) -> tuple[Callable[[str], str], Callable[[str], str]]:
        """What reads the rows of ids, and what multiplies features with all rows."""
        kernel_EV, *units_V = _in_int8(rows_VE.T) if self._int8 else (rows_VE.T,)
        table, *units = map(self.weight, (kernel_EV.T, *units_V))

        def read(ids: str) -> str:
            rows = self("Gather", table, ids)
            if not self._int8:
                return rows
            of_rows = self("Unsqueeze", self("Gather", *units, ids), [-1])
            return self("Mul", self("Cast", rows, to=FLOAT), of_rows)

        def project(x: str) -> str:
            turned = self("Transpose", table, perm=[1, 0])
            return self._product(x, turned, *units) if self._int8 else self("MatMul", x, turned)

        return read, project

    def _product(self, x: str, whole_IO: str, units_O: str) -> str:
        if x not in self._rounded:
            self._rounded[x] = [f"{x}_{part}" for part in ("whole", "unit", "zero")]
            self("DynamicQuantizeLinear", x, outputs=self._rounded[x])
        whole, unit, zero = self._rounded[x]
        sums = self("Cast", self("MatMulInteger", whole, whole_IO, zero), to=FLOAT)
        return self("Mul", sums, self("Mul", unit, units_O))

    def save(self, path: epath.Path) -> None:
        """Writes the file, and beside it `<name>_data` if it were too large."""
        import onnx
        from onnx import helper, numpy_helper

        weights = [numpy_helper.from_array(value, name) for name, value in self._weights.items()]
        for names in (names for node in self._nodes for names in (node.input, node.output)):
            names[:] = [self._named.get(name, name) for name in names]
        graph = helper.make_graph(self._nodes, path.stem, *self._ends.values(), weights)
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=IR_VERSION)
        is_large = sum(value.nbytes for value in self._weights.values()) > _LARGEST
        place = f"{path.name}_data"
        onnx.save_model(model, str(path), save_as_external_data=is_large, location=place)


def _in_int8(kernel_IO: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers, and what 1 stands for in each column; no pair of products exceeds int16."""
    kernel = jnp.asarray(kernel_IO, jnp.float32)
    factors_O = jax.vmap(lambda w_I: static_factor(w_I[:, None], 0), 1)(kernel)
    return np.asarray(jnp.round(kernel * factors_O), np.int8), np.asarray(1 / factors_O)
