# SPDX-License-Identifier: Apache-2.0
"""Port: the operators a decoder needs on one rank's shards.

Tensors in, tensors out, no hidden state. Shapes below use T tokens (padding included),
B rows, one for each sequence, H hidden, Hq and Hk query and KV heads *of this rank*, D head size, I
intermediate size of this rank, N cache blocks, S block size, M block-table columns and V
vocabulary entries of this rank. Linear weights are laid out ``[in, out]``. A bias that a
model does not have is None, never zeros.

Two rules hold for every adapter:

* *Padding is inert.* A padding row may hold anything, NaN included; it never changes the
  result of another row.
* *Unused cache is inert.* A block-table entry of -1, and any slot at or beyond the valid
  length, may point to memory that holds NaN. Slot -1 is never written.
"""

from __future__ import annotations

import abc
from typing import NamedTuple

from torch import Tensor

from trnport.core import packed_prefill


class CachedPrefix(NamedTuple):
    """What the cache holds in front of the chunks of B requests.

    Attributes:
        k_cache: ``[N, Hk, S, D]``.
        v_cache: Like ``k_cache``.
        block_table: ``[B, M]`` int32; column j holds positions j*S to (j+1)*S - 1, -1 nothing.
        cached_seq_len: ``[B, 1]`` int32, at most M*S; cached positions below it are valid.
    """

    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor
    cached_seq_len: Tensor


