# SPDX-License-Identifier: Apache-2.0
"""Inverse frequencies of every RoPE type.

All run once, on the CPU, in fp32, whatever the default device and dtype are. The order of
fp32 operations matters: at position 131071 one unit in the last place of a frequency turns
an angle by a hundredth of a radian, so each formula is evaluated as its authors wrote it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trnport.core.errors import ConfigError
from trnport.core.nn.rope_parameters import RopeParameters


def rotary_dim(params: RopeParameters, head_dim: int) -> int:
    """The dimension d in the exponents ``2i / d`` of the frequencies.

    Equal to the number R of rotated dimensions, except that an odd d rotates d + 1.

    Raises:
        ConfigError: The head cannot be rotated in pairs.
    """
    # "proportional" counts its unrotated pairs as rotated by an angle of zero.
    partial = 1.0 if params.rope_type == "proportional" else params.partial_rotary_factor
    dim = int(head_dim * partial)
    if dim < 1 or dim + dim % 2 > head_dim:
        raise ConfigError(
            f"head_dim={head_dim} with partial_rotary_factor={partial} leaves {dim} rotary "
            "dimensions; they must come in pairs inside the head"
        )
    if params.rope_type == "yarn" and dim % 2:
        raise ConfigError(f"rope_type='yarn' needs an even number of rotary dimensions, not {dim}")
    if params.rope_type == "dynamic" and dim <= 2:
        raise ConfigError(f"rope_type='dynamic' needs more than {dim} rotary dimensions")
    return dim


def exponents(dim: int) -> Tensor:
    """``[ceil(dim / 2)]`` fp32, ``2i / dim``."""
    return torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim


def inverse_frequencies(
    params: RopeParameters, head_dim: int, max_position_embeddings: int
) -> Tensor:
    """Radians per position of each pair of dimensions, for short sequences.

    Args:
        params: RoPE settings.
        head_dim: Size of a head.
        max_position_embeddings: The model's maximum length, in tokens.

    Returns:
        ``[R/2]`` fp32 on the CPU. For "dynamic" and "longrope" those that hold up to the
        original length.

    Raises:
        ConfigError: The settings do not fit the head size.
    """
    dim = rotary_dim(params, head_dim)
    base: Tensor = 1.0 / params.rope_theta ** exponents(dim)
    match params.rope_type:
        case "linear":
            return base / params.scaling_factor(max_position_embeddings)
        case "yarn":
            return _yarn(params, dim, max_position_embeddings)
        case "llama3":
            return _llama3(params, base, max_position_embeddings)
        case "longrope":
            return divided_frequencies(params.short_factor, params.rope_theta, dim)
        case "proportional":
            return _proportional(params, base, head_dim, max_position_embeddings)
    # "default", and "dynamic" before a sequence outgrows the model.
    return base


def attention_scaling(params: RopeParameters, max_position_embeddings: int) -> float:
    """What cos and sin are multiplied by, so that q and k both carry it; no unit.

    An explicit ``attention_factor`` wins. Otherwise yarn uses ``0.1 * mscale * ln(s) + 1``
    (Peng et al., 2023, eq. 22; DeepSeek-V2 divides by the same with ``mscale_all_dim``) and
    longrope ``sqrt(1 + ln(s) / ln(L))`` (Ding et al., 2024), where s is the factor and L the
    original length.
    """
    if params.attention_factor is not None:
        return params.attention_factor
    factor = params.scaling_factor(max_position_embeddings)
    if params.rope_type == "yarn":
        if params.mscale and params.mscale_all_dim:
            return _yarn_mscale(factor, params.mscale) / _yarn_mscale(factor, params.mscale_all_dim)
        return _yarn_mscale(factor, 1.0)
    if params.rope_type == "longrope" and factor > 1:
        length = params.original_length(max_position_embeddings)
        return math.sqrt(1 + math.log(factor) / math.log(length))
    return 1.0


def divided_frequencies(divisors: tuple[float, ...], theta: float, dim: int) -> Tensor:
    """LongRoPE (Ding et al., 2024, section 3): each frequency over a searched divisor.

    Args:
        divisors: One per pair of dimensions.
        theta: Base.
        dim: Rotated dimensions.

    Returns:
        ``[R/2]`` fp32.

    Raises:
        ConfigError: There are more or fewer divisors than pairs.
    """
    wavelengths: Tensor = theta ** exponents(dim)
    if len(divisors) != len(wavelengths):
        raise ConfigError(
            f"short_factor and long_factor need {len(wavelengths)} entries, one per pair of "
            f"rotary dimensions, not {len(divisors)}"
        )
    return 1.0 / (torch.tensor(divisors, dtype=torch.float32, device="cpu") * wavelengths)


def dynamic_frequencies(
    params: RopeParameters,
    exponent: Tensor,
    dim: int,
    max_position_embeddings: int,
    lengths: Tensor,
) -> Tensor:
    """Dynamic NTK scaling (Peng et al., 2023, appendix): the base grows with the sequence.

    Args:
        params: RoPE settings.
        exponent: ``[R/2]`` fp32 from :func:`exponents`.
        dim: The dimension behind ``exponent``.
        max_position_embeddings: Length from which the base grows, in tokens.
        lengths: ``[B, 1]`` fp32, tokens per sequence.

    Returns:
        ``[B, R/2]`` fp32; meaningful for lengths beyond the maximum.
    """
    factor = params.scaling_factor(max_position_embeddings)
    growth = factor * lengths.clamp(min=max_position_embeddings) / max_position_embeddings
    base = params.rope_theta * (growth - (factor - 1)) ** (dim / (dim - 2))
    frequencies: Tensor = 1.0 / base**exponent
    return frequencies


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _yarn(params: RopeParameters, dim: int, max_position_embeddings: int) -> Tensor:
    """YaRN (Peng et al., 2023, section 3.2): interpolate slow dimensions, keep fast ones."""
    length = params.original_length(max_position_embeddings)
    factor = params.scaling_factor(max_position_embeddings)
    wavelengths: Tensor = params.rope_theta ** exponents(dim)
    low = _yarn_dimension(params.beta_fast, dim, params.rope_theta, length)
    high = _yarn_dimension(params.beta_slow, dim, params.rope_theta, length)
    if params.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # a step instead of a division by zero
    ramp = (torch.arange(dim // 2, dtype=torch.float32, device="cpu") - low) / (high - low)
    keep = 1 - ramp.clamp(0, 1)
    return 1.0 / (factor * wavelengths) * (1 - keep) + 1.0 / wavelengths * keep


def _yarn_dimension(rotations: float, dim: int, theta: float, length: int) -> float:
    """The (fractional) pair that turns ``rotations`` times over ``length`` positions."""
    return dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(theta))


def _llama3(params: RopeParameters, base: Tensor, max_position_embeddings: int) -> Tensor:
    """Llama 3.1: divide low frequencies by the factor and blend in between.

    Source: the reference code published with Llama 3.1 (Grattafiori et al., 2024).
    """
    length = params.original_length(max_position_embeddings)
    factor = params.scaling_factor(max_position_embeddings)
    low, high = params.low_freq_factor, params.high_freq_factor
    wavelengths = 2 * math.pi / base
    keep = (length / wavelengths - low) / (high - low)
    blended = (1 - keep) * base / factor + keep * base
    scaled = torch.where(wavelengths < length / high, base, blended)
    return torch.where(wavelengths > length / low, base / factor, scaled)


def _proportional(
    params: RopeParameters, base: Tensor, head_dim: int, max_position_embeddings: int
) -> Tensor:
    """Partial rotation whose exponents still run over the whole head (Gemma 4).

    The pairs beyond the rotated share get frequency zero, so R is the head size.
    """
    pairs = int(params.partial_rotary_factor * head_dim // 2)
    index = torch.arange(base.shape[0], device="cpu")
    return torch.where(index < pairs, base, 0.0) / params.scaling_factor(max_position_embeddings)
