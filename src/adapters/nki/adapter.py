# SPDX-License-Identifier: Apache-2.0
"""The Kernels port on our NKI kernels."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from trnport.adapters.nki import torch_ops
from trnport.adapters.nki.execute import Machine
from trnport.adapters.nki.fallback import Coverage, KernelLimitError, note_once
from trnport.adapters.nki.requirements import (
    attention_reason,
    mlp_reason,
    norm_reason,
    prior_reason,
    product_reason,
    rope_reason,
    top_k_reason,
    write_reason,
)
from trnport.core.ports.kernels import Kernels


class NkiKernels(Kernels):
    """Operators on NeuronCores; without one, each kernel runs in a simulator on the CPU.

    A call that a kernel cannot take is computed by the fallback, noted once in the log and
    counted in :meth:`coverage`.
    """

    name = "nki"

    def __init__(
        self,
        fallback: Kernels,
        *,
        target: str = "trn2",
        lnc: int = 1,
        precise: bool = False,
        strict: bool = False,
    ) -> None:
        """Choose the machine.

        Args:
            fallback: Computes what the kernels cannot take.
            target: "trn2" or "trn3".
            lnc: Physical cores of a logical one, 1 or 2.
            precise: Simulate floats as fp32.
            strict: Refuse a call that needs the fallback.

        Raises:
            ConfigError: There is no such target or number of cores.
        """
        self._fallback = fallback
        self._machine = Machine(target, lnc, precise).key
        self._strict = strict
        self._coverage = Coverage()

    def coverage(self) -> dict[str, dict[str, Any]]:
        """What ran where: ``{operator: {"nki": calls, "fallback": {reason: calls}}}``."""
        return self._coverage.report()

    def _takes(self, operator: str, reason: str) -> bool:
        if reason and self._strict:
            raise KernelLimitError(f"no kernel for {operator}: {reason}")
        note_once(self._coverage, operator, reason)
        return not reason

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Sum in fp32, cast, then scale."""
        if not self._takes("rms_norm", norm_reason(x, weight)):
            return self._fallback.rms_norm(x, weight, eps)
        rows = x.contiguous().view(-1, x.shape[-1])
        return torch_ops.rms_norm(rows, weight, eps, self._machine).view(x.shape)

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate in fp32."""
        if not self._takes("rope", rope_reason(q, k)):
            return self._fallback.rope(q, k, cos, sin)
        tensors = (x.contiguous() for x in (q, k, cos, sin))
        return torch_ops.rope(*tensors, self._machine)

    def qkv_proj(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """One matrix product."""
        if not self._takes("qkv_proj", product_reason("qkv_proj", x, weight)):
            return self._fallback.qkv_proj(x, weight, bias)
        return torch_ops.linear(x.contiguous(), weight, bias, self._machine)

    def kv_write(
        self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Scatter; the transfer skips slot -1."""
        if not self._takes("kv_write", write_reason(k, k_cache, v_cache)):
            return self._fallback.kv_write(k, v, k_cache, v_cache, slot_mapping)
        torch_ops.write_kv(
            k.contiguous(), v.contiguous(), k_cache, v_cache, slot_mapping, self._machine
        )
        return None

    def prefill_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        valid: Tensor,
        *,
        scale: float,
        sliding_window: int | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Causal tiles with a running softmax."""
        if not self._takes("prefill_attention", attention_reason(q, scale)):
            return self._fallback.prefill_attention(
                q, k, v, valid, scale=scale, sliding_window=sliding_window, sinks=sinks
            )
        own = (x.contiguous() for x in (q, k, v, valid))
        return torch_ops.prefill_attention(*own, scale, sliding_window or 0, sinks, self._machine)

    def prefill_attention_with_prior(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        valid: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor,
        cached_seq_len: Tensor,
        *,
        scale: float,
        sliding_window: int | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """The prefix is gathered by block, then causal tiles."""
        reason = prior_reason(q, k_cache, v_cache, block_table, scale)
        if not self._takes("prefill_attention_with_prior", reason):
            return self._fallback.prefill_attention_with_prior(
                q,
                k,
                v,
                valid,
                k_cache,
                v_cache,
                block_table,
                cached_seq_len,
                scale=scale,
                sliding_window=sliding_window,
                sinks=sinks,
            )
        own = (x.contiguous() for x in (q, k, v, valid))
        cache = (k_cache, v_cache, block_table.contiguous(), cached_seq_len.contiguous())
        return torch_ops.prefill_attention_with_prior(
            *own, *cache, scale, sliding_window or 0, sinks, self._machine
        )

    def decode_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_table: Tensor,
        positions: Tensor,
        *,
        scale: float,
        sliding_window: int | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Each row's blocks are gathered, then a running softmax over chunks."""
        reason = attention_reason(q, scale, k_cache, v_cache, block_table)
        if not self._takes("decode_attention", reason):
            return self._fallback.decode_attention(
                q,
                k_cache,
                v_cache,
                block_table,
                positions,
                scale=scale,
                sliding_window=sliding_window,
                sinks=sinks,
            )
        rows = (block_table.contiguous(), positions.contiguous())
        return torch_ops.decode_attention(
            q.contiguous(),
            k_cache,
            v_cache,
            *rows,
            scale,
            sliding_window or 0,
            sinks,
            self._machine,
        )

    def o_proj(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """One matrix product over heads and dimensions."""
        rows = x.flatten(1).contiguous()
        if not self._takes("o_proj", product_reason("o_proj", rows, weight)):
            return self._fallback.o_proj(x, weight, bias)
        return torch_ops.linear(rows, weight, bias, self._machine)

    def mlp(
        self,
        x: Tensor,
        gate_weight: Tensor,
        up_weight: Tensor,
        down_weight: Tensor,
        gate_bias: Tensor | None = None,
        up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
    ) -> Tensor:
        """Three matrix products; the intermediate values never leave the core."""
        weights = (gate_weight, up_weight, down_weight)
        biases = (gate_bias, up_bias, down_bias)
        if not self._takes("mlp", mlp_reason(x, *weights)):
            return self._fallback.mlp(x, *weights, *biases)
        return torch_ops.gated_mlp(x.contiguous(), *weights, *biases, self._machine)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """One matrix product."""
        if not self._takes("linear", product_reason("linear", x, weight)):
            return self._fallback.linear(x, weight, bias)
        return torch_ops.linear(x.contiguous(), weight, bias, self._machine)

    def top_k(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Eight at a time, equal values by lowest index."""
        if not self._takes("top_k", top_k_reason(logits, k)):
            return self._fallback.top_k(logits, k)
        return torch_ops.top_k(logits.contiguous(), k, self._machine)
