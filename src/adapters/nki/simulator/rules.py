# SPDX-License-Identifier: Apache-2.0
"""The rules a kernel must keep: id, what it says, and where it is documented.

An instruction reports a broken rule with `violation(...)`. A rule marked `relaxed` is stricter than
what runs today somewhere else; `strict=False` lets such a kernel pass.

A module that adds instructions adds its own rules at import: `add(Rule("NKI-...", ...), ...)`.
Every rule needs a test that breaks it; tests/adapters/nki/test_rules_core.py checks that.
"""

from __future__ import annotations

import attrs

from trnport.adapters.nki.simulator import machine


class NkiError(Exception):
    """Base class of what the simulator raises on purpose."""


class NkiValidationError(NkiError):
    """A kernel or a launch breaks a documented constraint."""


class NotSimulatedError(NkiError, NotImplementedError):
    """The kernel uses something that exists in NKI but not in this simulator."""


class RuleViolationError(NkiValidationError):
    """A kernel breaks one rule of `RULES`.

    Attributes:
        rule: The rule's id.
    """

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


@attrs.frozen
class Rule:
    """One rule.

    Attributes:
        id: Stable name, "NKI-...".
        text: What the rule demands, in one sentence.
        page: Title and section of the public page that states it.
        relaxed: Whether `strict=False` lets it pass.
    """

    id: str
    text: str
    page: str
    relaxed: bool = False


RULES: dict[str, Rule] = {}


def add(*rules: Rule) -> None:
    """Add rules to the table.

    Raises:
        ValueError: Two rules have one id.
    """
    for rule in rules:
        if rule.id in RULES and RULES[rule.id] != rule:
            raise ValueError(f"rule {rule.id} is defined twice")
        RULES[rule.id] = rule


def violation(rule_id: str, instruction: str, operand: str, value: object, limit: object) -> None:
    """Report a broken rule: raise, unless the rule is relaxed and the launch is not strict.

    Args:
        rule_id: Key of `RULES`.
        instruction: Name of the instruction or language function.
        operand: Which operand or parameter is wrong.
        value: What it is.
        limit: What it may be.

    Raises:
        RuleViolationError: Always in a strict launch.
    """
    rule = RULES[rule_id]
    core = machine.current_or_none()
    if rule.relaxed and core is not None and not core.strict:
        waived = core.counters.waived
        waived[rule_id] = waived.get(rule_id, 0) + 1
        return
    raise RuleViolationError(
        rule_id,
        f"{instruction}: {operand} is {value}; allowed: {limit}. "
        f"[{rule_id}] {rule.text} (page: {rule.page})",
    )


_ISA = "nki.isa."
_TENSOR = "nki.language.NkiTensor"
_SIMULATOR = "trnport: stricter than the public simulator"

add(
    Rule(
        "NKI-BUFFER",
        "An operand must be in a memory the engine reaches.",
        "nki.isa: memory types of each instruction",
    ),
    Rule(
        "NKI-SHAPE",
        "Operands must have the shapes the instruction asks for.",
        "nki.isa: layout and tile size of each instruction",
    ),
    Rule(
        "NKI-DTYPE",
        "An operand must have a dtype the instruction supports.",
        "nki.isa: data types of each instruction",
    ),
    Rule(
        "NKI-PARAMETER",
        "A parameter must have a documented value.",
        "nki.isa: parameters of each instruction",
    ),
    Rule(
        "NKI-ENUM",
        "Modes are enum members, not their numbers.",
        "NKI 0.3 release notes: enums",
        relaxed=True,
    ),
    Rule(
        "NKI-TARGET",
        "The instruction or option must exist on the target.",
        "nki.isa: notes on NeuronCore versions",
    ),
    Rule(
        "NKI-PARTITIONS",
        "A tile has at most 128 partitions.",
        "nki.language.tile_size.pmax",
    ),
    Rule(
        "NKI-VIEW-DIMS",
        "Engines address one partition dimension and up to four free ones.",
        "Trainium/Inferentia2 architecture guide: access patterns",
    ),
    Rule(
        "NKI-START-PARTITION",
        "More than 64 partitions start at 0, 33 to 64 at 0 or 64, up to 32 at 0, 32, 64 or 96.",
        "Trainium/Inferentia2 architecture guide: partition access",
        relaxed=True,
    ),
    Rule(
        "NKI-UNWRITTEN",
        "Memory must be written before it is read.",
        "nki.language.ndarray: a new tensor is uninitialized",
        relaxed=True,
    ),
)
