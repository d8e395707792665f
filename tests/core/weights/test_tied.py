# SPDX-License-Identifier: Apache-2.0
"""The LM head is decided by checkpoint and configuration together."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from trnport.adapters.memory import InMemoryWeightSource
from trnport.core.errors import CheckpointError
from trnport.core.parallel import padded_shard_size
from trnport.core.weights import (
    TiedEmbeddings,
    load_weights,
    resolve_tied_embeddings,
    set_weight_loader,
    sharding_weight_loader_with_padding,
)

VOCAB, HIDDEN = 7, 3


class Ends(nn.Module):
    """An embedding ``[rows, hidden]`` and a head ``[hidden, rows]``."""

    def __init__(self, tp: int) -> None:
        super().__init__()
        rows = padded_shard_size(VOCAB, tp)
        with torch.device("meta"):
            self.embedding = nn.Parameter(torch.empty(rows, HIDDEN), requires_grad=False)
            self.head = nn.Parameter(torch.empty(HIDDEN, rows), requires_grad=False)
        pad = sharding_weight_loader_with_padding
        set_weight_loader(self.embedding, pad(0, rows, tp, full_size=VOCAB))
        set_weight_loader(self.head, pad(1, rows, tp, True, full_size=VOCAB))


def load(tensors: dict[str, Tensor], *, tied: bool, rank: int = 0, tp: int = 1):
    source = InMemoryWeightSource(tensors)
    decision = resolve_tied_embeddings(source, tied=tied)
    model = Ends(tp)
    mapping = {"embedding": decision.embedding_key, "head": decision.head_key}
    load_weights(model, source, mapping, rank=rank)
    return model, decision


EMBEDDING = torch.arange(1.0, 1 + VOCAB * HIDDEN).reshape(VOCAB, HIDDEN)
TIED = {"model.embed_tokens.weight": EMBEDDING}
ALIAS = {**TIED, "lm_head.weight": EMBEDDING.clone()}
OWN = {**TIED, "lm_head.weight": -EMBEDDING}


def test_tied_and_absent_the_head_is_the_embedding_in_its_own_layout() -> None:
    model, decision = load(TIED, tied=True)
    assert torch.equal(model.head, EMBEDDING.t())
    assert torch.equal(model.embedding, EMBEDDING)
    assert decision.conflict(model.head, model.embedding) is None


@pytest.mark.parametrize("tied", [True, False])
def test_a_stored_head_is_loaded_whatever_the_config_says(tied: bool) -> None:
    model, decision = load(OWN, tied=tied)
    assert torch.equal(model.head, -EMBEDDING.t())
    conflict = decision.conflict(model.head, model.embedding)
    if tied:
        assert conflict is not None
        for word in ("lm_head.weight", "model.embed_tokens.weight", "tie_word_embeddings"):
            assert word in conflict
    else:
        assert conflict is None, "an untied head differs by right"


def test_a_redundant_head_that_equals_the_embedding_is_accepted_silently() -> None:
    model, decision = load(ALIAS, tied=True)
    assert torch.equal(model.head, EMBEDDING.t())
    assert decision.conflict(model.head, model.embedding) is None


def test_absent_and_untied_is_a_missing_tensor() -> None:
    with pytest.raises(CheckpointError, match=r"1 missing.*\n +lm_head\.weight \(for .* head\)"):
        load(TIED, tied=False)


def test_the_conflict_is_judged_on_each_ranks_own_shard() -> None:
    head = EMBEDDING.clone()
    head[-1] += 1  # only the last rank of three holds row 6
    tensors = {**TIED, "lm_head.weight": head}
    found = []
    for rank in range(3):
        model, decision = load(tensors, tied=True, rank=rank, tp=3)
        found.append(decision.conflict(model.head, model.embedding) is not None)
    assert found == [False, False, True]


def test_a_head_may_have_the_layout_of_the_embedding() -> None:
    decision = TiedEmbeddings("lm_head.weight", "embed.weight", is_redundant=True)
    square = torch.arange(4.0).reshape(2, 2)
    assert decision.conflict(square, square, is_head_transposed=False) is None
    assert decision.conflict(square, square) is not None
    assert decision.conflict(square.t(), square) is None


def test_keys_may_be_named_otherwise() -> None:
    source = InMemoryWeightSource({"wte": EMBEDDING})
    decision = resolve_tied_embeddings(source, tied=True, head_key="out", embedding_key="wte")
    assert decision == TiedEmbeddings("wte", "wte", is_redundant=False)
