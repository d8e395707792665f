# SPDX-License-Identifier: Apache-2.0
"""Bugs in the NKI kernels."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

HOME = "adapters/nki/kernels/"
NKI = "tests/adapters/nki/test_kernels_"
ON_KERNELS = ("-k", "not torch_cpu and not recording and not poisoning")
ATTENTION = (
    "tests/contracts/test_kernels_attention.py",
    NKI + "machines.py",
    NKI + "accuracy.py",
    *ON_KERNELS,
)
OPERATORS = ("tests/contracts/test_kernels.py", NKI + "machines.py", *ON_KERNELS)
EXPERTS = (NKI + "moe.py", *ON_KERNELS)


def slots(name: str, old: str, new: str, kind: str) -> Mutant:
    return Mutant("slots-" + name, HOME + "slots.py", old, new, kind, ATTENTION)


def softmax(name: str, old: str, new: str, kind: str) -> Mutant:
    return Mutant("softmax-" + name, HOME + "softmax.py", old, new, kind, ATTENTION)


def attention(file: str, name: str, old: str, new: str, kind: str) -> Mutant:
    return Mutant(f"{file}-{name}", f"{HOME}{file}.py", old, new, kind, ATTENTION)


def operator(file: str, name: str, old: str, new: str, kind: str) -> Mutant:
    return Mutant(f"{file}-{name}", f"{HOME}{file}.py", old, new, kind, OPERATORS)


def expert(file: str, name: str, old: str, new: str, kind: str) -> Mutant:
    return Mutant(f"{file}-{name}", f"{HOME}{file}.py", old, new, kind, EXPERTS)


MUTANTS = (
    slots(
        "newest",
        "op0=nl.less_equal, operand0=newest",
        "op0=nl.less, operand0=newest",
        "mask off by one: the newest key is not seen",
    ),
    slots(
        "oldest",
        "op0=nl.greater,\n        operand0=oldest",
        "op0=nl.greater_equal,\n        operand0=oldest",
        "window off by one: one key too many",
    ),
    slots(
        "row-stride",
        "(heads - 1) * block_size",
        "heads * block_size",
        "wrong stride from slot to row",
    ),
    slots(
        "floor",
        "operand0=0.5,\n        op1",
        "operand0=0.0,\n        op1",
        "floor division off at multiples of the divisor",
    ),
    slots("head", "offset=offset, vector_offset", "offset=0, vector_offset", "KV head ignored"),
    slots(
        "blank",
        "    nisa.memset(dst=tile, value=0.0)\n",
        "",
        "skipped rows are not zeroed",
    ),
    slots(
        "stale",
        "nisa.tensor_copy_predicated(dst=kept, src=rows, predicate=usable)",
        "nisa.tensor_copy(dst=kept, src=rows)",
        "slots out of reach are read",
    ),
    slots(
        "large-block",
        "first = j * size // block_size",
        "first = j",
        "wrong block of a block larger than a piece",
    ),
    softmax(
        "total-rescale",
        "operand0=decay, op1=nl.add, operand1=added",
        "operand0=1.0, op1=nl.add, operand1=added",
        "running softmax: rescale of the sum dropped",
    ),
    softmax(
        "values-rescale",
        "operand0=decay, op1=nl.add, operand1=gained",
        "operand0=1.0, op1=nl.add, operand1=gained",
        "running softmax: rescale of the values dropped",
    ),
    softmax(
        "running-maximum",
        "data1=highest, data2=top, op=nl.maximum",
        "data1=highest, data2=highest, op=nl.maximum",
        "running softmax: earlier maximum forgotten",
    ),
    softmax(
        "decay-scale",
        "data=top, bias=shift, scale=scale",
        "data=top, bias=shift, scale=1.0",
        "scale dropped from the rescale",
    ),
    softmax(
        "sink-weight",
        "nisa.memset(dst=total, value=1.0)",
        "nisa.memset(dst=total, value=0.0)",
        "sink ignored in the sum",
    ),
    softmax("sink-scale", "operand0=1.0 / scale", "operand0=1.0", "sink not unscaled"),
    softmax(
        "empty-row",
        "op0=nl.maximum, operand0=1e-30",
        "op0=nl.maximum, operand0=0.0",
        "division by zero where nothing is seen",
    ),
    softmax(
        "piece-start",
        "moving=pieces[i])\n        start = start + count",
        "moving=pieces[i])",
        "every piece of values weighted with the first weights",
    ),
    attention(
        "sources",
        "chunk-start",
        "places = positions_in_row(queries, start, count)",
        "places = positions_in_row(queries, 0, count)",
        "mask of a later chunk starts at position 0",
    ),
    attention(
        "sources",
        "own-stride",
        "channel_multiplier=heads)",
        "channel_multiplier=1)",
        "wrong stride between a prompt's rows",
    ),
    attention(
        "sources",
        "padding-seen",
        "usable, 0.5)",
        "usable, -0.5)",
        "validity ignored in the mask",
    ),
    attention(
        "sources",
        "padding-read",
        "nisa.tensor_copy_predicated(dst=kept, src=rows, predicate=usable)",
        "nisa.tensor_copy(dst=kept, src=rows)",
        "keys of padding rows are read",
    ),
    attention(
        "prefill",
        "last-chunk",
        "too_new = first >= start + count",
        "too_new = first >= start + count - 1",
        "last chunk skipped when one query sees one key of it",
    ),
    attention(
        "prefill",
        "first-chunk",
        "first + keys <= start - window + 1",
        "first + keys <= start - window + 2",
        "chunk skipped whose last key is in the window",
    ),
    attention(
        "prefill",
        "heads",
        "range(head * group, (head + 1) * group)",
        "range(head, q_heads, heads)",
        "GQA: query heads interleaved",
    ),
    attention(
        "prefill",
        "prior-end",
        "broadcast_scalar(cached_len, -1.0)",
        "broadcast_scalar(cached_len, 0.0)",
        "prior off by one: one slot too many",
    ),
    attention(
        "prefill",
        "prior-window",
        "data2=cached[0:count, :], op=nl.add",
        "data2=newest[0:count, :], op=nl.add",
        "window into the prior off by one",
    ),
    attention(
        "prefill",
        "prior-head",
        "offset = head * block_size * k_cache.shape[1]",
        "offset = head * k_cache.shape[1]",
        "wrong stride between heads of the prior",
    ),
    attention("decode", "heads", "first = h * group", "first = h", "GQA: wrong query heads"),
    attention(
        "decode",
        "window",
        "-float(window or 2**24)",
        "1.0 - float(window or 2**24)",
        "window off by one: one key too few",
    ),
    attention(
        "decode",
        "sinks",
        "sinks[first : first + group, :]",
        "sinks[0:group, :]",
        "sinks of the first heads for all",
    ),
    attention(
        "kv_write",
        "padding",
        "rows = slot_rows(numbers, heads, block_size)\n",
        "rows = slot_rows(numbers, heads, block_size)\n"
        "        nisa.tensor_scalar(dst=rows, data=rows, op0=nl.maximum, operand0=0.0)\n",
        "slot -1 is written",
    ),
    attention(
        "kv_write",
        "values",
        "((k, k_cache), (v, v_cache))",
        "((k, k_cache), (k, v_cache))",
        "keys written as values",
    ),
    attention(
        "kv_write",
        "head-stride",
        "[block_size * dim, heads]",
        "[dim, heads]",
        "wrong stride between heads of a slot",
    ),
    operator("rotary", "sign", "op=nl.subtract", "op=nl.add", "rope sign"),
    operator(
        "rotary",
        "operands",
        "data1=first, data2=sin",
        "data1=second, data2=sin",
        "rope: swapped operand",
    ),
    operator("norm", "eps", "operand1=eps", "operand1=0.0", "epsilon dropped"),
    operator("norm", "mean", "1.0 / width", "1.0 / (width + 1)", "mean off by one"),
    operator("topk", "piece-offset", "if first > 0:", "if first > WIDTH:", "ignored offset"),
    operator(
        "topk",
        "ties",
        "first, at = p * WIDTH, p * kept",
        "first, at = p * WIDTH, (pieces - 1 - p) * kept",
        "equal values by highest piece",
    ),
    operator(
        "topk",
        "infinity",
        "    restore_infinity(values)\n",
        "",
        "minus infinity comes back finite",
    ),
    operator(
        "projection",
        "last-slice",
        "for s in range(tiles_of(depth, PARTITIONS)):",
        "for s in range(max(1, depth // PARTITIONS)):",
        "last tile of the contraction skipped",
    ),
    operator(
        "projection",
        "bias-offset",
        "row_vector(bias, first, size, rows)",
        "row_vector(bias, 0, size, rows)",
        "offset of the bias ignored",
    ),
    operator(
        "projection",
        "accumulate",
        "stationary=stationary, moving=tile)",
        "stationary=stationary, moving=tile, accumulate=False)",
        "dropped accumulate",
    ),
    operator(
        "tiles",
        "block-start",
        "x[start + first : start + first + rows, left",
        "x[first : first + rows, left",
        "start of a block of tokens ignored",
    ),
    operator(
        "mlp",
        "last-slice",
        "for s in range(tiles_of(width, PARTITIONS)):",
        "for s in range(max(1, width // PARTITIONS)):",
        "last tile of the contraction skipped",
    ),
    operator(
        "mlp",
        "exchange",
        "% 2 != nl.program_id(0)",
        "% 2 == nl.program_id(0)",
        "two cores: own half read back instead of the other's",
    ),
    expert("mlp", "clamp", "operand0=-limit", "operand0=0.0", "lower clamp at zero"),
    expert(
        "router",
        "k",
        "if k - first < EIGHT:",
        "if k - first < EIGHT - 1:",
        "one expert too many for k = 7",
    ),
    expert(
        "router",
        "normalise",
        "data=sum_all if over_all else sum_best",
        "data=sum_all",
        "router normalises over all experts",
    ),
    expert(
        "moe",
        "affinity",
        "weights[:, e : e + 1], has_bias",
        "weights[:, 0:1], has_bias",
        "weight of expert 0 for every expert",
    ),
    expert("moe", "bias", "last = down_bias[e]", "last = down_bias[0]", "bias of expert 0 for all"),
    expert("moe", "other-core", "both[1 - here]", "both[here]", "own half added twice"),
    expert(
        "fused_qkv",
        "keys",
        "projected[:, q_heads : q_heads + kv_heads, :]",
        "projected[:, 0:kv_heads, :]",
        "keys taken from the queries",
    ),
)
