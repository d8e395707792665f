# SPDX-License-Identifier: Apache-2.0
"""Build the padded tensors of one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from trnport.core.engine.batch import Request, Work
from trnport.core.engine.buckets import Buckets
from trnport.core.engine.embeds import step_embeds
from trnport.core.engine.features import Features
from trnport.core.engine.tables import TableKind, block_tables
from trnport.core.kv.slots import PAD_SLOT, slot_mapping
from trnport.core.metadata import AttentionMetadata, StepInput

PAD_TOKEN = 0
"""Any valid id does: padding rows are inert."""

DECODE_TOKEN_THRESHOLD = 1
"""Query length of a decode row; grows with drafted tokens once there is speculation."""


def _int64(values: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)


def _int32(values: Sequence[int] | Sequence[Sequence[int]], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


@attrs.frozen
class InputBuilder:
    """Turns requests into step inputs of a bucket's shape.

    Attributes:
        buckets: The shapes that exist.
        layer_names: Keys of the attention metadata.
        block_size: Positions per cache block.
        tp: Tensor-parallel degree; prefill tokens are padded to a multiple of it so that
            every rank holds an equal share in sequence parallelism.
        device: Where the tensors go.
        kinds: Layer name to the kind of block table the layer reads; the whole table of the
            first group for a layer that is not named.
        features: What programs take and return.
    """

    buckets: Buckets
    layer_names: tuple[str, ...]
    block_size: int
    tp: int = 1
    device: torch.device = torch.device("cpu")
    kinds: Mapping[str, TableKind] = attrs.field(factory=dict)
    features: Features = attrs.field(factory=Features)

    def prefill(self, work: Work) -> StepInput:
        """One request's next chunk of prompt."""
        request, count = work.request, work.num_tokens
        start = request.num_computed_tokens
        signature = self.buckets.prefill_signature(count, start)
        context = signature.prior_context
        padded = self.buckets.padded_tokens(signature.tokens, self.tp)
        padding = padded - count
        positions = list(range(start, start + count))
        metadata = self._by_layer(
            [request],
            [start],
            count=count,
            tokens=padded,
            context=context,
            rows=1,
            cached_seq_len=_int32([[start]], self.device),
            seq_lens=_int32([len(request.token_ids)], self.device),
            max_query_len=padded,
            kv_segment_size=padded if context else 0,
        )
        tokens = request.token_ids[start : start + count] + [PAD_TOKEN] * padding
        embeds, is_token_ids = step_embeds(
            self.features.prompt_embeds, padded, self.device, request.prompt_embeds, start, count
        )
        return StepInput(
            name=signature.name,
            input_ids=_int64(tokens, self.device),
            # The last real position is repeated: a padding row then never reads past the
            # positions that exist.
            positions=_int32(positions + positions[-1:] * padding, self.device),
            attn_metadata=metadata,
            sampling_positions=_int64([count - 1], self.device),
            return_hidden_states=self.features.returns_hidden_states,
            inputs_embeds=embeds,
            is_token_ids=is_token_ids,
        )

    def decode(self, requests: Sequence[Request]) -> StepInput:
        """One new token for each of several requests."""
        positions = [request.num_computed_tokens for request in requests]
        signature = self.buckets.decode_signature(len(requests), max(positions) + 1)
        rows, context = signature
        padding = rows - len(requests)
        metadata = self._by_layer(
            requests,
            positions,
            count=1,
            tokens=rows,
            context=context,
            rows=rows,
            cached_seq_len=_int32([[max(positions)]], self.device),
            seq_lens=_int32([p + 1 for p in positions] + [1] * padding, self.device),
            max_query_len=1,
            kv_segment_size=0,
        )
        tokens = [r.token_ids[p] for r, p in zip(requests, positions, strict=True)]
        # What is generated has token ids; the tensors are there since the model expects them.
        embeds, is_token_ids = step_embeds(self.features.prompt_embeds, rows, self.device)
        return StepInput(
            name=signature.name,
            input_ids=_int64(tokens + [PAD_TOKEN] * padding, self.device),
            positions=_int32(positions + [0] * padding, self.device),
            attn_metadata=metadata,
            sampling_positions=_int64(range(rows), self.device),
            inputs_embeds=embeds,
            is_token_ids=is_token_ids,
        )

    def _by_layer(
        self,
        requests: Sequence[Request],
        positions: Sequence[int],
        *,
        count: int,
        tokens: int,
        context: int,
        rows: int,
        **common: Any,
    ) -> dict[str, AttentionMetadata]:
        """Attention metadata of ``count`` new tokens from each of ``positions`` on.

        Layers with the same kind of table get the same object; ``common`` is equal in all.
        """
        by_kind: dict[TableKind, AttentionMetadata] = {}
        for kind in {self._kind(name): None for name in self.layer_names}:
            table, offsets = block_tables(
                kind, requests, positions, context=context, rows=rows, block_size=self.block_size
            )
            by_kind[kind] = AttentionMetadata(
                block_table_tensor=table.to(self.device),
                slot_mapping=self._slots(kind.group, requests, positions, count, tokens),
                block_size=self.block_size,
                max_blocks_per_seq=table.shape[1],
                decode_token_threshold=DECODE_TOKEN_THRESHOLD,
                swa_kv_pos_offset=_int32(offsets, self.device),
                **common,
            )
        return {name: by_kind[self._kind(name)] for name in self.layer_names}

    def _kind(self, layer: str) -> TableKind:
        return self.kinds.get(layer, TableKind())

    def _slots(
        self,
        group: int,
        requests: Sequence[Request],
        positions: Sequence[int],
        count: int,
        tokens: int,
    ) -> Tensor:
        slots = [
            slot
            for request, start in zip(requests, positions, strict=True)
            for slot in slot_mapping(
                request.blocks_of(group), start, start + count, self.block_size
            )
        ]
        return _int64(slots + [PAD_SLOT] * (tokens - len(slots)), self.device)
