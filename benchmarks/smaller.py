"""How small the inputs of findings become: planted faults of many operators, each in a model of
three nodes.

    python -m benchmarks.smaller [NAME ...]      prints a Markdown table
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import parser

import subgraph
from tests.helpers.planted_candidates import planted

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[{shape}] x) => (float[{rank}] y) {{
  a = Neg(x)
  {body}
  y = Neg(b)
}}"""
IMAGE = (1, 4, 24, 20)


@dataclass(frozen=True)
class Fault:
    """A node and its fault.

    Attributes:
        body: The node, from `a` to `b`.
        change: Statements of the candidate, which have its `node`; "" for none.
        answer: Statements of a run that change `y`, the value of the node; "" for none.
        shape: The shape of the input.
    """

    body: str
    change: str = ""
    answer: str = ""
    shape: tuple[int, ...] = IMAGE


def attribute(name: str, value: str) -> str:
    """Return the statements that set an attribute of the node."""
    return f"""
        kept = [one for one in node.attribute if one.name != {name!r}]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute({name!r}, {value})])
        """


REMOVE = "del node.attribute[:]"
FAULTS = {
    "AveragePool counts its pads": Fault(
        "b = AveragePool <kernel_shape=[3,3], pads=[1,1,1,1]> (a)",
        attribute("count_include_pad", "1"),
    ),
    "MaxPool without ceil_mode": Fault(
        "b = MaxPool <kernel_shape=[3,3], strides=[2,2], ceil_mode=1> (a)",
        attribute("ceil_mode", "0"),
    ),
    "LeakyRelu with the default alpha": Fault("b = LeakyRelu <alpha=0.3> (a)", REMOVE),
    "Elu with the default alpha": Fault("b = Elu <alpha=2.0> (a)", REMOVE),
    "Softmax over another axis": Fault("b = Softmax <axis=1> (a)", attribute("axis", "-1")),
    "Transpose without perm": Fault(
        "b = Transpose <perm=[0,2,3,1]> (a)", attribute("perm", "[0,3,2,1]")
    ),
    "DepthToSpace CRD as DCR": Fault(
        'b = DepthToSpace <blocksize=2, mode="CRD"> (a)',
        attribute("mode", "'DCR'"),
        shape=(1, 8, 6, 6),
    ),
    "LRN with another size": Fault(
        "b = LRN <size=3> (a)", attribute("size", "5"), shape=(1, 8, 6, 6)
    ),
    "GlobalAveragePool as maximum": Fault(
        "b = GlobalAveragePool (a)", "node.op_type = 'GlobalMaxPool'"
    ),
    "ReduceMean as ReduceSum": Fault("b = ReduceMean <axes=[2]> (a)", "node.op_type = 'ReduceMax'"),
    "CumSum exclusive": Fault(
        "i = Constant <value_int=2> () b = CumSum (a, i)", attribute("exclusive", "1")
    ),
    "Flatten at another axis": Fault("b = Flatten <axis=2> (a)", attribute("axis", "1")),
    "HardSigmoid with the default beta": Fault("b = HardSigmoid <alpha=0.2, beta=0.1> (a)", REMOVE),
    "Shrink without bias": Fault("b = Shrink <lambd=0.5, bias=0.5> (a)", attribute("bias", "0.0")),
    "InstanceNormalization with another epsilon": Fault(
        "s = Constant <value_floats=[1.0,1.0,1.0,1.0]> ()"
        " o = Constant <value_floats=[0.0,0.0,0.0,0.0]> ()"
        " b = InstanceNormalization <epsilon=0.00001> (a, s, o)",
        attribute("epsilon", "0.3"),
    ),
    "Exp is NaN above 3": Fault("b = Exp (a)", answer="y[y > 20] = np.nan"),
    "Abs of large values": Fault("b = Abs (a)", answer="y[y > 2] = 2"),
    "Relu, only the last column": Fault("b = Relu (a)", answer="y[..., 16:] += 1"),
    "Tanh, one channel": Fault("b = Tanh (a)", answer="if y.shape[1] > 2: y[:, 2] *= 1.5"),
    "Sigmoid, wide images only": Fault("b = Sigmoid (a)", answer="if y.shape[-1] > 8: y *= 1.5"),
    "Ceil of negative numbers": Fault("b = Ceil (a)", answer="y[y <= 0] -= 1"),
    "Round half up": Fault("b = Round (a)", answer="y[0, 0, 0, 0] += 1"),
    "Mul throws for large values": Fault(
        "b = Mul (a, a)", answer="if y.max() > 4: raise ValueError('too large')"
    ),
    "Sub dies of tall images": Fault(
        "c = Exp (a) b = Sub (c, a)", answer="if y.shape[2] > 10: os.abort()"
    ),
    "Pad with the edge": Fault(
        "p = Constant <value_ints=[0,0,1,1,0,0,1,1]> () b = Pad (a, p)", attribute("mode", "'edge'")
    ),
    "Erf, halved": Fault("b = Erf (a)", answer="y *= 0.5"),
}


