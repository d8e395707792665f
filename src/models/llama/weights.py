# SPDX-License-Identifier: Apache-2.0
"""Where each parameter of Llama stands in a Hugging Face checkpoint."""

from __future__ import annotations

from trnport.core.ports.weights import WeightSource
from trnport.core.weights import WeightMapping, resolve_tied_embeddings
from trnport.models.llama.config import LlamaConfig
