# SPDX-License-Identifier: Apache-2.0
"""Seconds from starting ``vllm serve`` to its first 200 on /health, by phase.

    python benchmarks/startup.py --model CHECKPOINT --rounds 3 -- --max-model-len 512 ...

Cold starts find no compiled program, warm ones those of the cold start before them. What comes
after ``--`` goes to the server. Phases are those that the server logs; ``http`` is what follows.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

PHASES = ("imports", "engine_process", "weights", "kv_cache", "programs", "warm_up", "other")
SERVER = ("--dtype=bfloat16", "--max-num-seqs=8", "--kv-cache-memory-bytes=1G")


def start(model: str, programs: Path, options: list[str], timeout: float) -> dict[str, float]:
    """Start a server, wait until it is healthy, stop it; seconds by phase."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model]
    command += ["--host=127.0.0.1", f"--port={port}", *SERVER, *options]
    environment = {**os.environ, "TRNPORT_CACHE_DIR": str(programs), "VLLM_NO_USAGE_STATS": "1"}
    with tempfile.TemporaryFile("w+") as log:
        began = time.monotonic()
        server = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            wait_for(server, f"http://127.0.0.1:{port}/health", began + timeout)
            total = time.monotonic() - began
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
            log.seek(0)
            text = log.read()
    line = re.search(r"\bstarted (seconds=.*)", text)
    if line is None:
        raise RuntimeError(f"the server did not say how it started:\n{text[-4000:]}")
    found = {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", line[1])}
    return {"total": total, **found, "http": total - found["seconds"]}


def wait_for(server: subprocess.Popen[bytes], url: str, deadline: float) -> None:
    """Wait for a 200.

    Raises:
        RuntimeError: The server ended, or time did.
    """
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with status {server.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("the server is not ready in time; raise --timeout")


def row(label: str, starts: list[dict[str, float]]) -> str:
    """One line of the table: medians, and the spread of the total."""
    totals = [found["total"] for found in starts]
    columns = ["total", *PHASES, "http"]
    medians = [statistics.median(found.get(name, 0.0) for found in starts) for name in columns]
    origin = f"{starts[-1]['programs_from_cache']:.0f} / {starts[-1]['programs_compiled']:.0f}"
    cells = [label, *(f"{value:.1f}" for value in medians), origin]
    return f"| {' | '.join(cells)} | {min(totals):.1f}..{max(totals):.1f} |"


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=3, help="warm starts")
    parser.add_argument("--cache", type=Path, help="keep programs here, and skip the cold start")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one start")
    parser.add_argument("options", nargs="*", help="options of the server, after --")
    arguments = parser.parse_args()
    columns = ["start", "total, s", *PHASES, "http", "cached / compiled", "min..max"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    with tempfile.TemporaryDirectory() as temporary:
        programs = arguments.cache or Path(temporary)

        def run() -> dict[str, float]:
            return start(arguments.model, programs, arguments.options, arguments.timeout)

        if arguments.cache is None:
            print(row("cold", [run()]), flush=True)
        print(row("warm", [run() for _ in range(arguments.rounds)]), flush=True)


if __name__ == "__main__":
    main()
