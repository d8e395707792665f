# SPDX-License-Identifier: Apache-2.0
"""Operators that models call: compositions of kernels and collectives."""

from trnport.core.functional.attention import attention
from trnport.core.functional.embeds import merge_prompt_embeds
from trnport.core.functional.parallel import gather_tokens, reduce_tokens

__all__ = ["attention", "gather_tokens", "merge_prompt_embeds", "reduce_tokens"]