def candidate_of(fault: Fault) -> str:
    """Return the code of a candidate with this fault."""
    op = fault.body.split("b = ")[1].split("(")[0].split("<")[0].strip()
    node = f"""
for node in model.graph.node:
    if node.op_type == {op!r}:
        pass
{chr(10).join("        " + line.strip() for line in (fault.change or "pass").strip().splitlines())}
"""
    answer = ""
    if fault.answer:
        answer = f"""
for name in names:
    if {op!r} in made.get(name, ''):
        y = found[name]
        {fault.answer}
if {op!r} in made.values():
    pass
"""
        # the value of the node is an output of a cut, or its negative is one
        node += "\nmade = {}\nfor one in model.graph.node:\n    made[one.output[0]] = one.op_type\n"
        node += "for one in list(model.graph.node):\n"
        node += f"    if one.op_type == 'Neg' and made.get(one.input[0]) == {op!r}:\n"
        node += "        model.graph.output.append(helper.make_tensor_value_info("
        node += "one.input[0], 1, None))\n"
        answer = f"""
for name in list(found):
    if made.get(name) == {op!r}:
        y = found[name]
        {fault.answer}
        for one in model.graph.node:
            if one.op_type == 'Neg' and one.input[0] == name and one.output[0] in found:
                found[one.output[0]] = -y
"""
    return planted(node, answer)


def measure(name: str, folder: Path) -> list[str]:
    """Return the row of a fault."""
    fault = FAULTS[name]
    model = parser.parse_model(
        TEXT.format(shape=",".join(map(str, fault.shape)), rank="", body=fault.body).replace(
            "(float[] y)", "(float y)"
        )
    )
    for k, node in enumerate(model.graph.node):
        node.name = f"n{k}/{node.op_type}"
    inferred = onnx.shape_inference.infer_shapes(model)
    model.graph.output[0].CopyFrom(inferred.graph.output[0])
    folder.mkdir()
    onnx.save(model, folder / "model.onnx")
    values = np.random.default_rng(0).standard_normal(fault.shape).astype(np.float32)
    np.save(folder / "x.npy", 2 * values)
    (folder / "wrong.py").write_text(candidate_of(fault))
    search = subgraph.bisect(
        subgraph.load(folder / "model.onnx"),
        str(folder / "wrong.py"),
        str(folder / "x.npy"),
        output=folder / "out",
    )
    found = search.result.findings
    if not found or not found[0].run.small:
        return [name, str(found[0].nodes if found else search.result.says), "–", "", ""]
    small = found[0].run.small
    places = (Path(str(found[0].case), of, "inputs") for of in ("", "small"))
    sizes = [sum(np.load(file).size for file in place.glob("*.npy")) for place in places]
    elements = f"{sizes[0]} → {sizes[1]}"
    return [name, ", ".join(found[0].ops), elements, str(small.runs), small.numbers]


def main() -> None:
    """Print the table."""
    print("| fault | finding | elements | runs | small |\n|---|---|--:|--:|---|")
    with tempfile.TemporaryDirectory() as top:
        for k, name in enumerate(sys.argv[1:] or FAULTS):
            row = measure(name, Path(top, str(k)))
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
