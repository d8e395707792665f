# SPDX-License-Identifier: Apache-2.0
"""MX quantization and matmul against loops over plain numbers."""

import math
import random

import numpy as np
import pytest

from tests.adapters.nki import plain as oracle
from tests.adapters.nki.tiles import fresh, indices, plain, tile
from trnport.adapters.nki.simulator import isa as nisa
from trnport.adapters.nki.simulator import language as nl
from trnport.adapters.nki.simulator import machine
from trnport.adapters.nki.simulator.rules import RULES, RuleViolationError

#: packed dtype: exponent bits, mantissa bits, bias, largest exponent, bits per element
KINDS = {
    "float8_e4m3fn_x4": (4, 3, 7, 8, 8),
    "float8_e5m2_x4": (5, 2, 15, 15, 8),
    "float4_e2m1fn_x4": (2, 1, 1, 2, 4),
}


def decode(bits, kind):
    """The value of one packed element, from its sign, exponent and mantissa."""
    exponent_bits, mantissa_bits, bias, _, width = KINDS[kind]
    sign = -1.0 if bits >> (width - 1) else 1.0
    exponent = bits >> mantissa_bits & (2**exponent_bits - 1)
    mantissa = bits & (2**mantissa_bits - 1)
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - bias - mantissa_bits)
    return sign * math.ldexp(2**mantissa_bits + mantissa, exponent - bias - mantissa_bits)


def unpack(word, kind):
    width = KINDS[kind][4]
    return [decode(int(word) >> (width * q) & (2**width - 1), kind) for q in range(4)]


def nearest(value, kind):
    """The representable value next to `value`, ties to the even pattern."""
    width = KINDS[kind][4]
    candidates = [
        (abs(decode(bits, kind) - value), bits % 2, decode(bits, kind))
        for bits in range(2**width)
        if not (kind == "float8_e4m3fn_x4" and bits % 128 == 127)
        and not (kind == "float8_e5m2_x4" and bits % 128 >= 124)
    ]
    return min(candidates, key=lambda each: each[:2])[2]


def scale_row(group):
    """Partition, within the scale tile, of a group of eight data partitions."""
    return group // 4 * 32 + group % 4


def sample(rows, columns, seed, dtype="bfloat16"):
    rng = random.Random(seed)
    return [
        [
            oracle.round_float(rng.gauss(0, 1) * 2.0 ** rng.randint(-6, 6), dtype)
            for _ in range(columns)
        ]
        for _ in range(rows)
    ]


