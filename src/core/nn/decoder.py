# SPDX-License-Identifier: Apache-2.0
"""A decoder of Llama's shape (Touvron et al., 2023), for one tensor-parallel rank.

Models that differ in their attention alone derive theirs from :class:`DecoderAttention`.

In prefill the residual stream is sequence parallel: each rank holds 1/tp of the tokens,
gathers all of them in front of attention and MLP, and reduce-scatters behind. In decode
every rank holds all rows and an all-reduce takes the place of both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, cast

import structlog
import torch
from torch import Tensor, nn

from trnport.core.config import NeuronConfig
from trnport.core.context import ModelContext
from trnport.core.functional import (
    attention,
    gather_tokens,
    merge_prompt_embeds,
    reduce_tokens,
)
from trnport.core.kv.spec import KVSpec, LayerSpec
from trnport.core.metadata import AttentionMetadata, ModelOutput, SamplingInputs
from trnport.core.nn.attention import OutputProjection, QKVProjection
from trnport.core.nn.decoder_config import DecoderConfig
from trnport.core.nn.decoder_weights import checkpoint_prefix, decoder_mapping
from trnport.core.nn.embedding import LMHead, VocabDimShardedEmbedding
from trnport.core.nn.mlp import GatedMLP
from trnport.core.nn.norm import RMSNorm
from trnport.core.nn.parameter import pack_weights
from trnport.core.nn.rope import RotaryEmbedding
from trnport.core.parallel import HeadSharding
from trnport.core.ports.weights import WeightSource
from trnport.core.weights import (
    WeightMapping,
    load_weights,
    resolve_tied_embeddings,
)

log = structlog.get_logger(__name__)

Mapping = Callable[..., WeightMapping]
"""Parameter names to checkpoint keys, as :func:`decoder_mapping`."""


class DecoderAttention(nn.Module):
    """Grouped-query attention with rotary positions over a paged cache."""

    def __init__(
        self, config: DecoderConfig, ctx: ModelContext, dtype: torch.dtype, index: int
    ) -> None:
        super().__init__()
        heads = HeadSharding(
            config.num_attention_heads, config.num_key_value_heads, ctx.tp.world_size
        )
        args = (config.hidden_size, heads, config.head_dim, config.attention_bias, ctx, dtype)
        self.qkv_proj = QKVProjection(*args)
        self.o_proj = OutputProjection(*args)
        self.kernels = ctx.kernels
        self.scale = config.head_dim**-0.5
        self.num_kv_heads = heads.kv_heads_per_rank
        self.sliding_window = config.sliding_window(index)
        self.kv_cache: list[Tensor] = []

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], positions: Tensor, metadata: AttentionMetadata
    ) -> Tensor:
        """Attend: ``[T, H]`` to this rank's partial sum ``[T, H]``."""
        q, k, v = self.qkv_proj(x)
        q, k = self.before_rope(q, k)
        q, k = self.kernels.rope(q, k, *rope)
        out = attention(
            self.kernels, q, k, v, self.kv_cache, positions, metadata,
            scale=self.scale, sliding_window=self.sliding_window,
        )  # fmt: skip
        return self.o_proj(out)

    def before_rope(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """What a model does to queries ``[T, Hq, D]`` and keys ``[T, Hk, D]`` first; nothing."""
        return q, k


class DecoderLayer(nn.Module):
    """Pre-norm attention and MLP, each added to the residual stream."""

    def __init__(
        self,
        config: DecoderConfig,
        ctx: ModelContext,
        dtype: torch.dtype,
        index: int,
        attention_type: type[DecoderAttention],
    ) -> None:
        super().__init__()
        self.name = f"layers.{index}.self_attn"
        self.tp = ctx.tp
        norm_args = (config.hidden_size, config.rms_norm_eps, ctx, dtype)
        self.input_layernorm = RMSNorm(*norm_args)
        self.self_attn = attention_type(config, ctx, dtype, index)
        self.post_attention_layernorm = RMSNorm(*norm_args)
        self.mlp = GatedMLP(
            config.hidden_size, config.intermediate_size, config.mlp_bias, ctx, dtype
        )

    def forward(
        self, h: Tensor, rope: tuple[Tensor, Tensor], positions: Tensor, metadata: AttentionMetadata
    ) -> Tensor:
        """One layer on the residual stream: ``[T/tp, H]`` in prefill, ``[B, H]`` in decode."""
        x = gather_tokens(self.input_layernorm(h), self.tp, metadata)
        h = h + reduce_tokens(self.self_attn(x, rope, positions, metadata), self.tp, metadata)
        x = gather_tokens(self.post_attention_layernorm(h), self.tp, metadata)
        return h + reduce_tokens(self.mlp(x), self.tp, metadata)


class ReadableConfig(Protocol):
    """A configuration that knows how to read itself."""

    @classmethod
    def from_hf(cls, hf_config: Any) -> DecoderConfig:
        """Read a Transformers configuration, or the dictionary in config.json."""


class DecoderModel(nn.Module):
    """The decoder stack with its embedding and LM head.

    Args:
        config: Sizes and switches.
        ctx: The ports.
        dtype: Dtype of weights, activations and cache.
        attention_type: The attention of every layer.
        mapping: Where the parameters stand in a checkpoint.
    """

    def __init__(
        self,
        config: DecoderConfig,
        ctx: ModelContext,
        dtype: torch.dtype,
        *,
        attention_type: type[DecoderAttention] = DecoderAttention,
        mapping: Mapping = decoder_mapping,
    ) -> None:
        super().__init__()
        self.config = config
        self.mapping = mapping
        self.tp = ctx.tp
        self.dtype = dtype
        self.embed_tokens = VocabDimShardedEmbedding(
            config.vocab_size, config.hidden_size, ctx, dtype
        )
        self.rotary = RotaryEmbedding(config.rope, config.head_dim, config.max_position_embeddings)
        layers = [
            DecoderLayer(config, ctx, dtype, i, attention_type)
            for i in range(config.num_hidden_layers)
        ]
        self.layers = cast("list[DecoderLayer]", nn.ModuleList(layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, ctx, dtype)
        self.lm_head = (
            LMHead(config.hidden_size, config.vocab_size, ctx, dtype) if ctx.has_lm_head else None
        )

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        return self.config.vocab_size

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        attn_metadata: dict[str, AttentionMetadata],
        sampling_positions: Tensor,
        sampling_params: SamplingInputs | None = None,
        spec_decode_metadata: Any = None,
        logit_mask: Tensor | None = None,
        rank: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        is_token_ids: Tensor | None = None,
        return_hidden_states: bool = False,
    ) -> ModelOutput:
        """Logits or tokens of some rows; shapes in :class:`trnport.core.metadata.StepInput`."""
        metadata = next(iter(attn_metadata.values()))
        h = reduce_tokens(self.embed_tokens(input_ids), self.tp, metadata)
        h = merge_prompt_embeds(h, inputs_embeds, is_token_ids, self.tp, metadata)
        rope = self.rotary(positions, metadata.token_seq_lens)
        for layer in self.layers:
            h = layer(h, rope, positions, attn_metadata[layer.name])
        h = gather_tokens(self.norm(h), self.tp, metadata)
        output = ModelOutput()
        if self.lm_head is not None:
            rows = h.index_select(0, sampling_positions)
            output = self.lm_head.sample(rows, sampling_params, logit_mask)
        return output._replace(hidden_states=h) if return_hidden_states else output

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Logits ``[n, vocab_size]`` of rows ``[n, hidden_size]`` behind the last norm."""
        if self.lm_head is None:
            raise RuntimeError("this model was built without an LM head")
        logits: Tensor = self.lm_head(hidden_states)
        return logits

    def load_weights(self, source: WeightSource, device: torch.device | str = "cpu") -> None:
        """Read this rank's share of a Hugging Face checkpoint.

        Raises:
            CheckpointError: Names every missing, unexpected and mis-shaped tensor.
        """
        prefix = checkpoint_prefix(source.names())
        tied = resolve_tied_embeddings(
            source,
            tied=self.config.tie_word_embeddings,
            embedding_key=f"{prefix}embed_tokens.weight",
        )
        head = self.lm_head
        mapping = self.mapping(self.config, tied, prefix=prefix, has_lm_head=head is not None)
        load_weights(self, source, mapping, rank=self.tp.rank_in_group, device=device)
        conflict = head and tied.conflict(head.weight, self.embed_tokens.weight)
        if conflict:
            log.warning(conflict)
        pack_weights(self)

    def get_kv_spec(self) -> KVSpec:
        """Cache needs of this rank."""
        head_dim, dtype = self.config.head_dim, self.dtype
        return KVSpec(
            tuple(
                LayerSpec(
                    layer.name,
                    layer.self_attn.num_kv_heads,
                    head_dim,
                    dtype,
                    layer.self_attn.sliding_window,
                )
                for layer in self.layers
            )
        )

    def cache_depends_on_seq_len(self, max_model_len: int) -> bool:
        """Whether keys are rotated by the length of their sequence (dynamic RoPE, longrope)."""
        return self.rotary.depends_on_seq_len(max_model_len)

    def bind_kv_cache(self, kv_caches: dict[str, list[Tensor]]) -> None:
        """Give each layer its ``[k_cache, v_cache]``."""
        for layer in self.layers:
            layer.self_attn.kv_cache = kv_caches[layer.name]


class DecoderFactory:
    """Entry point of a decoder model: a class named after the Hugging Face architecture.

    Attributes:
        config_type: Reads the model's configuration.
        attention_type: The attention of every layer.
        mapping: Where the parameters stand in a checkpoint.
    """

    config_type: ClassVar[type[ReadableConfig]]
    attention_type: ClassVar[type[DecoderAttention]] = DecoderAttention
    mapping: ClassVar[Mapping] = staticmethod(decoder_mapping)

    @classmethod
    def from_configs(
        cls,
        hf_config: Any,
        neuron_config: NeuronConfig,
        *,
        context: ModelContext,
        dtype: torch.dtype,
    ) -> DecoderModel:
        """Build the model on the meta device.

        Args:
            hf_config: A Transformers configuration or the dictionary in config.json.
            neuron_config: Validated settings. Nothing in them changes these models yet.
            context: The ports.
            dtype: Dtype of weights, activations and cache.

        Raises:
            UnsupportedConfigError: The message names the field that is not implemented.
        """
        del neuron_config
        config = cls.config_type.from_hf(hf_config)
        with torch.device("meta"):
            return DecoderModel(
                config, context, dtype, attention_type=cls.attention_type, mapping=cls.mapping
            )
