# SPDX-License-Identifier: Apache-2.0
"""Code that a compiler traces takes no decision by what a tensor holds.

Such a branch is frozen to whatever the example held, or costs a stop of the device at every
step. The rule follows tensors through each function: parameters and fields annotated as Tensor,
and whatever is computed from them, except shapes, dtypes and devices.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRACED = sorted(
    file
    for folder in ("core/functional", "core/nn", "models", "adapters/torch_cpu")
    for file in (ROOT / "src" / folder).rglob("*.py")
)

#: Methods that bring a tensor's contents to Python, and those whose result's shape depends on
#: the contents.
READING = {"item", "tolist", "numpy", "cpu", "nonzero", "argwhere", "masked_select", "unique"}
#: What is known without the contents, as attributes or methods.
STATIC = {
    "shape", "dtype", "device", "ndim", "is_cuda", "requires_grad",
    "size", "dim", "numel", "stride", "element_size", "is_contiguous", "is_floating_point",
}  # fmt: skip
#: Functions of torch that give no tensor.
STATIC_FUNCTIONS = {"finfo", "iinfo", "is_tensor", "Size", "device"}
CONVERSIONS = {"int", "bool", "float", "range", "round"}


def is_tensor_type(annotation: ast.expr | None) -> bool:
    """Tensor, ``Tensor | None``, torch.Tensor, nn.Parameter; not a container of them."""
    if isinstance(annotation, ast.BinOp):
        return is_tensor_type(annotation.left) or is_tensor_type(annotation.right)
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return is_tensor_type(ast.parse(annotation.value, mode="eval").body)
    name = annotation.attr if isinstance(annotation, ast.Attribute) else annotation
    name = name.id if isinstance(name, ast.Name) else name
    return name in {"Tensor", "Parameter"}


def tensor_fields(trees: list[ast.Module]) -> set[str]:
    """Names of attributes that some class declares as tensors, and of none as something else."""
    found: dict[str, set[bool]] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                for field in node.body:
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                        kind = is_tensor_type(field.annotation)
                        found.setdefault(field.target.id, set()).add(kind)
    return {name for name, kinds in found.items() if kinds == {True}}


class Function:
    """One function, and the local names that hold tensors."""

    def __init__(self, node: ast.FunctionDef | ast.Lambda, fields: set[str], outer: set[str]):
        self.node, self.fields = node, fields
        arguments = node.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        self.tensors = {a.arg for a in named if is_tensor_type(a.annotation)}
        self.tensors |= outer - {a.arg for a in named}
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        self.nodes = [child for part in body for child in own_nodes(part)]
        known = -1
        while len(self.tensors) != known:
            known = len(self.tensors)
            for child in self.nodes:
                self._assign(child)

    def _assign(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value:
            pairs = [(node.target, node.value)]
        elif isinstance(node, ast.For | ast.comprehension):
            pairs = [(node.target, node.iter)]
        else:
            return
        for target, value in pairs:
            is_pair = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            inner = zip(target.elts, value.elts, strict=False) if is_pair else [(target, value)]
            for to, source in inner:
                if self.holds(source):
                    self.tensors |= {n.id for n in ast.walk(to) if isinstance(n, ast.Name)}

    def holds(self, node: ast.AST | None) -> bool:
        """Whether an expression depends on the contents of a tensor."""
        match node:
            case ast.Name():
                return node.id in self.tensors
            case ast.Attribute():
                if node.attr in STATIC:
                    return False
                return node.attr in self.fields or self.holds(node.value)
            case ast.Call():
                return self._call_holds(node)
            case ast.Compare() if all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
                return False
            case ast.IfExp():  # the condition is judged on its own
                return self.holds(node.body) or self.holds(node.orelse)
            case ast.Lambda() | ast.Constant():
                return False
            case ast.comprehension():
                return self.holds(node.iter)
            case None:
                return False
        return any(self.holds(child) for child in ast.iter_child_nodes(node))

    def _call_holds(self, node: ast.Call) -> bool:
        function = node.func
        if isinstance(function, ast.Attribute):
            if function.attr in STATIC | STATIC_FUNCTIONS:
                return False
            root = function.value
            if isinstance(root, ast.Name) and root.id in {"torch", "F"}:
                return True
            return self.holds(root)
        # Of a plain function's result nothing is known, except for these.
        is_conversion = isinstance(function, ast.Name) and function.id in {"abs", "max", "min"}
        return is_conversion and any(self.holds(argument) for argument in node.args)

    def offences(self) -> Iterator[tuple[int, str]]:
        for node in self.nodes:
            match node:
                case ast.If() | ast.While() | ast.IfExp() | ast.Assert() if self.holds(node.test):
                    yield node.lineno, "branch"
                case ast.BoolOp() if any(self.holds(value) for value in node.values):
                    yield node.lineno, "and/or"
                case ast.UnaryOp(op=ast.Not()) if self.holds(node.operand):
                    yield node.lineno, "not"
                case ast.comprehension() if any(self.holds(test) for test in node.ifs):
                    yield node.iter.lineno, "filter"
                case ast.Call(func=ast.Attribute()) if node.func.attr in READING:
                    yield node.lineno, node.func.attr
                case ast.Call(func=ast.Name()) if node.func.id in CONVERSIONS:
                    if any(self.holds(argument) for argument in node.args):
                        yield node.lineno, node.func.id


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The node and what is below it, without the bodies of functions inside."""
    yield node
    if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
        for child in ast.iter_child_nodes(node):
            yield from own_nodes(child)