# --- quantize_mx --------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["float8_e4m3fn_x4", "float8_e5m2_x4"])
@pytest.mark.parametrize("partitions", [32, 64])
@pytest.mark.parametrize("scales", ["uint8", "float8_e8m0fnu"])
def test_quantize_scales_by_twice_the_ocp_scale(trn3, kind, partitions, scales):
    data = sample(partitions, 8, partitions)
    for p in range(8):
        data[p][4:8] = [0.0] * 4  # one group of zeros
    dst, dst_scale = fresh((partitions, 2), kind), fresh((partitions, 2), scales)
    nisa.quantize_mx(dst, tile(data, "bfloat16"), dst_scale)
    bits = dst_scale.array().view(np.uint8)
    for group, column in indices((partitions // 8, 2)):
        values = [
            data[p][f]
            for p in range(8 * group, 8 * group + 8)
            for f in range(4 * column, 4 * column + 4)
        ]
        top = max(abs(x) for x in values)
        exponent = math.floor(math.log2(top)) - (KINDS[kind][3] - 1) if top else -127
        assert bits[scale_row(group), column] == exponent + 127
        for p in range(8 * group, 8 * group + 8):
            got = unpack(plain(dst)[p, column], kind)
            for q in range(4):
                wanted = nearest(data[p][4 * column + q] / 2.0**exponent, kind)
                assert got[q] == wanted


def test_quantize_leaves_other_scale_partitions_and_packs_two_tensors(trn3):
    data = sample(64, 4, 1)
    scales = fresh((64, 1), "uint8")
    nisa.memset(scales, 99)
    first, second = fresh((64, 1), "float8_e5m2_x4"), fresh((64, 1), "float8_e5m2_x4")
    nisa.quantize_mx(first, tile(data, "bfloat16"), scales)
    nisa.quantize_mx(
        second, tile([[x * 4 for x in row] for row in data], "bfloat16"), scales[4:, :]
    )
    seen = plain(scales)[:, 0].tolist()
    for row in (0, 1, 2, 3, 32, 33, 34, 35):
        assert seen[row + 4] == seen[row] + 2
    assert all(seen[row] == 99 for row in (*range(8, 32), *range(40, 64)))
    assert (plain(first) == plain(second)).all()


def test_quantize_of_32_partitions_needs_four_scale_partitions(trn3):
    dst, scales = fresh((32, 1), "float8_e4m3fn_x4"), fresh((4, 1), "uint8")
    nisa.quantize_mx(dst, tile([[1.0, 2.0, 4.0, 8.0]] * 32, "float16"), scales)
    assert plain(scales)[:, 0].tolist() == [3 - 7 + 127] * 4
    assert unpack(plain(dst)[0, 0], "float8_e4m3fn_x4") == [16.0, 32.0, 64.0, 128.0]


# --- nc_matmul_mx -------------------------------------------------------------------------------
def packed(rows, columns, kind, seed):
    """Random words without NaN or infinity."""
    rng = random.Random(seed)
    width = KINDS[kind][4]
    safe = [b for b in range(2**width) if abs(decode(b, kind)) < 2.0 ** KINDS[kind][3]]
    return [
        [sum(rng.choice(safe) << (width * q) for q in range(4)) for _ in range(columns)]
        for _ in range(rows)
    ]


def product(left, right, kinds, left_scales, right_scales, m, n):
    total = 0.0
    for k in range(len(left)):
        row = scale_row(k // 8)
        factor = 2.0 ** (left_scales[row][m] + right_scales[row][n] - 254)
        pairs = zip(unpack(left[k][m], kinds[0]), unpack(right[k][n], kinds[1]), strict=True)
        total += factor * math.fsum(a * b for a, b in pairs)
    return total


@pytest.mark.parametrize("stationary", sorted(KINDS))
@pytest.mark.parametrize("moving", sorted(KINDS))
@pytest.mark.parametrize("partitions", [32, 64])
def test_matmul_mx_contracts_partitions_and_packed_elements(trn3, stationary, moving, partitions):
    left, right = packed(partitions, 2, stationary, 1), packed(partitions, 3, moving, 2)
    rng = random.Random(3)
    left_scales = [[rng.randint(120, 130) for _ in range(2)] for _ in range(partitions)]
    right_scales = [[rng.randint(120, 130) for _ in range(3)] for _ in range(partitions)]
    dst = fresh((2, 3), "float32", nl.psum)
    nisa.nc_matmul_mx(
        dst,
        tile(left, stationary),
        tile(right, moving),
        tile(left_scales, "uint8"),
        tile(right_scales, "uint8"),
    )
    for m, n in indices((2, 3)):
        kinds = (stationary, moving)
        wanted = product(left, right, kinds, left_scales, right_scales, m, n)
        size = max(abs(wanted), 1.0)
        assert abs(plain(dst)[m, n] - wanted) < 1e-3 * size + 1e-2


def test_matmul_mx_accumulates_like_matmul(trn3):
    kind = "float8_e4m3fn_x4"
    one = tile([[0x38383838] * 2] * 32, kind)  # four times 1.0
    scales = tile([[127] * 2] * 4, "uint8")
    dst = fresh((2, 2), "bfloat16", nl.psum)
    nisa.nc_matmul_mx(dst, one, one, scales, scales)
    assert plain(dst).tolist() == [[128.0] * 2] * 2
    nisa.nc_matmul_mx(dst, one, one, scales, scales)
    assert plain(dst).tolist() == [[256.0] * 2] * 2
    nisa.nc_matmul_mx(dst, one, one, scales, scales, accumulate=False)
    assert plain(dst).tolist() == [[128.0] * 2] * 2
    assert trn3.counters.pe_useful_macs == 3 * 32 * 4 * 2 * 2


def test_quantize_then_matmul_is_close_to_the_product(trn3):
    kind = "float8_e4m3fn_x4"
    left, right = sample(128, 8, 7), sample(128, 12, 8)
    tiles = []
    for data, width in ((left, 2), (right, 3)):
        dst, scales = fresh((128, width), kind), fresh((128, width), "float8_e8m0fnu")
        nisa.quantize_mx(dst, tile(data, "bfloat16"), scales)
        tiles.append((dst, scales))
    out = fresh((2, 3), "float32", nl.psum)
    nisa.nc_matmul_mx(out, tiles[0][0], tiles[1][0], tiles[0][1], tiles[1][1])
    for m, n in indices((2, 3)):
        terms = [left[k][4 * m + q] * right[k][4 * n + q] for k in range(128) for q in range(4)]
        norm = math.sqrt(math.fsum(x * x for x in terms))
        assert abs(plain(out)[m, n] - math.fsum(terms)) < 0.2 * norm


# --- rules --------------------------------------------------------------------------------------
F8 = "float8_e4m3fn_x4"


def z(*shape, dtype=F8, buffer=nl.sbuf):
    return tile(np.zeros(shape), dtype, buffer)


def quantize(dst=None, src=None, scale=None):
    nisa.quantize_mx(
        dst if dst is not None else z(32, 2),
        src if src is not None else z(32, 8, dtype="bfloat16"),
        scale if scale is not None else z(4, 2, dtype="uint8"),
    )


def matmul(dst=None, left=None, right=None, left_scale=None, right_scale=None, **more):
    nisa.nc_matmul_mx(
        dst if dst is not None else z(2, 2, dtype="float32", buffer=nl.psum),
        left if left is not None else z(32, 2),
        right if right is not None else z(32, 2),
        left_scale if left_scale is not None else z(4, 2, dtype="uint8"),
        right_scale if right_scale is not None else z(4, 2, dtype="uint8"),
        **more,
    )


def shifted(rows, at):
    return z(rows + at, 2, dtype="uint8")[at:, :]


CASES = [
    ("trn2", "NKI-TARGET", quantize),
    ("trn2", "NKI-TARGET", matmul),
    ("trn3", "NKI-BUFFER", lambda: quantize(src=z(32, 8, dtype="bfloat16", buffer=nl.psum))),
    ("trn3", "NKI-DTYPE", lambda: quantize(src=z(32, 8, dtype="float32"))),
    ("trn3", "NKI-DTYPE", lambda: quantize(dst=z(32, 2, dtype="float4_e2m1fn_x4"))),
    ("trn3", "NKI-DTYPE", lambda: quantize(scale=z(4, 2, dtype="int8"))),
    ("trn3", "NKI-MX-SIZE", lambda: quantize(z(16, 2), z(16, 8, dtype="bfloat16"))),
    ("trn3", "NKI-MX-SIZE", lambda: quantize(src=z(32, 7, dtype="bfloat16"))),
    ("trn3", "NKI-SHAPE", lambda: quantize(dst=z(32, 3))),
    ("trn3", "NKI-MX-SCALE", lambda: quantize(scale=z(3, 2, dtype="uint8"))),
    ("trn3", "NKI-MX-SCALE", lambda: quantize(scale=z(4, 3, dtype="uint8"))),
    ("trn3", "NKI-MX-SCALE", lambda: quantize(scale=shifted(4, 2))),
    ("trn3", "NKI-MX-SCALE", lambda: quantize(scale=shifted(4, 16))),
    ("trn3", "NKI-MX-SCALE", lambda: quantize(scale=shifted(4, 32))),
    (
        "trn3",
        "NKI-MX-SCALE",
        lambda: quantize(z(64, 2), z(64, 8, dtype="bfloat16"), z(8, 2, dtype="uint8")),
    ),
    ("trn3", "NKI-BUFFER", lambda: matmul(dst=z(2, 2, dtype="float32"))),
    ("trn3", "NKI-BUFFER", lambda: matmul(left=z(32, 2, buffer=nl.psum))),
    ("trn3", "NKI-DTYPE", lambda: matmul(left=z(32, 2, dtype="bfloat16"))),
    ("trn3", "NKI-DTYPE", lambda: matmul(dst=z(2, 2, dtype="float16", buffer=nl.psum))),
    ("trn3", "NKI-DTYPE", lambda: matmul(left_scale=z(4, 2, dtype="int8"))),
    ("trn3", "NKI-MX-SIZE", lambda: matmul(left=z(16, 2), right=z(16, 2))),
    ("trn3", "NKI-SHAPE", lambda: matmul(right=z(64, 2))),
    (
        "trn3",
        "NKI-MX-SIZE",
        lambda: matmul(
            z(3, 2, dtype="float32", buffer=nl.psum), z(32, 3), None, z(4, 3, dtype="uint8")
        ),
    ),
    ("trn3", "NKI-SHAPE", lambda: matmul(dst=z(2, 3, dtype="float32", buffer=nl.psum))),
    ("trn3", "NKI-MX-SCALE", lambda: matmul(right_scale=z(4, 3, dtype="uint8"))),
    ("trn3", "NKI-MX-SCALE", lambda: matmul(right_scale=shifted(4, 3))),
    ("trn3", "NKI-MX-TILE", lambda: matmul(tile_position=(0, 0))),
    ("trn3", "NKI-MX-TILE", lambda: matmul(tile_position=(0, 0), tile_size=(32, 64))),
    ("trn3", "NKI-MX-TILE", lambda: matmul(tile_position=(16, 0), tile_size=(32, 128))),
    ("trn3", "NKI-MX-TILE", lambda: matmul(tile_position=(0, 32), tile_size=(32, 128))),
    ("trn3", "NKI-MX-TILE", lambda: matmul(tile_position=(128, 0), tile_size=(32, 128))),
]


@pytest.mark.parametrize(
    ("target", "rule", "breaks"),
    CASES,
    ids=[f"{i}-{target}-{rule}" for i, (target, rule, _) in enumerate(CASES)],
)
def test_a_broken_rule_names_itself(target, rule, breaks):
    with machine.session(target), pytest.raises(RuleViolationError) as caught:
        breaks()
    assert caught.value.rule == rule
    assert RULES[rule].page in str(caught.value)


def test_row_tiles_are_legal():
    with machine.session("trn3"):
        matmul(tile_position=(96, 0), tile_size=(32, 128))
        quantize(scale=shifted(4, 12))
