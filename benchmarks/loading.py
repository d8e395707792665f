# SPDX-License-Identifier: Apache-2.0
"""Time and peak memory of loading a checkpoint, next to a plain read of the same bytes.

    python benchmarks/loading.py --model CHECKPOINT --tp 1 4
    python benchmarks/loading.py --synthetic 1.5

A rank is a process. All ranks start together and the slowest one counts. The plain read puts as
many bytes as the rank needs, one after the other, into fresh memory. Both are measured in turns,
with the files in the page cache (warm) and without (cold).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from trnport import bootstrap
from trnport.adapters.fake import FakeCollectives, RecordingWeightSource
from trnport.core.config import NeuronConfig
from trnport.core.model import model_bytes

CHUNK = 8 << 20


def build(folder: Path, rank: int, tp: int) -> Any:
    """One rank's model on the meta device."""
    settings = NeuronConfig.from_dict(
        {}, max_model_len=128, max_num_seqs=1, max_num_batched_tokens=128, tp=tp
    )
    return bootstrap.build_model(
        bootstrap.read_hf_config(folder),
        settings,
        dtype=torch.bfloat16,
        collectives=FakeCollectives(rank, tp),
    )


def load(folder: Path, rank: int, tp: int) -> tuple[Any, Any]:
    """What loads a rank's weights, and the model that then holds them."""
    model = build(folder, rank, tp)
    return (lambda: model.load_weights(bootstrap.weight_source(folder))), model


def read(folder: Path, rank: int, tp: int) -> tuple[Any, Any]:
    """What reads a rank's share of the bytes into memory, and that memory."""
    files = sorted(folder.glob("*.safetensors"))
    share = sum(file.stat().st_size for file in files) // tp
    memory = torch.empty(share, dtype=torch.uint8)
    view = memoryview(memory.numpy())

    def run() -> None:
        skip, at = rank * share, 0
        for file in files:
            with file.open("rb", buffering=0) as stream:
                start = min(skip, file.stat().st_size)
                skip -= start
                stream.seek(start)
                while at < share and (count := stream.readinto(view[at : at + CHUNK])):
                    at += count

    return run, memory


