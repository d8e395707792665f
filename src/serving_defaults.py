# SPDX-License-Identifier: Apache-2.0
"""What a server takes where its user leaves a setting open: what this machine runs fastest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trnport.toolchain import cxx

NATIVE = ("native", "native_int8")
"""Sets of kernels in C++, all of whose operators a compiler of programs knows."""

PREFILLS = 8
"""Prompts of a prefill program on kernels that compute several at no extra cost."""


def with_defaults(
    values: Mapping[str, Any], *, is_bfloat16: bool, max_num_seqs: int
) -> dict[str, Any]:
    """Settings as given, and our own choice for those that are absent or null.

    In bfloat16 and with a C++ compiler these are kernels and programs compiled for this processor.
    In float32, which is for comparing, plain PyTorch computes as it does everywhere else. Whoever
    chooses other kernels may not be able to compile them.

    Args:
        values: Keys of :class:`trnport.core.config.NeuronConfig`.
        is_bfloat16: The model's dtype.
        max_num_seqs: Most requests in one step.
    """
    given = {key: value for key, value in values.items() if value is not None}
    can_compile = is_bfloat16 and cxx() is not None
    if can_compile:
        given.setdefault("kernels", "native")
    if given.get("kernels") in NATIVE:
        if can_compile:
            given.setdefault("compiler", "inductor")
        given.setdefault("max_prefills_per_batch", min(PREFILLS, max_num_seqs))
    return given
