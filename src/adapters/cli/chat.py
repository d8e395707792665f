# SPDX-License-Identifier: Apache-2.0
"""An offline chat in the terminal that streams its answers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from transformers import AutoTokenizer, GenerationConfig

from trnport import bootstrap
from trnport.core.engine.sampling import SamplingParams
from trnport.core.engine.session import Session
from trnport.core.errors import RequestError

CHAT_PREFILL_BUCKETS = (32, 128, 512)
"""Short turns pad little, and there is little to warm up."""


def run_chat(arguments: argparse.Namespace) -> int:
    """Read lines from standard input and answer each until end of file."""
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    session = _open(arguments)
    sampling = SamplingParams(temperature=arguments.temperature, seed=arguments.seed)
    stops = stop_ids(arguments.model, tokenizer)
    messages: list[dict[str, str]] = []
    print("Type a message; an empty line or Ctrl-D ends the chat.", file=sys.stderr)
    for line in _lines():
        messages.append({"role": "user", "content": line})
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )
        room = arguments.max_model_len - len(prompt)
        try:
            tokens = session.stream(
                prompt, sampling, min(arguments.max_tokens, max(room, 1)), sorted(stops)
            )
            answer = _print_stream(pieces(tokenizer, tokens, stops))
        except RequestError as error:
            print(f"trnport: {error}", file=sys.stderr)
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": answer})
    return 0


def stop_ids(model: str, tokenizer: Any) -> frozenset[int]:
    """Every id that ends an answer: the tokenizer's and all of the generation config's."""
    ids = {tokenizer.eos_token_id}
    try:
        configured = GenerationConfig.from_pretrained(model).eos_token_id
    except OSError:
        configured = None
    ids.update(configured if isinstance(configured, list) else [configured])
    return frozenset(i for i in ids if i is not None)


def pieces(tokenizer: Any, tokens: Iterable[int], stops: frozenset[int]) -> Iterator[str]:
    """Turn token ids into printable pieces of text as they come.

    A character may span several tokens; it is held back until it is whole.
    """
    ids: list[int] = []
    shown = ""
    for token in tokens:
        if token in stops:
            break
        ids.append(token)
        text = tokenizer.decode(ids)
        if not text.endswith("�"):
            yield text[len(shown) :]
            shown = text
    rest = tokenizer.decode(ids)[len(shown) :]
    if rest:
        yield rest


def _open(arguments: argparse.Namespace) -> Session:
    limit = min(arguments.max_model_len, CHAT_PREFILL_BUCKETS[-1])
    buckets = [b for b in CHAT_PREFILL_BUCKETS if b < limit] + [limit]
    return bootstrap.open_session(
        arguments.model,
        dtype=getattr(torch, arguments.dtype),
        max_model_len=arguments.max_model_len,
        max_num_seqs=1,
        max_num_batched_tokens=limit,
        neuron_config={"num_batched_tokens_buckets": buckets},
        progress=_show_progress,
    )


def _show_progress(done: int, total: int, name: str, seconds: float) -> None:
    end = "\n" if done == total else ""
    print(f"\rwarm-up {done}/{total} {name} {seconds:.1f} s   ", end=end, file=sys.stderr)


def _lines() -> Iterator[str]:
    while True:
        try:
            line = input("you> " if sys.stdin.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            return
        if not line:
            return
        yield line


def _print_stream(parts: Iterable[str]) -> str:
    whole = []
    for part in parts:
        print(part, end="", flush=True)
        whole.append(part)
    print()
    return "".join(whole)
