// SPDX-License-Identifier: Apache-2.0
// Products of a few rows with packed weights.
//
// A matrix [K, N] is packed as [N / 32, K / 2, 32, 2]: blocks of 32 columns, and in a block pairs
// of rows side by side, the order in which both the AMX tiles and the AVX-512 dot products of
// bf16 want them. A block is read front to back exactly once, so the memory's own prefetching
// keeps up.
#pragma once

#include "parallel.h"

#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstdint>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace trnport {

using bf16 = c10::BFloat16;

constexpr int64_t kColumns = 32;  // of a block
constexpr int64_t kRows = 32;     // of x at a time, and so the height of a result block
constexpr int64_t kDepth = 32;    // K is a multiple of it

using ResultBlock = float[kRows * kColumns];

// ---- one block: out[rows, 32] = x[rows, K] @ block[K, 32] --------------------------------------

#if defined(__AVX512BF16__)
template <int ROWS>
inline void dot_rows(const bf16* x, int64_t stride, const bf16* block, int64_t depth, float* out) {
  __m512 sums[ROWS][4];
  for (auto& row : sums)
    for (auto& sum : row) sum = _mm512_setzero_ps();
  // Two pairs at a time, each with its own sums: one would wait for the other's result.
  for (int64_t k = 0; k < depth; k += 4) {
    const char* at = reinterpret_cast<const char*>(block + k * kColumns);
    __m512bh w[4];
    for (int i = 0; i < 4; ++i) {
      w[i] = (__m512bh)_mm512_loadu_si512(at + 64 * i);
      _mm_prefetch(at + 64 * i + 4096, _MM_HINT_T0);
    }
    for (int row = 0; row < ROWS; ++row) {
      const auto* pairs = reinterpret_cast<const int32_t*>(x + row * stride + k);
      const auto first = (__m512bh)_mm512_set1_epi32(pairs[0]);
      const auto second = (__m512bh)_mm512_set1_epi32(pairs[1]);
      sums[row][0] = _mm512_dpbf16_ps(sums[row][0], first, w[0]);
      sums[row][1] = _mm512_dpbf16_ps(sums[row][1], first, w[1]);
      sums[row][2] = _mm512_dpbf16_ps(sums[row][2], second, w[2]);
      sums[row][3] = _mm512_dpbf16_ps(sums[row][3], second, w[3]);
    }
  }
  for (int row = 0; row < ROWS; ++row) {
    _mm512_storeu_ps(out + row * kColumns, _mm512_add_ps(sums[row][0], sums[row][2]));
    _mm512_storeu_ps(out + row * kColumns + 16, _mm512_add_ps(sums[row][1], sums[row][3]));
  }
}

inline void dot_block(
    const bf16* x, int64_t stride, int64_t rows, const bf16* block, int64_t depth, float* out) {
  for (; rows >= 4; rows -= 4, x += 4 * stride, out += 4 * kColumns)
    dot_rows<4>(x, stride, block, depth, out);
  switch (rows) {
    case 3: return dot_rows<3>(x, stride, block, depth, out);
    case 2: return dot_rows<2>(x, stride, block, depth, out);
    case 1: return dot_rows<1>(x, stride, block, depth, out);
    default: return;
  }
}
#else
inline void dot_block(
    const bf16* x, int64_t stride, int64_t rows, const bf16* block, int64_t depth, float* out) {
  std::fill_n(out, rows * kColumns, 0.0f);
  for (int64_t k = 0; k < depth; k += 2)
    for (int64_t row = 0; row < rows; ++row) {
      const float a = x[row * stride + k], b = x[row * stride + k + 1];
      const bf16* w = block + k * kColumns;
      float* sums = out + row * kColumns;
      for (int64_t n = 0; n < kColumns; ++n)
        sums[n] += a * static_cast<float>(w[2 * n]) + b * static_cast<float>(w[2 * n + 1]);
    }
}
#endif

