# SPDX-License-Identifier: Apache-2.0
"""Groups of layers: which layers share a block table, and which share memory.

A request owns a separate list of blocks in each group, all from one pool. The j-th layers of
all groups have their caches in the same memory, since a block belongs to one group at a time.
So a group whose layers have a window can give old blocks back while the others keep theirs.
"""

from __future__ import annotations

from collections import Counter

import attrs

from trnport.core.errors import ConfigError
from trnport.core.kv.spec import KVSpec, LayerSpec

PADDING_LIMIT = 1.5
"""Below this ratio of layers, the smaller kind is padded to the larger one's group size."""


@attrs.frozen
class KVGroup:
    """Layers with one block table.

    Attributes:
        layers: Their names.
        sliding_window: Blocks wholly behind this many latest positions may be given back;
            None keeps all blocks, whatever windows the layers have.
    """

    layers: tuple[str, ...]
    sliding_window: int | None = None

    def blocks_for(self, num_tokens: int, block_size: int, tokens_in_flight: int) -> int:
        """Most blocks that a request owns at a time.

        Args:
            num_tokens: Tokens of the request.
            block_size: Positions per block.
            tokens_in_flight: Most tokens that are scheduled and not yet computed.
        """
        if self.sliding_window is None:
            return -(-num_tokens // block_size)
        held = min(self.sliding_window - 1 + tokens_in_flight, num_tokens)
        # The window may begin anywhere in its first block.
        return -(-held // block_size) + 1


@attrs.frozen
class KVGroups:
    """All groups of a model; every layer is in one.

    Raises:
        ConfigError: There is no group, or a layer is in two.
    """

    groups: tuple[KVGroup, ...]

    def __attrs_post_init__(self) -> None:
        counts = Counter(name for group in self.groups for name in group.layers)
        twice = sorted(name for name, count in counts.items() if count > 1)
        if twice or not counts:
            raise ConfigError(f"each layer belongs to one group of KV caches, not so: {twice}")

    @classmethod
    def single(cls, spec: KVSpec) -> KVGroups:
        """One group of all layers that keeps all blocks."""
        return cls((KVGroup(tuple(layer.name for layer in spec.layers)),))

    @classmethod
    def by_window(cls, spec: KVSpec) -> KVGroups:
        """The groups that vLLM's hybrid block manager makes of layers with equal bytes.

        Layers of one window, or of none, are a kind. Kinds are cut into groups of equal size,
        that of the smallest kind unless the largest has hardly more layers.
        """
        kinds: dict[int | None, list[str]] = {}
        for layer in spec.layers:
            kinds.setdefault(layer.sliding_window, []).append(layer.name)
        sizes = [len(names) for names in kinds.values()]
        size = max(sizes) if max(sizes) < PADDING_LIMIT * min(sizes) else min(sizes)
        return cls(
            tuple(
                KVGroup(tuple(names[start :: -(-len(names) // size)]), window)
                for window, names in kinds.items()
                for start in range(-(-len(names) // size))
            )
        )

    def group_of(self) -> dict[str, int]:
        """Layer name to the index of its group."""
        return {name: i for i, group in enumerate(self.groups) for name in group.layers}

    def shared(self, spec: KVSpec) -> list[list[LayerSpec]]:
        """Layers that share memory: the first of every group, the second of every group, ...

        Raises:
            ConfigError: The groups are not those of the spec's layers, or layers that would
                share memory differ in shape or dtype.
        """
        by_name = {layer.name: layer for layer in spec.layers}
        if sorted(self.group_of()) != sorted(by_name):
            raise ConfigError(
                f"the groups of KV caches hold the layers {sorted(self.group_of())} and the model "
                f"has {sorted(by_name)}"
            )
        longest = max(len(group.layers) for group in self.groups)
        places = [
            [by_name[group.layers[j]] for group in self.groups if j < len(group.layers)]
            for j in range(longest)
        ]
        for place in places:
            if len({(layer.num_kv_heads, layer.head_size, layer.dtype) for layer in place}) > 1:
                raise ConfigError(
                    f"the layers {[layer.name for layer in place]} would share memory and differ "
                    "in heads, head size or dtype; use one group (with vLLM: "
                    "--disable-hybrid-kv-cache-manager)"
                )
        return places

    def bytes_per_block(self, spec: KVSpec, block_size: int) -> int:
        """Bytes of one block over all layers of the widest group."""
        return block_size * sum(place[0].bytes_per_token() for place in self.shared(spec))