class Kernels(abc.ABC):
    """Operators on one rank's shards."""

    name: str
    """Short name for reports, such as "torch_cpu"."""

    def pack(self, operator: str, weight: Tensor) -> Tensor:
        """Bring a linear weight into the order in which an operator reads it fastest.

        A model does this once to each weight it has loaded, so that all its programs share the
        result. The operator takes either form.

        Args:
            operator: "qkv_proj", "o_proj", "mlp" or "linear".
            weight: ``[in, out]``.

        Returns:
            A tensor that means something to this operator alone, or ``weight`` itself.
        """
        del operator
        return weight

    @abc.abstractmethod
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Root-mean-square normalisation of each row (Zhang and Sennrich, 2019).

        The variance is accumulated in fp32 and the normalised row is cast back to the
        dtype of ``x`` before it is scaled.

        Args:
            x: ``[T, H]``, or ``[T, heads, D]`` for a norm per head.
            weight: ``[H]`` (``[D]`` per head), dtype of ``x``.
            eps: Added to the mean square.

        Returns:
            Shape and dtype of ``x``.
        """

    @abc.abstractmethod
    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotary position embedding of split halves (Su et al., 2021).

        With R rotated dimensions, element i pairs with element i + R/2; dimensions from
        R on pass through.

        Args:
            q: ``[T, Hq, D]``.
            k: ``[T, Hk, D]``.
            cos: ``[T, R/2]``, fp32 or the dtype of ``q``.
            sin: Like ``cos``.

        Returns:
            Rotated ``q`` and ``k``, shapes and dtypes unchanged.
        """

    @abc.abstractmethod
    def qkv_proj(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Fused query, key and value projection.

        Args:
            x: ``[T, H]``.
            weight: ``[H, (Hq + 2 * Hk) * D]``, columns in the order Q, K, V.
            bias: ``[(Hq + 2 * Hk) * D]`` or None.

        Returns:
            ``[T, (Hq + 2 * Hk) * D]``.
        """

    @abc.abstractmethod
    def kv_write(
        self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        """Write keys and values into their slots, in place.

        Args:
            k: ``[T, Hk, D]``.
            v: ``[T, Hk, D]``.
            k_cache: ``[N, Hk, S, D]``, mutated; a cast to its dtype is implied.
            v_cache: Like ``k_cache``.
            slot_mapping: ``[T]`` int64, ``block * S + offset``; -1 is not written, the others
                are distinct and inside the cache.
        """

    @abc.abstractmethod
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
        """Causal attention of one request's first chunk over itself.

        Args:
            q: ``[T, Hq, D]``, positions 0 to T - 1 of one request.
            k: ``[T, Hk, D]``; query head h reads KV head ``h // (Hq // Hk)``.
            v: Like ``k``.
            valid: ``[T]`` bool, False for padding rows.
            scale: Multiplies the scores.
            sliding_window: A query sees this many latest keys, itself included; None for all.
            sinks: ``[Hq]`` extra logits that join the softmax denominator only.

        Returns:
            ``[T, Hq, D]``; padding rows hold anything.
        """

    @abc.abstractmethod
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
        """Causal attention of a later chunk over the cached prefix and itself.

        Row i of the chunk stands at position ``cached_seq_len + i``.

        Args:
            q: ``[T, Hq, D]``.
            k: ``[T, Hk, D]``, the chunk's own keys.
            v: Like ``k``.
            valid: ``[T]`` bool, False for padding rows.
            k_cache: ``[N, Hk, S, D]``.
            v_cache: Like ``k_cache``.
            block_table: ``[1, M]`` int32; column j holds positions j*S to (j+1)*S - 1.
            cached_seq_len: ``[1, 1]`` int32, at most M*S; cached positions below it are valid.
            scale: Multiplies the scores.
            sliding_window: As in :meth:`prefill_attention`.
            sinks: As in :meth:`prefill_attention`.

        Returns:
            ``[T, Hq, D]``; padding rows hold anything.
        """

    def packed_prefill_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_start_loc: Tensor,
        prefix: CachedPrefix | None,
        *,
        scale: float,
        sliding_window: int | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Causal attention of a chunk that holds tokens of B requests, each over its own.

        By default every request is a call of one of the two operators above, over T rows. A set
        that can do better overrides this.

        Args:
            q: ``[T, Hq, D]``.
            k: ``[T, Hk, D]``.
            v: Like ``k``.
            query_start_loc: ``[B + 1]`` int32, ascending from 0: request b has the rows from
                ``query_start_loc[b]`` on, in front of ``query_start_loc[b + 1]``. It may have
                none; rows behind the last request's are padding.
            prefix: What is cached of each request, its own chunk aside; None for nothing. It may
                lie in rows of another request of this very chunk, which are in the cache by now.
            scale: Multiplies the scores.
            sliding_window: As in :meth:`prefill_attention`.
            sinks: As in :meth:`prefill_attention`.

        Returns:
            ``[T, Hq, D]``; padding rows hold anything.
        """
        return packed_prefill.one_by_one(
            self, q, k, v, query_start_loc, prefix,
            scale=scale, sliding_window=sliding_window, sinks=sinks,
        )  # fmt: skip

    @abc.abstractmethod
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
        """Attention of one new token per row over that row's paged cache.

        The token's own key and value have been written already, so row b reads
        positions 0 to ``positions[b]``.

        Args:
            q: ``[B, Hq, D]``.
            k_cache: ``[N, Hk, S, D]``.
            v_cache: Like ``k_cache``.
            block_table: ``[B, M]`` int32; rows of padding are all -1.
            positions: ``[B]`` int32.
            scale: Multiplies the scores.
            sliding_window: As in :meth:`prefill_attention`.
            sinks: As in :meth:`prefill_attention`.

        Returns:
            ``[B, Hq, D]``; padding rows hold anything finite.
        """

    @abc.abstractmethod
    def o_proj(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Output projection of attention.

        Args:
            x: ``[T, Hq, D]``.
            weight: ``[Hq * D, H]``.
            bias: ``[H]`` or None. Give it on one rank only: results are summed over ranks.

        Returns:
            ``[T, H]``, this rank's partial sum.
        """

    @abc.abstractmethod
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
        """Gated MLP: ``(silu(x @ gate) * (x @ up)) @ down`` (Shazeer, 2020, SwiGLU).

        Args:
            x: ``[T, H]``.
            gate_weight: ``[H, I]``.
            up_weight: ``[H, I]``.
            down_weight: ``[I, H]``.
            gate_bias: ``[I]`` or None.
            up_bias: ``[I]`` or None.
            down_bias: ``[H]`` or None. Give it on one rank only.

        Returns:
            ``[T, H]``, this rank's partial sum.
        """

    @abc.abstractmethod
    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Plain projection, used for the LM head.

        Args:
            x: ``[T, H]``.
            weight: ``[H, V]``.
            bias: ``[V]`` or None.

        Returns:
            ``[T, V]``.
        """

    @abc.abstractmethod
    def top_k(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k largest entries of each row, in descending order.

        Equal values rank by index, lowest first, on every adapter, so that a top-k merged
        over vocabulary shards equals the top-k of the whole row.

        Args:
            logits: ``[T, V]``.
            k: At most V.

        Returns:
            Values ``[T, k]`` in the dtype of ``logits``, indices ``[T, k]`` int64.
        """
