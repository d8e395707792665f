# SPDX-License-Identifier: Apache-2.0
"""The lint of the Python subset: one violation per rule, and kernels that are clean."""

import textwrap
from pathlib import Path

import pytest

from trnport.adapters.nki.simulator.lint import Finding, lint

KERNELS = sorted((Path(__file__).parents[3] / "src/adapters/nki/kernels").glob("*.py"))

HEAD = """\
from dataclasses import dataclass
from enum import Enum
import nki
import nki.isa as nisa
import nki.language as nl

"""

CLEAN = (
    HEAD
    + '''
SCALE = 0.5
SHAPES = (128, 512)


class Mode(Enum):
    fast = 1
    exact = 2


@dataclass
class Config(nl.NKIObject):
    size: int = 1

    def double(self):
        return self.size * 2


def helper(dst, data, sizes=None):
    """A helper, not a kernel: lists are values here."""
    parts = [1, 2, 3]
    parts.append(4)
    table = {"a": 1}
    for part in parts:
        if part in (1, 2) and not table["a"] == None:
            nisa.tensor_scalar(dst=dst, data=data, op0=nl.multiply, operand0=SCALE * part)


@nki.jit
def kernel(x, mode=Mode.fast, config=None, shape=(1, 2)):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.ndarray(SHAPES, dtype=nl.float32)
    nisa.dma_copy(dst=tile, src=x)

    def body(index):
        nisa.tensor_copy(dst=tile, src=tile)

    nl.fori_loop(0, 4, body)
    with nl.no_reorder():
        for i in range(x.shape[0] // 128):
            helper(tile, tile)
    while i < 3:
        i += 1
    rest = 7 % 3 + 8 / 2
    assert rest > 0, f"rest {rest}"
    size = tile.shape[0] if mode == Mode.fast else -1
    nisa.dma_copy(dst=out, src=tile)
    return out, tile
'''
)

KERNEL = HEAD + "\n@nki.jit\ndef kernel(x, y=None):\n"

