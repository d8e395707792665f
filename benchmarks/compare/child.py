# SPDX-License-Identifier: Apache-2.0
"""An engine in processes of its own, and our end of the conversation with it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TAIL = 3
GRACE = 10.0


class EngineError(RuntimeError):
    """The engine said so, took too long, or is gone."""


class Processes:
    """A command that leads a process group of its own, its output in a log file."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, **options: Any
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **options,
            )
        self.started = time.monotonic()

    def pause(self) -> None:
        """Stop all its processes: some engines spin while they wait."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """End all its processes, the hard way after a while."""
        self.resume()
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE)
        self._signal(signal.SIGKILL)
        self.process.wait()

    def last_words(self) -> str:
        """Exit status and end of the log, to go with an error."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        words = " / ".join(lines[-TAIL:])[-300:]
        return f"status {self.process.poll()}, {self.log.name}: {words}"

    def peak_bytes(self) -> int:
        """Largest resident sizes of the living processes of the group, added up."""
        return sum(_peak_bytes(process) for process in self._group())

    def _group(self) -> Iterator[Path]:
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.getpgid(int(entry.name)) == self.process.pid:
                    yield entry

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


def _peak_bytes(process: Path) -> int:
    with contextlib.suppress(OSError):
        for line in (process / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


class Runner:
    """An engine that answers; ready once constructed.

    Attributes:
        about: What it said of itself.
        start_seconds: From the start of its process until its first token.
        warm: Names of the workloads it has done before; kept by who asks.
    """

    def __init__(
        self,
        python: Path,
        module: str,
        options: Mapping[str, Any],
        environment: Mapping[str, str],
        log: Path,
        timeout: float,
    ) -> None:
        self.warm: set[str] = set()
        self._answers: int | None
        self._answers, answers = os.pipe()
        self._buffer = b""
        paths = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
        try:
            self.processes = Processes(
                [str(python), "-m", module, json.dumps({**options, "answers": answers})],
                {**environment, "PYTHONPATH": os.pathsep.join(paths)},
                log,
                stdin=subprocess.PIPE,
                pass_fds=(answers,),
                cwd=ROOT,
            )
        finally:
            os.close(answers)
        try:
            self.about: dict[str, str] = self._answer(timeout)["ready"]
        except BaseException:
            self.close()
            raise
        self.start_seconds = time.monotonic() - self.processes.started

    def generate(
        self, prompts: list[list[int]], new_tokens: int, timeout: float
    ) -> dict[str, float]:
        """Ask for tokens; the trace of how they came.

        Raises:
            EngineError: There is none.
        """
        assert self.processes.process.stdin is not None
        line = json.dumps({"prompts": prompts, "new_tokens": new_tokens}) + "\n"
        try:
            self.processes.process.stdin.write(line.encode())
            self.processes.process.stdin.flush()
        except OSError as error:
            raise EngineError(f"it is gone: {self.processes.last_words()}") from error
        trace: dict[str, float] = self._answer(timeout)["trace"]
        return trace

    def pause(self) -> None:
        """Stop it until its next turn."""
        self.processes.pause()

    def resume(self) -> None:
        """Its turn."""
        self.processes.resume()

    def close(self) -> None:
        """Let it end by itself, or else end it."""
        self.processes.resume()
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if self.processes.process.stdin:
                self.processes.process.stdin.close()
            self.processes.process.wait(GRACE)
        self.processes.end()
        if self._answers is not None:
            os.close(self._answers)
            self._answers = None

    def _answer(self, timeout: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._answers], [], [], left)[0]:
                raise EngineError(f"no answer within {timeout:.0f} s")
            read = os.read(self._answers, 1 << 16)
            if not read:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.processes.process.wait(GRACE)
                raise EngineError(f"it ended: {self.processes.last_words()}")
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer
