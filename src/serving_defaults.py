# SPDX-License-Identifier: Apache-2.0
"""What a server takes where its user leaves a setting open: what this machine runs fastest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trnport.toolchain import cxx

PREFILLS = 8
"""Prompts of a prefill program on kernels that compute several at no extra cost."""


def with_defaults(
    values: Mapping[str, Any], *, is_bfloat16: bool, max_num_seqs: int
) -> dict[str, Any]:
    """Settings as given, and our own choice for those that are absent or null.

    In bfloat16 and with a C++ compiler these are kernels compiled for this processor. In float32,
    which is for comparing, plain PyTorch computes as it does everywhere else.

    Args:
        values: Keys of :class:`trnport.core.config.NeuronConfig`.
        is_bfloat16: The model's dtype.
        max_num_seqs: Most requests in one step.
    """
    given = {key: value for key, value in values.items() if value is not None}
    if is_bfloat16 and cxx() is not None:
        given.setdefault("kernels", "native")
        given.setdefault("compiler", "inductor")
    if given.get("kernels") in ("native", "native_int8"):
        given.setdefault("max_prefills_per_batch", min(PREFILLS, max_num_seqs))
    return given
