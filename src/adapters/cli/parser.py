# SPDX-License-Identifier: Apache-2.0
"""Arguments of the ``trnport`` command. Imports nothing heavy, so that ``--help`` is instant."""

from __future__ import annotations

import argparse
import math

from trnport.adapters.cli.kernel_arguments import add_kernels, add_roofline

SERVER_MEMORY_UTILIZATION = 0.92
"""vLLM's default of gpu_memory_utilization, which means the host's memory on a CPU platform."""


def build_parser() -> argparse.ArgumentParser:
    """The parser; its result names the chosen command in ``command``."""
    parser = argparse.ArgumentParser(prog="trnport", description="Serve LLMs on AWS Trainium.")
    commands = parser.add_subparsers(dest="command", required=True)
    _add_chat(commands.add_parser("chat", help="talk to a checkpoint in the terminal, offline"))
    _add_doctor(commands.add_parser("doctor", help="say whether serving would work here, and why"))
    _add_plan(commands.add_parser("plan", help="memory and programs of a server, before it starts"))
    add_roofline(commands.add_parser("roofline", help="least time of a step on our NKI kernels"))
    add_kernels(commands.add_parser("kernels", help="list and compare sets of kernels"))
    _add_cache(commands.add_parser("cache", help="list, check or shrink the compiled programs"))
    return parser


def _add_cache(cache: argparse.ArgumentParser) -> None:
    actions = cache.add_subparsers(dest="action", required=True)
    actions.add_parser("ls", help="list the programs, the one used last first")
    actions.add_parser("verify", help="compare every file with what was stored")
    prune = actions.add_parser("prune", help="remove damaged programs and leftovers, or more")
    prune.add_argument(
        "--max-gib", metavar="X", type=_limit, help="keep the programs used last, up to this size"
    )
    prune.add_argument(
        "--max-age-days", metavar="X", type=_limit, help="remove programs not used for that long"
    )


def _add_chat(chat: argparse.ArgumentParser) -> None:
    chat.add_argument("--model", required=True, help="directory of a Hugging Face checkpoint")
    chat.add_argument("--max-tokens", type=int, default=256, help="longest answer")
    chat.add_argument("--max-model-len", type=int, default=2048, help="longest conversation")
    chat.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    chat.add_argument("--seed", type=int, default=None, help="fixes random answers")
    chat.add_argument("--dtype", choices=["bfloat16", "float32"], default="float32")


def _add_doctor(doctor: argparse.ArgumentParser) -> None:
    doctor.add_argument("--json", action="store_true", help="print one JSON object")


def _add_plan(plan: argparse.ArgumentParser) -> None:
    plan.add_argument("model", help="directory with a config.json; weights are not needed")
    plan.add_argument("--tp", metavar="N", type=int, default=1, help="tensor-parallel degree")
    plan.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    limits = {
        "--max-model-len": "most tokens of a request (default: the model's own limit)",
        "--max-num-seqs": "most requests at a time (default: that of vllm serve)",
        "--max-num-batched-tokens": "most prompt tokens in a step (default: that of vllm serve)",
    }
    for name, meaning in limits.items():
        plan.add_argument(name, metavar="N", type=int, help=meaning)
    plan.add_argument(
        "--block-size", metavar="N", type=int, default=32, help="tokens of a KV block (default: 32)"
    )
    plan.add_argument(
        "--memory-gib",
        metavar="X",
        type=_size,
        help="memory that all ranks share (default: this machine's)",
    )
    plan.add_argument(
        "--gpu-memory-utilization",
        metavar="X",
        type=_fraction,
        default=SERVER_MEMORY_UTILIZATION,
        help="part of that memory the server may use (default: %(default)s)",
    )
    plan.add_argument("--neuron-config", metavar="JSON", help="settings, as in docs/options.md")
    plan.add_argument(
        "--lengths",
        metavar="FILE",
        help="lines of prompt and output length (CSV, or JSON); reports padding, proposes buckets",
    )


def _size(text: str) -> float:
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a size above 0")
    return value


def _limit(text: str) -> float:
    value = _number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 0")
    return value


def _fraction(text: str) -> float:
    value = _number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
