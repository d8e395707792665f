# SPDX-License-Identifier: Apache-2.0
"""Arguments of ``trnport roofline`` and ``trnport kernels``. Imports nothing heavy."""

from __future__ import annotations

import argparse

TARGETS = ("trn2", "trn3")


def add_roofline(roofline: argparse.ArgumentParser) -> None:
    """Arguments of ``trnport roofline``."""
    roofline.add_argument("model", help="directory with a config.json, or that file")
    roofline.add_argument("--tp", metavar="N", type=int, default=1, help="tensor-parallel degree")
    roofline.add_argument(
        "--phase", choices=["decode", "prefill"], default="decode", help="(default: decode)"
    )
    roofline.add_argument(
        "--batch", metavar="N", type=int, default=8, help="requests of a decode step (default: 8)"
    )
    roofline.add_argument(
        "--context",
        metavar="N",
        type=int,
        default=4096,
        help="tokens of each request, or of the prompt (default: 4096)",
    )
    roofline.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    roofline.add_argument("--block-size", metavar="N", type=int, default=32, help="(default: 32)")
    _add_machine(roofline)
    roofline.add_argument("--json", action="store_true", help="print one JSON object")
    roofline.add_argument("--plot", metavar="FILE", help="also draw a PNG; needs the extra `plot`")


def add_kernels(kernels: argparse.ArgumentParser) -> None:
    """Arguments of ``trnport kernels``."""
    actions = kernels.add_subparsers(dest="action", required=True)
    listing = actions.add_parser("list", help="operators, sets of kernels and their limits")
    listing.add_argument(
        "--kernels", metavar="SET", default="torch_cpu", help="mark what this setting would run"
    )
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    compare = actions.add_parser("compare", help="errors and cost of one operator of two sets")
    compare.add_argument("operator", help="name of an operator of the Kernels port")
    compare.add_argument("--a", metavar="SET", default="torch_cpu", help="(default: torch_cpu)")
    compare.add_argument("--b", metavar="SET", default="nki", help="(default: nki)")
    compare.add_argument(
        "--shape", metavar="NAME=N,...", default="", help="sizes that differ from the defaults"
    )
    compare.add_argument("--dtype", choices=["bf16", "fp32"], default="bf16")
    compare.add_argument("--seed", metavar="N", type=int, default=0)
    _add_machine(compare)
    compare.add_argument("--json", action="store_true", help="print one JSON object")


def _add_machine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", choices=TARGETS, default="trn2", help="(default: trn2)")
    parser.add_argument(
        "--lnc",
        metavar="N",
        type=int,
        choices=[1, 2],
        default=1,
        help="physical cores of a logical one (default: 1)",
    )
