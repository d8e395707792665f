# SPDX-License-Identifier: Apache-2.0
"""Where a model's weights are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import LoadConfig, ModelConfig


def checkpoint_folder(model_config: ModelConfig, load_config: LoadConfig) -> Path:
    """A local folder with the checkpoint, downloaded from the Hugging Face Hub if need be.

    Args:
        model_config: Says which model and revision.
        load_config: Says where to keep downloads and which files to leave out.
    """
    local = Path(model_config.model_weights or model_config.model)
    if local.is_dir():
        return local
    from vllm.model_executor.model_loader.weight_utils import download_weights_from_hf

    return Path(
        download_weights_from_hf(
            str(model_config.model_weights or model_config.model),
            load_config.download_dir,
            allow_patterns=["*.safetensors"],
            revision=model_config.revision,
            ignore_patterns=load_config.ignore_patterns,
        )
    )
