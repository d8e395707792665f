# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding (Su et al., 2021): from positions to cos and sin."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from trnport.core.errors import ConfigError
from trnport.core.nn.rope_parameters import ROPE_TYPES, RopeParameters
from trnport.core.nn.rope_scaling import (
    attention_scaling,
    divided_frequencies,
    dynamic_frequencies,
    exponents,
    inverse_frequencies,
    rotary_dim,
)

__all__ = ["ROPE_TYPES", "RopeParameters", "RotaryEmbedding"]


class RotaryEmbedding(nn.Module):
    """Rotation angles of one kind of layer.

    There is no table: cos and sin are computed from the positions, so no position can lie
    beyond one. Angles are fp32 throughout, because bf16 cannot tell positions above 256
    apart.

    The inverse frequencies are real tensors even when the model is built on the meta device.
    They are no part of a checkpoint; ``.to(device)`` moves them, and casting the model to
    another dtype leaves them in fp32.

    Args:
        params: RoPE settings.
        head_dim: Size of a head, derived by the caller when config.json has none.
        max_position_embeddings: The model's maximum length, in tokens.

    Attributes:
        rotary_dim: R, the number of rotated dimensions; the kernel passes the rest through.
        attention_scaling: Contained in cos and sin already.

    Raises:
        ConfigError: The settings do not fit the head size or the maximum length.
    """

    inv_freq: Tensor
    alternative: Tensor | None

    def __init__(self, params: RopeParameters, head_dim: int, max_position_embeddings: int) -> None:
        super().__init__()
        _settle_vector_math()
        if max_position_embeddings < 1:
            raise ConfigError(f"max_position_embeddings={max_position_embeddings} must be positive")
        self.params = params
        self.max_position_embeddings = max_position_embeddings
        self.attention_scaling = attention_scaling(params, max_position_embeddings)
        self._dim = rotary_dim(params, head_dim)
        inv_freq = inverse_frequencies(params, head_dim, max_position_embeddings)
        self.rotary_dim = 2 * inv_freq.shape[0]
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self.register_buffer("alternative", self._alternative(), persistent=False)

    def forward(self, positions: Tensor, seq_lens: Tensor) -> tuple[Tensor, Tensor]:
        """Cos and sin of every token, multiplied by the attention scaling.

        Args:
            positions: ``[T]`` integer.
            seq_lens: ``[T]`` or ``[1]`` integer, tokens known of each token's sequence. Only
                "dynamic" and "longrope" read it.

        Returns:
            Two tensors ``[T, R/2]`` fp32.
        """
        # .float() before anything else: under a bf16 default dtype, an integer tensor times a
        # Python float would be bf16.
        angles = positions.float()[:, None] * self._frequencies(seq_lens)
        return angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling

    def depends_on_seq_len(self, max_model_len: int) -> bool:
        """Whether a token's angle can depend on what comes after it.

        A cached key then was rotated for another sequence length than the one that reads it,
        so blocks must not be shared between requests.

        Args:
            max_model_len: Most tokens of one request.
        """
        return self.params.rope_type in ("dynamic", "longrope") and max_model_len > self._switch

    @property
    def _switch(self) -> int:
        """Sequence length, in tokens, beyond which other frequencies apply."""
        if self.params.rope_type == "longrope":
            return self.params.original_length(self.max_position_embeddings)
        return self.max_position_embeddings

    def _alternative(self) -> Tensor | None:
        """What the frequencies beyond the switch are made of."""
        if self.params.rope_type == "longrope":
            return divided_frequencies(self.params.long_factor, self.params.rope_theta, self._dim)
        return exponents(self._dim) if self.params.rope_type == "dynamic" else None

    def _frequencies(self, seq_lens: Tensor) -> Tensor:
        """``[R/2]``, or ``[B, R/2]`` where they depend on the sequence length."""
        if self.alternative is None:
            return self.inv_freq
        lengths = seq_lens.float()[:, None]
        beyond = self.alternative
        if self.params.rope_type == "dynamic":
            beyond = dynamic_frequencies(
                self.params, self.alternative, self._dim, self.max_position_embeddings, lengths
            )
        return torch.where(lengths > self._switch, beyond, self.inv_freq)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryEmbedding:
        # fn is whatever .to(), .half() or .to_empty() does to a tensor. An empty integer tensor
        # shows the device it leads to; its casts and its emptying must not reach the tables.
        del recurse
        probe = torch.empty(0, dtype=torch.int64, device=self.inv_freq.device)
        device = fn(probe).device
        if device.type != "meta":
            for name, table in self._buffers.items():
                self._buffers[name] = None if table is None else table.to(device)
        return self


def _settle_vector_math() -> None:
    """Make the first cos and sin of a process exact.

    PyTorch's CPU cos and sin come from MKL (2024.2), which looks up the right kernel during the
    first call. When several threads make that call together, one of them may run a kernel that is
    right to four digits only (pytorch/pytorch#188792). One call on one thread settles it.
    """
    one = torch.ones(1, dtype=torch.float32, device="cpu")
    one.cos()
    one.sin()
