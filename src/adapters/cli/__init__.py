# SPDX-License-Identifier: Apache-2.0
"""The ``trnport`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from trnport.core.errors import TrnportError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="trnport", description="Serve LLMs on AWS Trainium.")
    commands = parser.add_subparsers(dest="command", required=True)
    chat = commands.add_parser("chat", help="talk to a checkpoint in the terminal, offline")
    chat.add_argument("--model", required=True, help="directory of a Hugging Face checkpoint")
    chat.add_argument("--max-tokens", type=int, default=256, help="longest answer")
    chat.add_argument("--max-model-len", type=int, default=2048, help="longest conversation")
    chat.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    chat.add_argument("--seed", type=int, default=None, help="fixes random answers")
    chat.add_argument("--dtype", choices=["bfloat16", "float32"], default="float32")
    arguments = parser.parse_args(argv)
    # Imported here so that --help does not wait for torch.
    from trnport.adapters.cli.chat import run_chat

    try:
        return run_chat(arguments)
    except TrnportError as error:
        print(f"trnport: {error}", file=sys.stderr)
        return 2
