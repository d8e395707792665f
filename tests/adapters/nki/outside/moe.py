# SPDX-License-Identifier: Apache-2.0
"""Experts on a few tokens."""

from __future__ import annotations

import torch

from tests.adapters.nki.outside.library import Library, Pairs


def tkg(
    library: Library,
    *,
    all_expert: bool = True,
    scaled: bool = False,
    gpt_oss: bool = False,
    tokens: int = 7,
) -> Pairs:
    """Run [T, H] through every expert, or through each token's k best."""
    hidden, inner, experts, k = 512, 256, 4, 2
    types = library.module("core.utils.common_types")
    x = library.normal(tokens, hidden)
    gate_up = library.normal(experts, hidden, 2, inner, scale=hidden**-0.5)
    down = library.normal(experts, inner, hidden, scale=inner**-0.5)
    best = torch.stack([torch.from_numpy(library.generator.permutation(experts)[:k])
                        for _ in range(tokens)])  # fmt: skip
    weights = torch.zeros(tokens, experts).scatter(
        1, best, torch.softmax(library.normal(tokens, k, dtype="float32"), dim=1)
    )
    if not all_expert:  # the kernel shuffles them with the hidden states, in bf16
        weights = weights.to(torch.bfloat16)
    modes = types.ExpertAffinityScaleMode
    settings = {
        "is_all_expert": all_expert,
        "expert_affinities_scaling_mode": modes.POST_SCALE if scaled else modes.NO_SCALE,
        "activation_fn": types.ActFnType.Swish if gpt_oss else types.ActFnType.SiLU,
    }
    arrays = {}
    if gpt_oss:
        arrays["expert_gate_up_bias"] = library.normal(experts, 2, inner, scale=0.1)
        arrays["expert_down_bias"] = library.normal(experts, hidden, scale=0.1)
        settings |= {"gate_clamp_upper_limit": 1.5, "up_clamp_upper_limit": 1.5,
                     "up_clamp_lower_limit": -1.5}  # fmt: skip
    rank = torch.zeros(1, 1, dtype=torch.uint32) if all_expert and scaled else None
    got = library.simulate(
        library.module("core.moe.moe_tkg.moe_tkg").moe_tkg,
        x,
        gate_up,
        down,
        weights,
        best.to(torch.int32).view(torch.uint32),
        rank_id=rank,
        **settings,
        **arrays,
    )
    wide = {name: t.float() for name, t in arrays.items()}
    want = library.module("core.moe.moe_tkg.moe_tkg_torch").moe_tkg_torch_ref(
        x.float(), gate_up, down, weights.float(), best, **settings, **wide
    )
    return {"out": (got, want["out"])}


def cte(library: Library) -> Pairs:
    """Run blocks of tokens, each through one expert; the reference is plain torch."""
    tokens, hidden, inner, experts, block = 300, 512, 256, 3, 256
    x = library.normal(tokens + 1, hidden)  # the last row stands for padding
    x[-1] = 0
    gate_up = library.normal(experts, hidden, 2, inner, scale=hidden**-0.5)
    down = library.normal(experts, inner, hidden, scale=inner**-0.5)
    owner = library.generator.integers(0, experts, tokens)
    ids = torch.full((experts + 1, block), tokens, dtype=torch.int32)
    for expert in range(experts):
        mine = torch.from_numpy((owner == expert).nonzero()[0])
        ids[expert, : len(mine)] = mine
    affinities = torch.zeros(tokens + 1, experts)
    affinities[torch.arange(tokens), torch.from_numpy(owner)] = library.normal(
        tokens, dtype="float32"
    ).sigmoid()
    affinities = affinities.to(torch.bfloat16)
    module = library.module("core.moe.moe_cte.moe_cte")
    got = library.simulate(
        module.moe_cte,
        x,
        affinities.reshape(-1, 1),
        gate_up,
        down,
        ids.reshape(-1),
        torch.tensor([[0], [1], [2], [0]], dtype=torch.int32),
        block,
        module.MoECTESpec(implementation=module.MoECTEImplementation.shard_on_block),
        is_tensor_update_accumulating=False,
    )
    want = torch.zeros(tokens, hidden)
    for expert in range(experts):
        mine = torch.from_numpy((owner == expert).nonzero()[0])
        gate, up = (x[mine].float() @ gate_up[expert, :, i].float() for i in range(2))
        out = (torch.nn.functional.silu(gate) * up) @ down[expert].float()
        want[mine] = out * affinities[mine, expert].float()[:, None]
    return {"out": (got[:tokens], want)}
