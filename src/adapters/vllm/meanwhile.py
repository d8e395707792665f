# SPDX-License-Identifier: Apache-2.0
"""What the first process of ``vllm serve`` does while its engine starts.

vLLM makes the engine's process, waits for it, and builds its HTTP server then: half a second of
processor time that does not depend on the engine. We do the same things earlier, on a thread,
and what has been imported and cached then takes no time. As vLLM does with its own warm-up of
multimodal processors, the thread starts after the fork, which would copy its locks but not it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import Any

from trnport.adapters.vllm.after_fork import AfterFork
from trnport.adapters.vllm.log import plugin_logger
from trnport.adapters.vllm.start_method import METHOD, is_server

logger = plugin_logger(__name__)

HTTP_MODULES = (
    "model_hosting_container_standards.sagemaker",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
    "vllm.entrypoints.anthropic.api_router",
    "vllm.entrypoints.generate.structured_decisions.api_router",
    "vllm.entrypoints.openai.chat_completion.api_router",
    "vllm.entrypoints.openai.completion.api_router",
    "vllm.entrypoints.openai.responses.api_router",
    "vllm.entrypoints.scale_out.derender.api_router",
    "vllm.entrypoints.scale_out.render.api_router",
    "vllm.entrypoints.serve.profile.api_router",
    "vllm.entrypoints.serve.tokenize.api_router",
)
"""What vLLM 0.33 imports for its HTTP server once the engine is there. A module that another
version does not have is left out."""


_after_fork = AfterFork()


def prepare_http_server(vllm_config: Any) -> None:
    """Prepare the HTTP server of a process that will fork a single engine, once it has.

    Args:
        vllm_config: A ``vllm.config.VllmConfig`` with a model.
    """
    parallel = vllm_config.parallel_config
    # With several engines or HTTP servers, the first process makes them all and serves nothing.
    alone = parallel.data_parallel_size == 1 and parallel._api_process_count == 1
    if is_server() and alone and os.environ.get(METHOD) == "fork":
        _after_fork.arm(lambda: _prepare(vllm_config.model_config))


def _prepare(model_config: Any) -> None:
    try:
        for name in HTTP_MODULES:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        _find_chat_template(model_config)
    except Exception:
        # vLLM will do the same in its own time, and say then what is wrong.
        logger.debug("the HTTP server could not be prepared", exc_info=True)


def _find_chat_template(model_config: Any) -> None:
    """Let vLLM look for a template, which it does for a model's processor only once.

    For a model of texts Transformers makes its tokenizer again to find that out.
    """
    from vllm.renderers.hf import resolve_chat_template
    from vllm.tokenizers import cached_tokenizer_from_config

    tokenizer = cached_tokenizer_from_config(model_config)
    resolve_chat_template(tokenizer, None, None, model_config=model_config)
