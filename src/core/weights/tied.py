# SPDX-License-Identifier: Apache-2.0
"""Where the LM head comes from, decided by the checkpoint and the configuration together.

The file is the stronger witness. A head that is stored gets loaded, whatever the
configuration says: checkpoints exist whose configuration says "tied" over a head that was
trained apart. A head that is not stored is the embedding only if the configuration says so;
otherwise it is missing, and loading fails instead of serving random logits.
"""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from trnport.core.ports.weights import WeightSource


@attrs.frozen
class TiedEmbeddings:
    """The decision for one checkpoint.

    Attributes:
        head_key: Checkpoint key to map the LM head to. The head is loaded from it like any
            parameter; tying modules before loading would lose the head's own layout.
        embedding_key: Checkpoint key of the embedding.
        is_redundant: The configuration says tied and a head is stored all the same.
    """

    head_key: str
    embedding_key: str
    is_redundant: bool

    def conflict(
        self, head: Tensor, embedding: Tensor, *, is_head_transposed: bool = True
    ) -> str | None:
        """A warning when a redundant head differs from the embedding, else None.

        Args:
            head: This rank's loaded head, ``[hidden, rows]``, or ``[rows, hidden]`` with
                ``is_head_transposed=False``.
            embedding: This rank's loaded embedding, ``[rows, hidden]``.
            is_head_transposed: Layout of ``head``.
        """
        if not self.is_redundant:
            return None
        if torch.equal(head.mT if is_head_transposed else head, embedding):
            return None
        return (
            f"config says tie_word_embeddings=true, but the checkpoint holds a {self.head_key} "
            f"that differs from {self.embedding_key}; the stored head is used. "
            "Set tie_word_embeddings=false, or remove the tensor, to settle it"
        )


def resolve_tied_embeddings(
    source: WeightSource,
    *,
    tied: bool,
    head_key: str = "lm_head.weight",
    embedding_key: str = "model.embed_tokens.weight",
) -> TiedEmbeddings:
    """Decide which checkpoint key fills the LM head.

    Args:
        source: The checkpoint; only its names are looked at.
        tied: ``tie_word_embeddings`` of the configuration.
        head_key: Checkpoint key of a head of its own.
        embedding_key: Checkpoint key of the embedding.

    Returns:
        The stored head if there is one; else the embedding if the configuration ties them;
        else the head's own key, so that :func:`load_weights` reports it missing.
    """
    is_stored = head_key in set(source.names())
    uses_embedding = tied and not is_stored
    return TiedEmbeddings(
        head_key=embedding_key if uses_embedding else head_key,
        embedding_key=embedding_key,
        is_redundant=tied and is_stored,
    )
