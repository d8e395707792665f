# SPDX-License-Identifier: Apache-2.0
"""Rules of the compute instructions that are not DMA, matmul, registers or cores."""

from __future__ import annotations

from trnport.adapters.nki.simulator.rules import Rule, add, violation

__all__ = ["ISA_RULES", "violation"]

_OPERATORS = "NKI ISA API common fields: supported math operators"
_FUNCTIONS = "NKI ISA API common fields: supported activation functions"

ISA_RULES: dict[str, Rule] = {
    rule.id: rule
    for rule in (
        Rule(
            "NKI-GPSIMD-PSUM",
            "The GpSimd engine does not reach PSUM.",
            "nki.isa: memory types of each instruction; architecture guide: compute engines",
        ),
        Rule(
            "NKI-BROADCAST",
            "Tiles have equal elements per partition: the instruction does not broadcast.",
            "nki.isa.tensor_tensor: use tensor_scalar to broadcast along the free dimensions",
        ),
        Rule(
            "NKI-FREE-SIZE",
            "The elements per partition are within the instruction's limits.",
            "nki.isa: tile size of each instruction",
        ),
        Rule(
            "NKI-RANK-LIMIT",
            "The tile has no more dimensions than the instruction takes.",
            "nki.isa.max8, nc_find_index8, exponential",
        ),
        Rule("NKI-OP", "The operator exists on the engine.", _OPERATORS),
        Rule("NKI-OP-TARGET", "The operator exists on the target.", _OPERATORS),
        Rule("NKI-OP-REDUCTION", "The operator is a legal reduction here.", _OPERATORS),
        Rule("NKI-OP-MIXED", "Two operators are of one class.", "nki.isa.tensor_scalar"),
        Rule("NKI-OP-CLASS", "The instruction takes operators of this class.", _OPERATORS),
        Rule("NKI-OP-UNARY", "A unary operator has operand None or 0.", "nki.isa.tensor_scalar"),
        Rule("NKI-BITVEC-DTYPE", "Bitvec operators take and give integers.", _OPERATORS),
        Rule(
            "NKI-BITVEC-WIDTH",
            "Bit patterns are not cast, so tiles of a bitvec operator have one width.",
            "nki.isa.tensor_tensor: data types",
        ),
        Rule(
            "NKI-OPERAND",
            "An operand is a number, or a (P, 1) tile, of the documented dtype.",
            "nki.isa: data types of each instruction",
        ),
        Rule(
            "NKI-OPERAND-DTYPE",
            "Per-partition operands of arithmetic are float32.",
            "nki.isa.tensor_scalar: data types",
            relaxed=True,
        ),
        Rule("NKI-ENGINE", "The engine can run the operation.", "nki.isa: engine of each"),
        Rule(
            "NKI-INT-OVERFLOW",
            "Exact integer results fit 32 bits.",
            "nki.isa.tensor_tensor: int32/uint32 types",
            relaxed=True,
        ),
        Rule("NKI-MEMSET-KIND", "An integer tile is set to an integer.", "nki.isa.memset"),
        Rule("NKI-MEMSET-PACKED", "A tile of a packed dtype is set to 0 only.", "nki.isa.memset"),
        Rule("NKI-PATTERN", "A pattern is up to four [step, count] pairs.", "nki.isa.iota"),
        Rule("NKI-ACT-FUNCTION", "The scalar engine has the function.", _FUNCTIONS),
        Rule(
            "NKI-ACT-RANGE",
            "Inputs lie in the function's valid range.",
            _FUNCTIONS,
            relaxed=True,
        ),
        Rule(
            "NKI-ACT-PAIR",
            "activate2 has six pairs of operators.",
            "nki.isa.activate2",
        ),
        Rule(
            "NKI-REDUCE-CMD",
            "The instruction supports the accumulator command, with its parameters.",
            "nki.isa.reduce_cmd; parameters of each instruction",
        ),
        Rule(
            "NKI-ACCUMULATOR",
            "Accumulators are reset or loaded before they are reduced into or read.",
            "nki.isa.exponential: accumulator behavior",
            relaxed=True,
        ),
        Rule(
            "NKI-REDUCE-AXIS",
            "Axes are the last free dimensions, ending at the last one.",
            "nki.isa.tensor_reduce",
        ),
        Rule("NKI-FILL-VALUE", "on_false_value is the smallest fp32.", "nki.isa.range_select"),
        Rule("NKI-INDEX-RANGE", "Indices stay below 2^24.", "nki.isa.range_select"),
        Rule("NKI-COMPARE", "The operator compares.", "nki.isa.range_select, affine_select"),
        Rule("NKI-GATHER-INDEX", "Indices stay inside the source.", "nki.isa.local_gather"),
        Rule("NKI-GATHER-SIZE", "Gather sizes are documented ones.", "nki.isa.local_gather"),
        Rule(
            "NKI-SHUFFLE-MASK",
            "The mask is 32 partitions of the source quadrant, or 255.",
            "nki.isa.nc_stream_shuffle",
        ),
        Rule(
            "NKI-SHUFFLE-START",
            "96/128 active partitions start at 0, 64 at 0/64, 32 at a multiple of 32.",
            "nki.isa.nc_stream_shuffle",
        ),
        Rule("NKI-TOPK-SIZE", "8 <= n < 65536 and 1 <= K <= n, K < 32768.", "nki.isa.topk"),
        Rule("NKI-BN-TRIPLES", "Statistics come in triples.", "nki.isa.bn_aggr"),
        Rule(
            "NKI-INDIRECT-START",
            "An index starts on a quadrant, and a gathered operand on the same partition.",
            "nki.isa: tensor indirection of each instruction",
        ),
        Rule(
            "NKI-INDIRECT-OPERAND",
            "The operand takes no .indirect() view.",
            "nki.isa: tensor indirection of each instruction",
        ),
    )
}
add(*ISA_RULES.values())
