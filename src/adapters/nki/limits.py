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


_ROW = "a row stands on one partition, several times"
_TURNED = "the transposed inputs of 128 tokens are held in SBUF"
_KEYS = "the keys and values of one head are held in SBUF"
_HEAD = "a score is two contractions of 128"
_BLOCK = "the scores of a block are one PSUM bank"
_SLOTS = "slots are divided in fp32"

_PRODUCT = _limits(inputs=(24576, _TURNED))

LIMITS: MappingProxyType[str, Limits] = MappingProxyType(
    {
        "rms_norm": _limits(hidden=(10240, _ROW)),
        "rope": _limits(heads_times_dim=(8192, _ROW)),
        "qkv_proj": _PRODUCT,
        "o_proj": _PRODUCT,
        "linear": _PRODUCT,
        "mlp": _limits(hidden_and_intermediate=(36608, _TURNED)),
        "kv_write": _limits(slots=(2**22, _SLOTS), heads_times_dim=(16384, _ROW)),
        "prefill_attention": _limits(head_dim=(256, _HEAD), keys_times_dim=(2**21, _KEYS)),
        "prefill_attention_with_prior": _limits(
            head_dim=(256, _HEAD),
            block_size=(512, _BLOCK),
            keys_times_dim=(2**21, _KEYS),
        ),
        "decode_attention": _limits(
            head_dim=(256, _HEAD),
            block_size=(512, _BLOCK),
            q_heads=(128, "the query heads of a row stand on the partitions"),
            context=(2**17, "the mask of a row is held in SBUF"),
        ),
        "top_k": _limits(
            columns=(2**22, "columns are numbered in fp32"),
            candidates=(8192, "the winners of all pieces are one search"),
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