def peak(field: str = "VmHWM") -> int:
    """Most bytes of memory that this process has had, or has (``VmRSS``)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) * 1024


def child(kind: str, folder: Path, rank: int, tp: int) -> None:
    """Prepare, wait for the word to start, run, and print the measurements."""
    run, result = {"load": load, "read": read}[kind](folder, rank, tp)
    bootstrap.weight_source(folder)  # imports and headers are not what is measured
    print("ready", flush=True)
    sys.stdin.readline()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before, started = peak("VmRSS"), time.perf_counter()
    run()
    seconds = time.perf_counter() - started
    kept = model_bytes(result) if kind == "load" else result.numel()
    print(json.dumps({"seconds": seconds, "peak": peak() - before, "kept": kept}), flush=True)


def measure(kind: str, folder: Path, tp: int) -> dict[str, float]:
    """Run all ranks at once; the slowest one's seconds and the largest one's memory."""
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, __file__, "--child", kind, str(folder), str(rank), str(tp)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in range(tp)
        ]
        for rank in ranks:
            assert rank.stdout
            assert rank.stdout.readline() == "ready\n"
        for rank in ranks:
            assert rank.stdin
            rank.stdin.write("go\n")
            rank.stdin.flush()
        results = [json.loads(rank.stdout.readline()) for rank in ranks if rank.stdout]
    return {key: max(result[key] for result in results) for key in results[0]}


def drop_from_page_cache(folder: Path) -> None:
    """Have the next read come from disk."""
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fill_page_cache(folder: Path) -> None:
    """Have the next read come from memory."""
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as stream:
            while stream.read(CHUNK):
                pass


def distinct_bytes(folder: Path, tp: int) -> int:
    """Bytes of the checkpoint that rank 0 reads, those read twice counted once."""
    source = RecordingWeightSource(bootstrap.weight_source(folder))
    build(folder, 0, tp).load_weights(source)
    return sum({(read.name, read.box): read.nbytes for read in source.reads}.values())


def synthetic(folder: Path, gigabytes: float) -> None:
    """A Llama of that size in bf16, in files of half a gigabyte."""
    from safetensors.torch import save_file

    from trnport.core.weights import checkpoint_shapes

    width = {"hidden_size": 2048, "intermediate_size": 5632, "vocab_size": 32000}
    layers = max(1, round((gigabytes * 1e9 / 2 - 131e6) / 43e6))  # parameters beside the layers'
    config = {
        "architectures": ["LlamaForCausalLM"],
        **width,
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
    }
    (folder / "config.json").write_text(json.dumps(config))
    model = build(folder, 0, 1)
    from trnport.core.nn.decoder import decoder_mapping
    from trnport.core.weights import TiedEmbeddings

    tied = TiedEmbeddings("lm_head.weight", "model.embed_tokens.weight", is_redundant=False)
    shapes = checkpoint_shapes(model, decoder_mapping(model.config, tied))
    shards: list[dict[str, torch.Tensor]] = [{}]
    for name, shape in shapes.items():
        if sum(tensor.nbytes for tensor in shards[-1].values()) > 500e6:
            shards.append({})
        shards[-1][name] = (
            torch.empty(shape, dtype=torch.int16).random_(0, 2**14).view(torch.bfloat16)
        )
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for file, shard in zip(names, shards, strict=True):
        save_file(shard, folder / file)
    where = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))


def compare(folder: Path, label: str, tp: int, rounds: int) -> None:
    """Print the table's rows for one checkpoint and number of ranks."""
    share = distinct_bytes(folder, tp)
    for state, prepare in (("warm", fill_page_cache), ("cold", drop_from_page_cache)):
        found: dict[str, list[dict[str, float]]] = {"read": [], "load": []}
        for _ in range(rounds):
            for kind, results in found.items():
                prepare(folder)
                results.append(measure(kind, folder, tp))
        ratios = [
            ours["seconds"] / plain["seconds"]
            for ours, plain in zip(found["load"], found["read"], strict=True)
        ]
        plain = statistics.median(result["seconds"] for result in found["read"])
        ours = statistics.median(result["seconds"] for result in found["load"])
        most = max(result["peak"] for result in found["load"])
        kept = found["load"][0]["kept"]
        print(
            f"| {label} | {tp} | {state} | {share / 1e6:.0f} | {plain:.2f} | {ours:.2f} | "
            f"{statistics.median(ratios):.2f} | {min(ratios):.2f}..{max(ratios):.2f} | "
            f"{kept / 1e6:.0f} | {most / 1e6:.0f} | {most / kept:.2f} |",
            flush=True,
        )


def main() -> None:
    """Print a Markdown table."""
    if sys.argv[1:2] == ["--child"]:
        kind, folder, rank, tp = sys.argv[2:]
        child(kind, Path(folder), int(rank), int(tp))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a checkpoint")
    parser.add_argument("--synthetic", type=float, help="gigabytes of a made-up one")
    parser.add_argument("--tp", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(
        "| checkpoint | ranks | page cache | MB of a rank | read, s | load, s | ratio | min..max | "
        "weights, MB | peak, MB | peak/weights |\n|" + "---|" * 11
    )
    with tempfile.TemporaryDirectory() as temporary:
        folders = [(arguments.model, arguments.model.name)] if arguments.model else []
        if arguments.synthetic:
            synthetic(Path(temporary), arguments.synthetic)
            folders.append((Path(temporary), f"synthetic, {arguments.synthetic:g} GB"))
        for folder, label in folders:
            for tp in arguments.tp:
                compare(folder, label, tp, arguments.rounds)


if __name__ == "__main__":
    main()