#if defined(__AMX_BF16__)
// Tiles 0-3 are the result's quarters, 4 and 5 sixteen rows of x each, 6 and 7 columns of weights.
class Tiles {
 public:
  explicit Tiles(int64_t rows) {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    const auto upper = static_cast<uint8_t>(std::min<int64_t>(rows, 16));
    const auto lower = static_cast<uint8_t>(std::max<int64_t>(rows - 16, 1));
    const uint8_t heights[8] = {upper, upper, lower, lower, upper, lower, 16, 16};
    for (int tile = 0; tile < 8; ++tile) {
      config.bytes[tile] = 64;
      config.rows[tile] = heights[tile];
    }
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

inline void prefetch_ahead(const bf16* at, int64_t bytes) {
  const char* ahead = reinterpret_cast<const char*>(at) + 4096;
  for (int64_t line = 0; line < bytes; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T0);
}

inline void tile_block(
    const bf16* x, int64_t stride, int64_t rows, const bf16* block, int64_t depth, float* out) {
  constexpr int kBlockRow = kColumns * 2 * sizeof(bf16);
  constexpr int kOutRow = kColumns * sizeof(float);
  const int x_row = static_cast<int>(stride * sizeof(bf16));
  _tile_zero(0);
  _tile_zero(1);
  if (rows <= 16) {
    for (int64_t k = 0; k < depth; k += kDepth) {
      prefetch_ahead(block + k * kColumns, kDepth * kColumns * sizeof(bf16));
      _tile_loadd(4, x + k, x_row);
      _tile_loadd(6, block + k * kColumns, kBlockRow);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, block + k * kColumns + 32, kBlockRow);
      _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, out, kOutRow);
    _tile_stored(1, out + 16, kOutRow);
    return;
  }
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < depth; k += kDepth) {
    prefetch_ahead(block + k * kColumns, kDepth * kColumns * sizeof(bf16));
    _tile_loadd(4, x + k, x_row);
    _tile_loadd(6, block + k * kColumns, kBlockRow);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, block + k * kColumns + 32, kBlockRow);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, x + 16 * stride + k, x_row);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, out, kOutRow);
  _tile_stored(1, out + 16, kOutRow);
  _tile_stored(2, out + 16 * kColumns, kOutRow);
  _tile_stored(3, out + 16 * kColumns + 16, kOutRow);
}
#endif

// ---- all blocks --------------------------------------------------------------------------------

bool has_tiles();  // of this processor, and permitted by the system

// Calls run(product) with the fastest product for blocks of that many rows.
template <class Run>
void with_product(int64_t rows, const Run& run) {
#if defined(__AMX_BF16__)
  if (rows > 4 && has_tiles()) {
    const Tiles tiles(rows);
    return run(tile_block);
  }
#endif
  run(dot_block);
}

// Calls compute(first row, number of rows, block, product) for all rows, 32 at a time, and blocks.
//
// Threads share the blocks out, so each weight is read by one of them. Rows come in groups small
// enough to stay in a core's cache while all blocks pass by.
template <class Compute>
void for_blocks(int64_t rows, int64_t depth, int64_t blocks, const Compute& compute) {
  constexpr int64_t kGroup = 8 * kRows;
  // Below this many multiplications a thread costs more than it brings.
  const int64_t work = depth * kColumns * std::min<int64_t>(rows, 8);
  const int64_t grain = std::max<int64_t>(1, (1 << 15) / work);
  const auto strips = [&](int64_t first, int64_t last, int64_t begin, int64_t end) {
    const int64_t height = std::min(kRows, last - first);
    with_product(height, [&](auto product) {
      for (int64_t block = begin; block < end; ++block)
        for (int64_t row = first; row < last; row += height) compute(row, height, block, product);
    });
  };
  share(blocks, grain, [&] {
    return [&](int64_t begin, int64_t end) {
      for (int64_t group = 0; group < rows; group += kGroup) {
        const int64_t last = std::min(group + kGroup, rows);
        const int64_t whole = group + (last - group) / kRows * kRows;
        if (whole > group) strips(group, whole, begin, end);
        if (last > whole) strips(whole, last, begin, end);
      }
    };
  });
}

}  // namespace trnport
