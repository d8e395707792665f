# SPDX-License-Identifier: Apache-2.0
"""Register instructions: 32-bit scalars for dynamic addresses and loop bounds."""

from __future__ import annotations

from typing import Any

from trnport.adapters.nki.simulator.access import read_int, write
from trnport.adapters.nki.simulator.dtypes import is_integer
from trnport.adapters.nki.simulator.handles import NkiInstruction, VirtualRegister
from trnport.adapters.nki.simulator.memory import PSUM
from trnport.adapters.nki.simulator.rules import Rule, add, violation
from trnport.adapters.nki.simulator.tensor import NkiTensor

__all__ = [
    "NkiInstruction",
    "VirtualRegister",
    "register_alloc",
    "register_load",
    "register_move",
    "register_store",
]

add(
    Rule(
        "NKI-REGISTER-OPERAND",
        "Registers move ints and registers, and one integer of SBUF or HBM.",
        "nki.isa.register_load, register_store, register_move",
    )
)


def register_alloc(x: int | None = None) -> VirtualRegister:
    """Return a new register, empty or holding an int."""
    if x is not None and type(x) is not int:
        violation("NKI-REGISTER-OPERAND", "register_alloc", "x", repr(x), "None or an int")
    register = VirtualRegister()
    if x is not None:
        register.poke(x, "register_alloc")
    return register


def register_move(dst: VirtualRegister, src: int | VirtualRegister) -> None:
    """Set a register to an int or to another register's value."""
    _require_register("register_move", "dst", dst)
    if isinstance(src, VirtualRegister):
        dst.poke(src.peek("register_move"), "register_move")
    elif type(src) is int:
        dst.poke(src, "register_move")
    else:
        violation("NKI-REGISTER-OPERAND", "register_move", "src", repr(src), "an int or a register")


def register_load(dst: VirtualRegister, src: NkiTensor) -> None:
    """Load one integer from SBUF or HBM."""
    _require_register("register_load", "dst", dst)
    _require_one("register_load", "src", src)
    dst.poke(int(read_int(src, "register_load").reshape(-1)[0]), "register_load")


def register_store(dst: NkiTensor, src: VirtualRegister) -> None:
    """Store a register into one element of SBUF or HBM."""
    _require_register("register_store", "src", src)
    _require_one("register_store", "dst", dst)
    write(dst, src.peek("register_store"), "register_store")


def _require_register(instruction: str, name: str, value: object) -> None:
    if not isinstance(value, VirtualRegister):
        violation("NKI-REGISTER-OPERAND", instruction, name, repr(value), "a register")


def _require_one(instruction: str, name: str, t: Any) -> None:
    if not isinstance(t, NkiTensor) or t.size != 1 or t.buffer is PSUM or not is_integer(t.dtype):
        violation("NKI-REGISTER-OPERAND", instruction, name, t, "one integer in SBUF or HBM")
