# SPDX-License-Identifier: Apache-2.0
"""Build the padded tensors of one step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import attrs
import torch
from torch import Tensor

from trnport.core.engine.batch import Request, Work
from trnport.core.engine.buckets import Buckets
from trnport.core.engine.embeds import step_embeds
from trnport.core.engine.features import Features
from trnport.core.engine.packed import int32, int64
from trnport.core.engine.tables import TableKind, block_tables
from trnport.core.kv.slots import PAD_SLOT, slot_mapping, slot_of
from trnport.core.metadata import AttentionMetadata, StepInput

PAD_TOKEN = 0
"""Any valid id does: padding rows are inert."""

DECODE_TOKEN_THRESHOLD = 1
"""Query length of a decode row; grows with drafted tokens once there is speculation."""


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
    # Each layer's kind of table, and the kinds that occur; they are the same at every step.
    _kind_of: dict[str, TableKind] = attrs.field(init=False, repr=False, eq=False)
    _kinds: tuple[TableKind, ...] = attrs.field(init=False, repr=False, eq=False)

    @_kind_of.default
    def _find_kind_of(self) -> dict[str, TableKind]:
        return {name: self.kinds.get(name, TableKind()) for name in self.layer_names}

    @_kinds.default
    def _find_kinds(self) -> tuple[TableKind, ...]:
        return tuple(dict.fromkeys(self._kind_of.values()))

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
            cached_seq_len=self._int32([start]).view(1, 1),
            seq_lens=self._int32([len(request.token_ids)]),
            max_query_len=padded,
            kv_segment_size=padded if context else 0,
        )
        tokens = request.token_ids[start : start + count] + [PAD_TOKEN] * padding
        embeds, is_token_ids = step_embeds(
            self.features.prompt_embeds, padded, self.device, request.prompt_embeds, start, count
        )
        return StepInput(
            name=signature.name,
            input_ids=self._int64(tokens),
            # The last real position is repeated: a padding row then never reads past the
            # positions that exist.
            positions=self._int32(positions + positions[-1:] * padding),
            attn_metadata=metadata,
            sampling_positions=self._int64([count - 1]),
            return_hidden_states=self.features.returns_hidden_states,
            inputs_embeds=embeds,
            is_token_ids=is_token_ids,
        )

    def decode(self, requests: Sequence[Request]) -> StepInput:
        """One new token for each of several requests."""
        positions = [request.num_computed_tokens for request in requests]
        longest = max(positions)
        signature = self.buckets.decode_signature(len(requests), longest + 1)
        rows, context = signature
        padding = rows - len(requests)
        metadata = self._by_layer(
            requests,
            positions,
            count=1,
            tokens=rows,
            context=context,
            rows=rows,
            cached_seq_len=self._int32([longest]).view(1, 1),
            seq_lens=self._int32([p + 1 for p in positions] + [1] * padding),
            max_query_len=1,
            kv_segment_size=0,
        )
        tokens = [r.token_ids[p] for r, p in zip(requests, positions, strict=True)]
        # What is generated has token ids; the tensors are there since the model expects them.
        embeds, is_token_ids = step_embeds(self.features.prompt_embeds, rows, self.device)
        return StepInput(
            name=signature.name,
            input_ids=self._int64(tokens + [PAD_TOKEN] * padding),
            positions=self._int32(positions + [0] * padding),
            attn_metadata=metadata,
            sampling_positions=self._int64(range(rows)),
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
        for kind in self._kinds:
            table, offsets = block_tables(
                kind, requests, positions, context=context, rows=rows, block_size=self.block_size
            )
            by_kind[kind] = AttentionMetadata(
                block_table_tensor=table.to(self.device),
                slot_mapping=self._slots(kind.group, requests, positions, count, tokens),
                block_size=self.block_size,
                max_blocks_per_seq=table.shape[1],
                decode_token_threshold=DECODE_TOKEN_THRESHOLD,
                swa_kv_pos_offset=self._int32(offsets),
                **common,
            )
        return {name: by_kind[kind] for name, kind in self._kind_of.items()}

    def _slots(
        self,
        group: int,
        requests: Sequence[Request],
        positions: Sequence[int],
        count: int,
        tokens: int,
    ) -> Tensor:
        size = self.block_size
        rows = [(r.blocks_of(group), p) for r, p in zip(requests, positions, strict=True)]
        if count == 1:
            slots = [slot_of(blocks, position, size) for blocks, position in rows]
        else:
            runs = [slot_mapping(blocks, start, start + count, size) for blocks, start in rows]
            slots = list(chain.from_iterable(runs))
        return self._int64(slots + [PAD_SLOT] * (tokens - len(slots)))

    def _int32(self, values: Iterable[int]) -> Tensor:
        return int32(values).to(self.device)

    def _int64(self, values: Iterable[int]) -> Tensor:
        return int64(values).to(self.device)
