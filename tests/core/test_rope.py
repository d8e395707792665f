# SPDX-License-Identifier: Apache-2.0
"""Rotary embedding: cos and sin against Transformers, for every type and spelling."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Gemma3TextConfig, Gemma4TextConfig, GlmConfig, LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRotaryEmbedding
from transformers.models.glm.modeling_glm import GlmRotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from trnport.core.errors import ConfigError
from trnport.core.nn.rope import ROPE_TYPES, RopeParameters, RotaryEmbedding

HEAD_DIM = 64
MAX_POSITION = 8192
ORIGINAL = 2048
SHORT = [1 + 0.01 * i for i in range(HEAD_DIM // 2)]
LONG = [2 + 0.3 * i for i in range(HEAD_DIM // 2)]
LENGTHS = (1, 100, ORIGINAL, ORIGINAL + 1, MAX_POSITION, MAX_POSITION + 1, 131072)

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "dynamic-2": {"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 0.5},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "yarn-no-original": {"rope_type": "yarn", "factor": 4.0},
    "yarn-null-factor": {
        "rope_type": "yarn",
        "factor": None,
        "original_max_position_embeddings": ORIGINAL,
    },
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": ORIGINAL,
        "mscale": 1.0,
        "mscale_all_dim": 0.707,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "yarn-explicit": {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": ORIGINAL,
        "mscale": 1.0,
        "mscale_all_dim": 0.707,
        "attention_factor": 0.8,
    },
    "yarn-no-truncate": {  # gpt-oss
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    },
    "yarn-step": {  # both ends of the ramp on one pair
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
        "beta_fast": 8.0,
        "beta_slow": 8.0,
        "truncate": False,
    },
    "yarn-ramp-before-the-first-pair": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 100,
    },
    "yarn-ramp-beyond-the-last-pair": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 5_000_000,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "longrope": {
        "rope_type": "longrope",
        "short_factor": SHORT,
        "long_factor": LONG,
        "original_max_position_embeddings": ORIGINAL,
    },
    "longrope-factor": {
        "rope_type": "longrope",
        "short_factor": SHORT,
        "long_factor": LONG,
        "original_max_position_embeddings": ORIGINAL,
        "factor": 16.0,
    },
    "longrope-small-factor": {
        "rope_type": "longrope",
        "short_factor": SHORT,
        "long_factor": LONG,
        "original_max_position_embeddings": ORIGINAL,
        "factor": 0.5,
    },
    "longrope-explicit": {
        "rope_type": "longrope",
        "short_factor": SHORT,
        "long_factor": LONG,
        "original_max_position_embeddings": ORIGINAL,
        "factor": 16.0,
        "attention_factor": 1.3,
    },
    "longrope-not-extended": {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG},
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.3, "factor": 2.0},
    "proportional-full": {"rope_type": "proportional"},
}


def sizes() -> dict[str, Any]:
    return {
        "hidden_size": 256,
        "num_attention_heads": 256 // HEAD_DIM,
        "max_position_embeddings": MAX_POSITION,
    }


def old_spelling(scaling: dict[str, Any]) -> dict[str, Any]:
    scaling = copy.deepcopy(scaling)
    rope_type = scaling.pop("rope_type", None)
    partial = scaling.pop("partial_rotary_factor", None)
    config = sizes() | {"rope_theta": 500000.0}
    config["rope_scaling"] = scaling | {"type": rope_type} if rope_type else None
    return config | ({"partial_rotary_factor": partial} if partial else {})


def v5_spelling(scaling: dict[str, Any]) -> dict[str, Any]:
    return sizes() | {"rope_parameters": copy.deepcopy(scaling) | {"rope_theta": 500000.0}}


SPELLINGS = {"old": old_spelling, "v5": v5_spelling}


@pytest.fixture(autouse=True, scope="module")
def _settled() -> None:
    # The oracle's cos must not be the first one of the process either; see rope.py.
    build(v5_spelling({}))


def sampled_positions(length: int) -> Tensor:
    """Positions below ``length``, first and last included."""
    inner = torch.randint(0, length, (300,), generator=torch.Generator().manual_seed(length))
    return torch.cat([torch.tensor([0, length - 1]), inner])


def assert_equal_to(
    oracle: tuple[Tensor, Tensor], rotary: RotaryEmbedding, positions: Tensor, length: int
) -> None:
    ours = rotary(positions.int(), torch.tensor([length], dtype=torch.int32))
    half = rotary.rotary_dim // 2
    for mine, theirs in zip(ours, oracle, strict=True):
        assert mine.dtype == torch.float32
        assert mine.shape == (len(positions), half)
        assert theirs.shape[-1] == 2 * half  # both halves of theirs are the same
        torch.testing.assert_close(mine, theirs[0, :, :half], atol=1e-6, rtol=0)


def build(config: dict[str, Any], layer_type: str | None = None) -> RotaryEmbedding:
    params = RopeParameters.from_hf(config, layer_type)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return RotaryEmbedding(params, head_dim, config["max_position_embeddings"])


def test_covers_every_type_of_transformers() -> None:
    assert set(ROPE_TYPES) >= ROPE_INIT_FUNCTIONS.keys() | {"default"}
    tested = {scaling.get("rope_type", "default") for scaling in SCALINGS.values()}
    assert tested == set(ROPE_TYPES)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("case", SCALINGS)
def test_equals_transformers_llama(case: str, spelling: str) -> None:
    config = SPELLINGS[spelling](SCALINGS[case])
    rotary = build(config)
    # Transformers edits the dictionaries it is given, and its modules keep state between calls.
    oracle_config = LlamaConfig(**copy.deepcopy(config))
    for length in LENGTHS:
        positions = sampled_positions(length)
        theirs = LlamaRotaryEmbedding(oracle_config)(torch.zeros(1), positions[None])
        assert_equal_to(theirs, rotary, positions, length)


@pytest.mark.parametrize("case", SCALINGS)
def test_reads_what_transformers_writes(case: str) -> None:
    config = old_spelling(SCALINGS[case])
    saved = LlamaConfig(**copy.deepcopy(config)).to_dict()
    assert RopeParameters.from_hf(saved) == RopeParameters.from_hf(config)


def test_llama_without_theta_has_the_base_of_transformers() -> None:
    oracle = LlamaRotaryEmbedding(LlamaConfig(**sizes()))
    params = RopeParameters.from_hf(sizes(), default_theta=10000.0)
    rotary = RotaryEmbedding(params, HEAD_DIM, MAX_POSITION)
    positions = sampled_positions(MAX_POSITION)
    assert_equal_to(oracle(torch.zeros(1), positions[None]), rotary, positions, MAX_POSITION)


@pytest.mark.parametrize("factor", [0.25, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("inside", [False, True])
def test_partial_rotation_equals_transformers_glm(factor: float, inside: bool) -> None:
    config = sizes() | {"rope_theta": 10000.0, "head_dim": HEAD_DIM}
    if inside:
        config["rope_parameters"] = {"rope_theta": 10000.0, "partial_rotary_factor": factor}
    else:
        config["partial_rotary_factor"] = factor
    oracle = GlmRotaryEmbedding(GlmConfig(**copy.deepcopy(config)))
    positions = sampled_positions(131072)
    assert_equal_to(oracle(torch.zeros(1), positions[None]), build(config), positions, 131072)


def test_an_odd_number_of_rotary_dimensions_rotates_one_more() -> None:
    config = sizes() | {"head_dim": 10, "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    oracle = GlmRotaryEmbedding(GlmConfig(**config))
    rotary = build(config)
    assert rotary.rotary_dim == 6
    positions = sampled_positions(100)
    assert_equal_to(oracle(torch.zeros(1), positions[None]), rotary, positions, 100)


@pytest.mark.parametrize("length", [100, 4096, 4097, 131072])
def test_original_length_beside_the_dictionary_equals_transformers_phi3(length: int) -> None:
    config = {
        "hidden_size": 256,
        "num_attention_heads": 4,
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "partial_rotary_factor": 0.75,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "longrope", "short_factor": SHORT[:24], "long_factor": LONG[:24]},
    }
    oracle = Phi3RotaryEmbedding(Phi3Config(**copy.deepcopy(config), pad_token_id=0))
    positions = sampled_positions(length)
    assert_equal_to(oracle(torch.zeros(1), positions[None]), build(config), positions, length)


@pytest.mark.parametrize("layer_type", ["full_attention", "sliding_attention"])
@pytest.mark.parametrize("length", [100, 131072])
def test_nested_parameters_equal_transformers_gemma3(layer_type: str, length: int) -> None:
    config: dict[str, Any] = sizes() | {
        "head_dim": HEAD_DIM,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    }
    oracle = Gemma3RotaryEmbedding(Gemma3TextConfig(**copy.deepcopy(config)))
    positions = sampled_positions(length)
    theirs = oracle(torch.zeros(1), positions[None], layer_type)
    assert_equal_to(theirs, build(config, layer_type), positions, length)


def test_proportional_rotation_equals_transformers_gemma4() -> None:
    config = Gemma4TextConfig(
        num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"]
    )
    oracle = Gemma4TextRotaryEmbedding(config)
    positions = sampled_positions(131072)
    saved = config.to_dict()
    for layer_type in config.layer_types:
        saved["head_dim"] = config.per_layer_config[layer_type].head_dim
        theirs = oracle(torch.zeros(1), positions[None], layer_type)
        assert_equal_to(theirs, build(saved, layer_type), positions, 131072)


def test_nested_yarn_honours_its_own_truncate() -> None:
    """Transformers 5.20 looks for ``truncate`` beside the layer types, and misses it."""
    nested = {"full_attention": SCALINGS["yarn-no-truncate"] | {"rope_theta": 500000.0}}
    ours = build(sizes() | {"rope_parameters": nested}, "full_attention")
    assert torch.equal(ours.inv_freq, build(v5_spelling(SCALINGS["yarn-no-truncate"])).inv_freq)


@pytest.mark.parametrize("case", ["dynamic", "longrope"])
def test_each_row_follows_its_own_sequence_length(case: str) -> None:
    rotary = build(v5_spelling(SCALINGS[case]))
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    positions = lengths - 1
    together = rotary(positions, lengths)
    for row in range(len(lengths)):
        alone = rotary(positions[row : row + 1], lengths[row : row + 1])
        assert torch.equal(torch.cat(alone), torch.stack([c[row] for c in together]))


def test_depends_on_seq_len() -> None:
    def depends(case: str, max_model_len: int) -> bool:
        return build(v5_spelling(SCALINGS[case])).depends_on_seq_len(max_model_len)

    assert not depends("longrope", ORIGINAL)
    assert depends("longrope", ORIGINAL + 1)
    assert not depends("dynamic", MAX_POSITION)
    assert depends("dynamic", MAX_POSITION + 1)
    assert not any(depends(case, 10**6) for case in ("default", "yarn", "llama3", "linear"))


@pytest.mark.parametrize("case", ["default", "dynamic", "yarn-mscale", "llama3", "longrope"])
def test_frequencies_survive_how_a_model_is_built(case: str) -> None:
    config = v5_spelling(SCALINGS[case])
    expected = build(config)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model = nn.Sequential(build(config), nn.Linear(2, 2))
        model.to(torch.float16)
        model.to("meta")
        model.to_empty(device="cpu")
        model.bfloat16()
        rotary = model[0]
        assert model.state_dict().keys() == {"1.weight", "1.bias"}
        assert rotary.inv_freq.device.type == "cpu"
        assert torch.equal(rotary.inv_freq, expected.inv_freq)
        positions, length = torch.tensor([0, 300, 9000]), torch.tensor([9001])
        cos, sin = rotary(positions, length)
    finally:
        torch.set_default_dtype(before)
    assert cos.dtype == sin.dtype == torch.float32
    assert torch.equal(torch.cat(expected(positions, length)), torch.cat([cos, sin]))


@pytest.mark.parametrize("case", ["default", "dynamic", "longrope"])
def test_traces_into_one_graph_for_short_and_long(case: str) -> None:
    rotary = build(v5_spelling(SCALINGS[case]))
    graphs = []

    def count(graph: torch.fx.GraphModule, _: object) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(rotary, backend=count, fullgraph=True, dynamic=False)
    for length in (7, MAX_POSITION + 7):
        positions, seq_lens = torch.tensor([0, length - 1]), torch.tensor([length])
        got, expected = compiled(positions, seq_lens), rotary(positions, seq_lens)
        assert torch.equal(torch.cat(got), torch.cat(expected))
    assert len(graphs) == 1


@pytest.mark.parametrize(
    ("params", "head_dim", "message"),
    [
        (RopeParameters(rope_theta=1e4), 7, "pairs"),
        (RopeParameters(rope_theta=1e4, partial_rotary_factor=0.01), 8, "leaves 0"),
        (RopeParameters(rope_theta=1e4, rope_type="dynamic", factor=2.0), 2, "dynamic"),
        (
            RopeParameters(rope_theta=1e4, rope_type="yarn", factor=2.0, partial_rotary_factor=0.5),
            10,
            "even",
        ),
        (
            RopeParameters(
                rope_theta=1e4, rope_type="longrope", short_factor=[1.0] * 4, long_factor=[1.0] * 3
            ),
            8,
            "need 4 entries.*not 3",
        ),
    ],
)
def test_refuses_a_head_that_does_not_fit(
    params: RopeParameters, head_dim: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        RotaryEmbedding(params, head_dim, 4096)
