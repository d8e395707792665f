# SPDX-License-Identifier: Apache-2.0
"""The ``trnport`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from trnport.adapters.cli.parser import build_parser
from trnport.core.errors import TrnportError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    arguments = build_parser().parse_args(argv)
    try:
        return _run(arguments)
    except TrnportError as error:
        print(f"trnport: {error}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace) -> int:
    # Imported here so that --help does not wait for torch, and doctor can tell that it is missing.
    if arguments.command == "doctor":
        from trnport.adapters.cli.doctor import run_doctor

        return run_doctor(arguments)
    if arguments.command == "plan":
        from trnport.adapters.cli.plan import run_plan

        return run_plan(arguments)
    if arguments.command == "roofline":
        from trnport.adapters.cli.roofline import run_roofline

        return run_roofline(arguments)
    if arguments.command == "kernels":
        from trnport.adapters.cli.kernels import run_kernels

        return run_kernels(arguments)
    if arguments.command == "cache":
        from trnport.adapters.cli.cache import run_cache

        return run_cache(arguments)
    from trnport.adapters.cli.chat import run_chat

    return run_chat(arguments)
