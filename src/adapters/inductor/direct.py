# SPDX-License-Identifier: Apache-2.0
"""Call the code that inductor generated without what PyTorch puts around it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, cast

from torch import Tensor
from torch._functorch._aot_autograd.aot_autograd_result import deserialize_bundled_cache_entry

Code = Callable[[list[Tensor]], Sequence[Tensor]]


def loaded(artifact: bytes) -> Code:
    """The code of an artifact of ``standalone_compile(aot=True)``, which takes a list.

    The wrapper around it handles inputs that change their shape and outputs that are views,
    among others. It costs 10 to 50 us a call, so where it would do nothing it is left out.
    """
    entry = pickle.loads(artifact)[0]
    wrapped = deserialize_bundled_cache_entry(entry)
    if not _is_plain(entry):
        return lambda inputs: wrapped(*inputs)
    return cast("Code", entry.compiled_fw.result.current_callable)


def _is_plain(entry: Any) -> bool:
    """Whether code takes its inputs and returns its outputs as they are."""
    about = entry.runtime_metadata
    return (
        entry.compiled_bw is None
        and entry.maybe_subclass_meta is None
        and not entry.indices_of_inps_to_detach
        and not any(getattr(w, "needs_post_compile", True) for w in entry.dispatch_wrappers)
        and not about.num_mutated_inp_runtime_indices
        and not about.num_outputs_aliased
        and not about.num_intermediate_bases
        and not about.is_rng_op_functionalized
        and not about.tokens
        and about.grad_enabled_mutation is None
    )