def functions(node: ast.AST, fields: set[str], outer: set[str]) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.Lambda):
            function = Function(child, fields, outer)
            yield function
            yield from functions(child, fields, function.tensors)
        else:
            yield from functions(child, fields, outer)


def offences(source: str, fields: set[str] = frozenset()) -> set[tuple[int, str]]:
    """Lines and kinds of decisions by contents."""
    tree = ast.parse(source)
    fields = fields | tensor_fields([tree])
    return {found for function in functions(tree, fields, set()) for found in function.offences()}


FIELDS = tensor_fields([ast.parse(file.read_text()) for file in (ROOT / "src/core").rglob("*.py")])


def test_fields_of_the_steps_metadata_are_known() -> None:
    assert {"slot_mapping", "block_table_tensor"} <= FIELDS


@pytest.mark.parametrize("path", TRACED, ids=lambda path: str(path.relative_to(ROOT)))
def test_traced_code_does_not_look_into_tensors(path: Path) -> None:
    assert offences(path.read_text(encoding="utf-8"), FIELDS) == set()


@pytest.mark.parametrize(("body", "kind"), [
    ("if torch.any(x != 1): pass", "branch"),
    ("if x.max() > 3 and n: pass", "branch"),
    ("y = x * 2\n    z = y + 1\n    while z.sum(): pass", "branch"),
    ("return 1 if x[0] else 2", "branch"),
    ("assert (x > 0).all()", "branch"),
    ("return not x.any()", "not"),
    ("return x.any() or n", "and/or"),
    ("return x.item()", "item"),
    ("return m.slot_mapping.tolist()", "tolist"),
    ("return int(x[0])", "int"),
    ("return bool(m.slot_mapping.any())", "bool"),
    ("a, b = x, n\n    return float(a)", "float"),
    ("for i in range(x.max()): pass", "range"),
    ("return [i for i in range(n) if x[i]]", "filter"),
    ("return x[x > 0].nonzero()", "nonzero"),
    ("def inner(): \n        if x.any(): pass", "branch"),
    ("y = max(x, n)\n    if y: pass", "branch"),
])  # fmt: skip
def test_an_offence_is_found(body: str, kind: str) -> None:
    source = f"def f(x: Tensor, m: AttentionMetadata, n: int):\n    {body}\n"
    assert kind in {found for _, found in offences(source, FIELDS)}


@pytest.mark.parametrize("body", [
    "if x.shape[0] > n: pass",
    "if x is None or n: pass",
    "if x.dtype == torch.float32 and x.dim() == 2: pass",
    "if not m.is_decode: pass",
    "if len(x) > 3: pass",
    "size = x.numel()\n    return int(size) if size else 0",
    "for i in range(x.shape[0]): x = x + i",
    "return torch.where(x > 0, x, 0.0)",
    "low = torch.finfo(x.dtype).min\n    return low if low else x",
])  # fmt: skip
def test_shapes_and_settings_may_decide(body: str) -> None:
    source = f"def f(x: Tensor | None, m: AttentionMetadata, n: int):\n    {body}\n"
    assert offences(source, FIELDS) == set()