#: rule, source of one violation, text of the line at fault
CASES = [
    ("NKI-LINT-IDENTITY", KERNEL + "    if y is None:\n        y = 1\n    return x\n", "y is None"),
    (
        "NKI-LINT-IDENTITY",
        KERNEL + "    z = 1 if y is not None else 2\n    return x\n",
        "y is not None",
    ),
    (
        "NKI-LINT-KEYWORD-ONLY",
        HEAD + "\n@nki.jit\ndef kernel(x, *, flag=True):\n    return x\n",
        "def kernel",
    ),
    (
        "NKI-LINT-LIST-ARGUMENT",
        HEAD + "\n@nki.jit\ndef kernel(x, stride=[1, 1]):\n    return x\n",
        "def kernel",
    ),
    (
        "NKI-LINT-LIST-ARGUMENT",
        HEAD + "\n@nki.jit\ndef kernel(x, sizes: list[int]):\n    return x\n",
        "def kernel",
    ),
    (
        "NKI-LINT-LIST-ARGUMENT",
        KERNEL + "    return x\n\n\ndef host(x):\n    return kernel(x, [1, 2])\n",
        "kernel(x, [1, 2])",
    ),
    (
        "NKI-LINT-NESTED-JIT",
        KERNEL + "    return x\n\n\n@nki.jit\ndef outer(x):\n    return kernel(x)\n",
        "return kernel(x)",
    ),
    (
        "NKI-LINT-NESTED-JIT",
        KERNEL + "    @nki.jit\n    def inner(z):\n        return z\n\n    return inner(x)\n",
        "def inner",
    ),
    (
        "NKI-LINT-CLASS-BASE",
        HEAD
        + "\nclass Plain:\n    size: int = 1\n\n\n@nki.jit\ndef kernel(x):\n"
        + "    c = Plain()\n    return x\n",
        "class Plain",
    ),
    (
        "NKI-LINT-CLASS-BASE",
        HEAD
        + "\nclass Mixed(nl.NKIObject, dict):\n    pass\n\n\n@nki.jit\ndef kernel(x, c: Mixed):\n"
        + "    return x\n",
        "class Mixed",
    ),
    (
        "NKI-LINT-MUTABLE-GLOBAL",
        HEAD + "\nTABLE = [1, 2]\n\n\n@nki.jit\ndef kernel(x):\n    a = TABLE[0]\n    return x\n",
        "a = TABLE[0]",
    ),
    (
        "NKI-LINT-MUTABLE-GLOBAL",
        HEAD + "\nN = 0\n\n\n@nki.jit\ndef kernel(x):\n    global N\n    return x\n",
        "global N",
    ),
    ("NKI-LINT-DIVIDE", KERNEL + "    z = nl.divide(x, y)\n    return z\n", "nl.divide"),
    ("NKI-LINT-DIVIDE", KERNEL + "    z = nl.mod(x, y)\n    return z\n", "nl.mod"),
    (
        "NKI-LINT-DIVIDE",
        KERNEL + "    nisa.tensor_tensor(dst=x, data1=x, data2=y, op=nl.fmod)\n    return x\n",
        "nl.fmod",
    ),
    (
        "NKI-LINT-MASK",
        KERNEL + "    nisa.tensor_copy(dst=x, src=y, mask=x)\n    return x\n",
        "mask=x",
    ),
    ("NKI-LINT-REMOVED", KERNEL + "    i = nl.arange(128)\n    return x\n", "nl.arange"),
    ("NKI-LINT-REMOVED", "import neuronxcc.nki as nki\n", "import neuronxcc"),
    ("NKI-LINT-REMOVED", "from neuronxcc.nki import isa\n", "from neuronxcc"),
    (
        "NKI-LINT-STRING-BUFFER",
        KERNEL + "    z = nl.ndarray((1, 1), nl.float32, buffer='sbuf')\n    return z\n",
        "buffer='sbuf'",
    ),
    ("NKI-LINT-RETURN", KERNEL + "    return 3\n", "return 3"),
    ("NKI-LINT-RETURN", KERNEL + "    return x, 'done'\n", "return x"),
    ("NKI-LINT-RETURN", KERNEL + "    return x.shape\n", "return x.shape"),
    (
        "NKI-LINT-DYNAMIC-LOOP",
        KERNEL
        + "    with nl.no_reorder():\n        for i in nl.dynamic_range(3):\n"
        + "            nisa.memset(x, 0.0)\n    return x\n",
        "nl.dynamic_range",
    ),
    ("NKI-LINT-DICT-KEY", KERNEL + "    t = {1: x}\n    return x\n", "{1: x}"),
    ("NKI-LINT-INT-RANGE", KERNEL + "    t = 4294967296\n    return x\n", "4294967296"),
    ("NKI-LINT-INT-RANGE", KERNEL + "    t = -2147483649\n    return x\n", "2147483649"),
    ("NKI-LINT-CONSTRUCT", KERNEL + "    f = lambda a: a\n    return x\n", "lambda"),
    ("NKI-LINT-CONSTRUCT", KERNEL + "    f = [a for a in (1, 2)]\n    return x\n", "for a in"),
    ("NKI-LINT-CONSTRUCT", KERNEL + "    f = {a: 1 for a in ('b',)}\n    return x\n", "for a in"),
    (
        "NKI-LINT-CONSTRUCT",
        KERNEL + "    f = sum(a for a in (1, 2))\n    return x\n",
        "for a in",
    ),
    (
        "NKI-LINT-CONSTRUCT",
        KERNEL + "    try:\n        y = 1\n    except ValueError:\n        y = 2\n    return x\n",
        "try",
    ),
    ("NKI-LINT-CONSTRUCT", KERNEL + "    with open('f'):\n        y = 1\n    return x\n", "with"),
    ("NKI-LINT-CONSTRUCT", KERNEL + "    raise ValueError('no')\n", "raise"),
    ("NKI-LINT-CONSTRUCT", KERNEL + "    yield x\n", "yield"),
    ("NKI-LINT-CONSTRUCT", KERNEL + "    import math\n    return x\n", "import math"),
    ("NKI-LINT-CONSTRUCT", KERNEL + "    if (z := 1) > 0:\n        y = z\n    return x\n", ":="),
    ("NKI-LINT-CONSTRUCT", KERNEL + "    s = {1, 2}\n    return x\n", "{1, 2}"),
    (
        "NKI-LINT-CONSTRUCT",
        HEAD + "\n@nki.jit\ndef kernel(x, *rest):\n    return x\n",
        "def kernel",
    ),
    (
        "NKI-LINT-CONSTRUCT",
        KERNEL + "    match y:\n        case 1:\n            y = 2\n    return x\n",
        "match",
    ),
    ("NKI-LINT-CONSTRUCT", HEAD + "\n@nki.jit\nasync def kernel(x):\n    return x\n", "async def"),
]


