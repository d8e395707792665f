# SPDX-License-Identifier: Apache-2.0
"""What our kernels can take, as data.

A call outside the limits is no error: the adapter computes it with its fallback, says so once,
and counts it.
"""

from __future__ import annotations

from types import MappingProxyType

import attrs
import torch

FLOATS = (torch.float32, torch.bfloat16)
"""Dtypes of activations and weights; both sides of a product share one."""

CACHES = (*FLOATS, torch.float8_e5m2)
"""Dtypes of a KV cache. torch's e4m3 has another range than that of NeuronCore-v3."""


@attrs.frozen
class Limits:
    """Largest sizes by the name of the dimension, each with the reason.

    Attributes:
        most: Dimension to the largest size.
        why: Dimension to what runs out beyond it.
    """

    most: MappingProxyType[str, int]
    why: MappingProxyType[str, str]


def _limits(**sizes: tuple[int, str]) -> Limits:
    return Limits(
        MappingProxyType({name: size for name, (size, _) in sizes.items()}),
        MappingProxyType({name: reason for name, (_, reason) in sizes.items()}),
    )


_ROWS_IN_SBUF = "a row of every partition is held in SBUF"
_HEAD = "two contractions of 128 make a score"
_SLOTS = "slots are divided in fp32"
_HEADS_ON_PARTITIONS = "the query heads of a row stand on the partitions"

_PAGED = {
    "head_dim": (256, _HEAD),
    "block_size": (512, "a block is a PSUM bank of scores at most"),
}

LIMITS: MappingProxyType[str, Limits] = MappingProxyType(
    {
        "rms_norm": _limits(hidden=(12288, _ROWS_IN_SBUF)),
        "rope": _limits(heads_times_dim=(8192, _ROWS_IN_SBUF)),
        "qkv_proj": _limits(inputs=(28672, _ROWS_IN_SBUF)),
        "o_proj": _limits(inputs=(28672, _ROWS_IN_SBUF)),
        "linear": _limits(inputs=(28672, _ROWS_IN_SBUF)),
        "mlp": _limits(hidden=(16384, _ROWS_IN_SBUF), intermediate=(32768, _ROWS_IN_SBUF)),
        "kv_write": _limits(slots=(2**22, _SLOTS), heads_times_dim=(16384, _ROWS_IN_SBUF)),
        "prefill_attention": _limits(
            head_dim=(256, _HEAD), tokens=(8192, "a head's keys are held in SBUF")
        ),
        "prefill_attention_with_prior": _limits(
            tokens=(4096, "a head's keys are held in SBUF"),
            context=(8192, "a head's keys are held in SBUF"),
            **_PAGED,
        ),
        "decode_attention": _limits(
            q_heads=(128, _HEADS_ON_PARTITIONS), context=(2**20, _SLOTS), **_PAGED
        ),
        "top_k": _limits(
            columns=(2**22, "columns are numbered in fp32"),
            candidates=(16384, "the winners of all pieces are one search"),
        ),
    }
)
"""Limits by operator."""


def too_large(operator: str, **sizes: int) -> str:
    """Why the operator's kernel cannot take these sizes, or "".

    Args:
        operator: Name of an operator of the port.
        sizes: Sizes by the names in LIMITS.
    """
    limits = LIMITS[operator]
    for name, size in sizes.items():
        if size > limits.most[name]:
            return f"{name} above {limits.most[name]}: {limits.why[name]}"
    return ""
