# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from trnport.core.errors import ConfigError
from trnport.core.weights import WeightMapping, expand_layers, resolve_box


@pytest.mark.parametrize(
    ("pattern", "key", "covered"),
    [
        ("*.rotary_emb.inv_freq", "model.layers.0.self_attn.rotary_emb.inv_freq", True),
        ("*.rotary_emb.inv_freq", "model.rotary_emb.inv_freq", True),
        ("*.rotary_emb.inv_freq", "rotary_emb.inv_freq", False),
        ("*.rotary_emb.inv_freq", "model.my_rotary_emb.inv_freq", False),
        ("*.rotary_emb.inv_freq", "model.rotary_emb.inv_freq.scale", False),
        ("model.layers.*.bias", "model.layers.3.mlp.bias", True),
        ("model.layers.*.bias", "model.layers.bias", False),
        ("vision.*", "vision.tower.weight", True),
        ("vision.*", "vision", False),
        ("vision.*", "visionary.weight", False),
        ("lm_head.weight", "lm_head.weight", True),
        ("lm_head.weight", "lm_headXweight", False),
        ("gate", "gate_up", False),
        ("*.a.*.b", "x.a.a.y.b", True),
        ("*.a.*.b", "x.a.b", False),
        ("*", "anything.at.all", True),
    ],
)
def test_patterns_match_whole_components(pattern: str, key: str, covered: bool) -> None:
    assert WeightMapping({}, (pattern,)).is_ignored(key) is covered


def test_any_pattern_suffices_and_none_is_needed() -> None:
    assert WeightMapping({}, ("a.*", "b.*")).is_ignored("b.c")
    assert not WeightMapping({}).is_ignored("b.c")


def test_one_key_and_a_list_of_keys_are_the_same_thing() -> None:
    mapping = WeightMapping({"a": "x", "b": ["y", "z"]}, "only.*")
    assert mapping.sources == {"a": ("x",), "b": ("y", "z")}
    assert mapping.ignored == ("only.*",)


def test_layers_are_written_out() -> None:
    templates = {
        "layers.{layer}.qkv": ["model.layers.{layer}.q", "model.layers.{layer}.k"],
        "layers.{layer}.norm": "model.layers.{layer}.norm",
    }
    assert expand_layers(templates, 2) == {
        "layers.0.qkv": ("model.layers.0.q", "model.layers.0.k"),
        "layers.0.norm": ("model.layers.0.norm",),
        "layers.1.qkv": ("model.layers.1.q", "model.layers.1.k"),
        "layers.1.norm": ("model.layers.1.norm",),
    }
    assert list(expand_layers({"{layer}.a": "{layer}.b"}, [3, 7])) == ["3.a", "7.a"]


@pytest.mark.parametrize(
    "templates", [{"norm": "m.{layer}.n"}, {"n.{layer}": ["m.{layer}.n", "shared"]}]
)
def test_a_template_that_all_layers_would_share_is_refused(templates: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"no \{layer\} in .*(norm|shared)"):
        expand_layers(templates, 2)


def test_mappings_merge_unless_both_name_a_parameter() -> None:
    first = WeightMapping({"a": "x"}, ("i.*",))
    merged = first.merged(WeightMapping({"b": "y"}, ("j.*",)))
    assert merged == WeightMapping({"a": "x", "b": "y"}, ("i.*", "j.*"))
    assert first.merged({"b": "y"}).sources == merged.sources
    with pytest.raises(ConfigError, match="mapped twice: a"):
        first.merged({"a": "x", "b": "y"})


def test_boxes_are_resolved_to_every_dimension() -> None:
    assert resolve_box(slice(1, 2), (3, 4)) == ((1, 2), (0, 4))
    assert resolve_box((), ()) == ()
    assert resolve_box((slice(None), slice(2, None)), (3, 4, 5)) == ((0, 3), (2, 4), (0, 5))
    assert resolve_box(slice(0, 0), (0, 4)) == ((0, 0), (0, 4))
    with pytest.raises(IndexError, match=r"dimension 1: \[0, 5\) does not lie in \[0, 4\)"):
        resolve_box((slice(None), slice(0, 5)), (3, 4))
    with pytest.raises(IndexError, match="1 slices"):
        resolve_box(slice(None), ())