def test_a_clean_kernel_has_no_findings() -> None:
    assert lint(CLEAN) == []


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.name)
def test_our_kernels_are_clean(path: Path) -> None:
    assert lint(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(("rule", "source", "text"), CASES, ids=lambda value: str(value)[-40:])
def test_one_violation_is_found_once_on_its_line(rule: str, source: str, text: str) -> None:
    findings = lint(source)
    assert [finding.rule for finding in findings] == [rule]
    assert text in source.splitlines()[findings[0].line - 1]
    assert findings[0].message


def test_host_code_next_to_a_kernel_may_use_any_python() -> None:
    host = """
    class Plain:
        pass


    TABLE = [1]


    def host(x):
        if x is None:
            raise ValueError(TABLE)
        return [kernel(a) for a in x]
    """
    assert lint(KERNEL + "    return x\n\n" + textwrap.dedent(host)) == []


def test_helpers_that_a_kernel_calls_are_checked_too() -> None:
    source = KERNEL + "    deep(x)\n    return x\n\n\ndef deep(x):\n    deeper(x)\n\n\n"
    source += "def deeper(x):\n    f = lambda a: a\n"
    assert [finding.rule for finding in lint(source)] == ["NKI-LINT-CONSTRUCT"]


def test_a_source_without_decorated_kernels_is_all_kernel_code() -> None:
    source = "def helper(x):\n    return x is None\n"
    assert "NKI-LINT-IDENTITY" in {finding.rule for finding in lint(source)}


def test_helpers_may_return_values_that_are_no_tensors() -> None:
    assert lint("def helper(x):\n    return 3\n") == []


def returns_a_number(x):
    return 3


def test_a_function_given_on_its_own_is_a_kernel() -> None:
    assert [finding.rule for finding in lint(returns_a_number)] == ["NKI-LINT-RETURN"]


def returns_identity(x):
    return x


def compares_identity(x, y=None):
    if y is None:
        return x
    return y


LIMITS = [1, 2]


def reads_a_mutable_global(x):
    size = LIMITS[0]
    x.copy(size)
    return x


def test_functions_are_linted_through_their_source() -> None:
    assert lint(returns_identity) == []
    (finding,) = lint(compares_identity)
    assert finding.rule == "NKI-LINT-IDENTITY"
    here = Path(__file__).read_text(encoding="utf-8").splitlines()
    assert "if y is None" in here[finding.line - 1]


def test_functions_that_read_mutable_objects_from_outside() -> None:
    (finding,) = lint(reads_a_mutable_global)
    assert finding.rule == "NKI-LINT-MUTABLE-GLOBAL"
    assert "LIMITS" in finding.message
    state = {"calls": 0}

    def closes_over(x):
        x.copy(state["calls"])
        return x

    (finding,) = lint(closes_over)
    assert finding.rule == "NKI-LINT-MUTABLE-GLOBAL"
    assert "state" in finding.message


def test_a_wrapped_kernel_object_is_unwrapped() -> None:
    class Kernel:
        def __init__(self, function):
            self.__wrapped__ = function

    assert [f.rule for f in lint(Kernel(compares_identity))] == ["NKI-LINT-IDENTITY"]


def test_findings_are_ordered_and_printable() -> None:
    source = KERNEL + "    f = lambda a: a\n    if y is None:\n        y = 1\n    return x\n"
    findings = lint(source)
    assert [f.line for f in findings] == sorted(f.line for f in findings)
    assert isinstance(findings[0], Finding)
    assert str(findings[0]).startswith(f"{findings[0].line}: {findings[0].rule}: ")


def test_source_that_does_not_parse_names_the_line() -> None:
    with pytest.raises(ValueError, match="line 1"):
        lint("def kernel(:\n")
