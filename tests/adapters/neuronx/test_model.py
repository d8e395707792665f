# SPDX-License-Identifier: Apache-2.0
"""Our own models' programs through the whole pipeline: logits and caches as without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.adapters.neuronx.graphs import assert_same, writes_left
from tests.harness import Rig, make_rig
from tests.zoo import save_llama
from tests.zoo_windows import save_window_model
from trnport import bootstrap
from trnport.adapters.neuronx import NeuronxCompiler, Rewritten, interpret
from trnport.adapters.neuronx.passes.functional import functional_operator
from trnport.adapters.neuronx.passes.kernel_config import CONFIG
from trnport.adapters.torch_cpu import TorchCpuKernels
from trnport.core.kernels import with_operator

PROMPT = [(31 * i + 7) % 131 for i in range(13)]
FORCED = [7, 128, 3]
BUCKETS = {"num_batched_tokens_buckets": [8, 64], "num_seqs_buckets": [4]}


@torch.library.custom_op("trnport_test::kv_write", mutates_args=("k_cache", "v_cache"))
def kv_write(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """The operator that changes caches, as a kernel that no tracer looks into."""
    TorchCpuKernels().kv_write(k, v, k_cache, v_cache, slot_mapping)


@kv_write.register_fake
def _(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    return None


def run(rig: Rig) -> Tensor:
    """A prompt in two chunks, then decode steps, beside another request."""
    other = rig.request([5, 6], room=1)
    rig.run([other], [2])
    return rig.teacher_forced(PROMPT, FORCED, chunks=[8, 5])


def compare(folder: Path, **settings: Any) -> list[Rewritten]:
    """The same steps with and without; the graphs that ran."""
    compiler = NeuronxCompiler(lower=interpret)
    rig = make_rig(folder, neuron_config=BUCKETS, compiler=compiler, **settings)
    eager = make_rig(folder, neuron_config=BUCKETS, **settings)
    assert_same(run(rig), run(eager), "logits")
    for name, pair in eager.caches.items():
        assert not pair[0].isnan().all()
        assert_same(tuple(rig.caches[name]), tuple(pair), f"caches of {name}")
    graphs = [program.rewritten for program in compiler.programs]
    assert len(graphs) == 3
    count = len({id(cache) for pair in eager.caches.values() for cache in pair})
    for graph in graphs:
        assert len(graph.io_map) == count and not writes_left(graph.gm)
    return graphs


def test_llama_with_kernels_in_torch(tmp_path: Path) -> None:
    save_llama(tmp_path)
    graphs = compare(tmp_path)
    assert {len(graph.io_map) for graph in graphs} == {4}


@pytest.mark.slow
def test_llama_with_caches_written_by_an_operator_of_its_own(tmp_path: Path) -> None:
    save_llama(tmp_path)
    kernels = with_operator(TorchCpuKernels(), kv_write=kv_write)
    for graph in compare(tmp_path, kernels=kernels, dtype=torch.bfloat16):
        calls = [n for n in graph.gm.graph.nodes if n.target is functional_operator]
        assert len(calls) == 2


@pytest.mark.slow
def test_llama_on_nki_kernels(tmp_path: Path) -> None:
    adapter = pytest.importorskip("trnport.adapters.nki.adapter")
    save_llama(tmp_path)
    for graph in compare(tmp_path, kernels=adapter.NkiKernels(TorchCpuKernels())):
        texts = [n.meta[CONFIG] for n in graph.gm.graph.nodes if CONFIG in n.meta]
        kernels = [json.loads(text) for text in texts]
        writes = [kernel["aliases"] for kernel in kernels if kernel["aliases"]]
        assert writes == [{"k_cache": 0, "v_cache": 1}] * 2
        assert {"trnport_nki::rms_norm", "trnport_nki::mlp"} <= {k["kernel"] for k in kernels}


@pytest.mark.slow
def test_programs_that_sample(tmp_path: Path) -> None:
    save_llama(tmp_path)
    tokens = []
    for compiler in (NeuronxCompiler(lower=interpret), None):
        session = bootstrap.open_session(
            tmp_path,
            dtype=torch.float32,
            max_model_len=16,
            max_num_seqs=2,
            neuron_config={
                "num_batched_tokens_buckets": [16],
                "num_seqs_buckets": [2],
                "on_device_sampling_config": {"temperature": "0"},
            },
            compiler=compiler,
        )
        tokens.append(session.generate([PROMPT[:5], PROMPT[5:8]], max_tokens=5))
    assert tokens[0] == tokens[1]


@pytest.mark.slow
def test_layers_that_share_a_cache(tmp_path: Path) -> None:
    save_window_model(tmp_path, "qwen3", "mixed_w7")
    graphs = compare(tmp_path, by_window=True)
    layers = 2 * json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"]
    assert all(0 < len(graph.io_map) < layers for graph in graphs)


def test_warm_up_that_only_compiles_computes_and_writes_nothing(tmp_path: Path) -> None:
    save_llama(tmp_path)
    lowered: list[Rewritten] = []

    def lower(rewritten: Rewritten, inputs: Any) -> Any:
        lowered.append(rewritten)
        return pytest.fail

    compiler = NeuronxCompiler(lower=lower, compile_only=True)
    config = {"num_batched_tokens_buckets": [64], "num_seqs_buckets": [4]}
    rig = make_rig(tmp_path, neuron_config=config, compiler=compiler)
    logits = rig.teacher_forced(PROMPT, [1])
    assert logits.shape == (2, 131) and not logits.any()
    assert all(cache.isnan().all() for pair in rig.caches.values() for cache in pair)
    assert [graph.name for graph in lowered] == [program.name for program in compiler.programs]
