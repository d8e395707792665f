# SPDX-License-Identifier: Apache-2.0
"""Build the padded tensors of one step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, repeat
from typing import Any

import attrs
import torch
from torch import Tensor

from trnport.core.engine.batch import Request, Work
from trnport.core.engine.buckets import Buckets
from trnport.core.engine.embeds import EmbedsChunk, step_embeds
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

    def prefill(self, works: Sequence[Work]) -> StepInput:
        """The next chunks of some requests' prompts, one after the other.

        Args:
            works: As many as :attr:`Buckets.prefill_seqs` at most; their tokens fit a bucket.
        """
        requests = [work.request for work in works]
        starts = [request.num_computed_tokens for request in requests]
        counts = [work.num_tokens for work in works]
        signature = self.buckets.prefill_signature(sum(counts), max(starts))
        context, rows = signature.prior_context, self.buckets.prefill_seqs
        tokens = self.buckets.padded_tokens(signature.tokens, self.tp)
        padding, absent = tokens - sum(counts), rows - len(works)
        ends = list(accumulate(counts))
        metadata = self._by_layer(
            requests,
            starts,
            counts,
            tokens=tokens,
            context=context,
            rows=rows,
            cached_seq_len=self._int32(starts + [0] * absent).view(rows, 1),
            seq_lens=self._int32([len(r.token_ids) for r in requests] + [1] * absent),
            max_query_len=tokens,
            kv_segment_size=tokens if context else 0,
            query_start_loc=self._int32([0, *ends, *ends[-1:] * absent]) if rows > 1 else None,
        )
        ids = chain.from_iterable(
            request.token_ids[start : start + count]
            for request, start, count in zip(requests, starts, counts, strict=True)
        )
        positions = list(_concatenated(starts, counts))
        embeds, is_token_ids = step_embeds(
            self.features.prompt_embeds,
            tokens,
            self.device,
            map(EmbedsChunk, (request.prompt_embeds for request in requests), starts, counts),
        )
        return StepInput(
            name=signature.name,
            input_ids=self._int64(chain(ids, repeat(PAD_TOKEN, padding))),
            # The last real position is repeated: a padding row then never reads past the
            # positions that exist.
            positions=self._int32(positions + positions[-1:] * padding),
            attn_metadata=metadata,
            sampling_positions=self._int64([end - 1 for end in ends] + [0] * absent),
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
            [1] * len(requests),
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
        starts: Sequence[int],
        counts: Sequence[int],
        *,
        tokens: int,
        context: int,
        rows: int,
        **common: Any,
    ) -> dict[str, AttentionMetadata]:
        """Attention metadata of ``counts`` new tokens of each request from ``starts`` on.

        Layers with the same kind of table get the same object; ``common`` is equal in all.
        """
        by_kind: dict[TableKind, AttentionMetadata] = {}
        for kind in self._kinds:
            table, offsets = block_tables(
                kind, requests, starts, context=context, rows=rows, block_size=self.block_size
            )
            by_kind[kind] = AttentionMetadata(
                block_table_tensor=table.to(self.device),
                slot_mapping=self._slots(kind.group, requests, starts, counts, tokens),
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
        starts: Sequence[int],
        counts: Sequence[int],
        tokens: int,
    ) -> Tensor:
        size = self.block_size
        slots: list[int] = []
        for request, start, count in zip(requests, starts, counts, strict=True):
            blocks = request.blocks_of(group)
            if count == 1:  # all rows of a decode step
                slots.append(slot_of(blocks, start, size))
            else:
                slots += slot_mapping(blocks, start, start + count, size)
        return self._int64(slots + [PAD_SLOT] * (tokens - len(slots)))

    def _int32(self, values: Iterable[int]) -> Tensor:
        return int32(values).to(self.device)

    def _int64(self, values: Iterable[int]) -> Tensor:
        return int64(values).to(self.device)


def _concatenated(starts: Sequence[int], counts: Sequence[int]) -> Iterable[int]:
    """Positions of each request's new tokens, one request after the other."""
    runs = (range(start, start + count) for start, count in zip(starts, counts, strict=True))
    return chain.from_iterable(runs)
