// SPDX-License-Identifier: Apache-2.0
// Products of rows with packed weights.
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
#include <memory>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace trnport {

using bf16 = c10::BFloat16;

constexpr int64_t kColumns = 32;  // of a block
constexpr int64_t kRows = 32;     // of x at a time, and so the height of a result block
constexpr int64_t kDepth = 32;    // K is a multiple of it

using ResultBlock = float[kRows * kColumns];

// Up to 32 rows of x. 32 elements of a row lie together, its next 32 `step` elements further.
struct Rows {
  const bf16* data;
  int64_t stride, count, step = kDepth;
};

// What will be read next but one: a product asks for some lines of it with each 32 of its depth.
struct Ahead {
  const char* at = nullptr;
  int64_t lines = 0;

  void fetch() {
    for (int64_t i = 0; i < lines; ++i, at += 64) __builtin_prefetch(at, 0, 2);  // into L2
  }
};

// ---- one block: out[rows, 32] = x[rows, K] @ block[K, 32], or += -------------------------------

// Weights are bf16, or whole numbers of 8 bits, all of which bf16 has.
#if defined(__AVX512BF16__)
inline __m512bh load_pairs(const bf16* at) { return (__m512bh)_mm512_loadu_si512(at); }
inline __m512bh load_pairs(const int8_t* at) {
  const auto floats = [](const int8_t* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  };
  return _mm512_cvtne2ps_pbh(floats(at + 16), floats(at));
}

template <int ROWS, class Weight>
inline void dot_rows(const Rows& x, int64_t first, const Weight* block, int64_t depth, float* out, bool add) {
  out += first * kColumns;
  __m512 sums[ROWS][4];
  for (int row = 0; row < ROWS; ++row) {
    sums[row][0] = add ? _mm512_loadu_ps(out + row * kColumns) : _mm512_setzero_ps();
    sums[row][1] = add ? _mm512_loadu_ps(out + row * kColumns + 16) : _mm512_setzero_ps();
    sums[row][2] = sums[row][3] = _mm512_setzero_ps();
  }
  const bf16* start = x.data + first * x.stride;
  for (int64_t tile = 0; tile < depth; tile += kDepth, start += x.step)
    // Two pairs at a time, each with its own sums: one would wait for the other's result.
    for (int64_t k = 0; k < kDepth; k += 4) {
      const Weight* at = block + (tile + k) * kColumns;
      __m512bh w[4];
      for (int i = 0; i < 4; ++i) w[i] = load_pairs(at + 32 * i);
      for (int64_t line = 0; line < static_cast<int64_t>(4 * kColumns * sizeof(Weight)); line += 64)
        _mm_prefetch(reinterpret_cast<const char*>(at) + line + 4096, _MM_HINT_T0);
      for (int row = 0; row < ROWS; ++row) {
        const auto* pairs = reinterpret_cast<const int32_t*>(start + row * x.stride + k);
        const auto one = (__m512bh)_mm512_set1_epi32(pairs[0]);
        const auto two = (__m512bh)_mm512_set1_epi32(pairs[1]);
        sums[row][0] = _mm512_dpbf16_ps(sums[row][0], one, w[0]);
        sums[row][1] = _mm512_dpbf16_ps(sums[row][1], one, w[1]);
        sums[row][2] = _mm512_dpbf16_ps(sums[row][2], two, w[2]);
        sums[row][3] = _mm512_dpbf16_ps(sums[row][3], two, w[3]);
      }
    }
  for (int row = 0; row < ROWS; ++row) {
    _mm512_storeu_ps(out + row * kColumns, _mm512_add_ps(sums[row][0], sums[row][2]));
    _mm512_storeu_ps(out + row * kColumns + 16, _mm512_add_ps(sums[row][1], sums[row][3]));
  }
}

template <class Weight>
inline void dot_block(const Rows& x, const Weight* block, int64_t depth, float* out, bool add, Ahead) {
  int64_t row = 0;
  for (; row + 4 <= x.count; row += 4) dot_rows<4>(x, row, block, depth, out, add);
  switch (x.count - row) {
    case 3: return dot_rows<3>(x, row, block, depth, out, add);
    case 2: return dot_rows<2>(x, row, block, depth, out, add);
    case 1: return dot_rows<1>(x, row, block, depth, out, add);
    default: return;
  }
}
#else
template <class Weight>
inline void dot_block(const Rows& x, const Weight* block, int64_t depth, float* out, bool add, Ahead) {
  if (!add) std::fill_n(out, x.count * kColumns, 0.0f);
  for (int64_t k = 0; k < depth; k += 2)
    for (int64_t row = 0; row < x.count; ++row) {
      const bf16* pair = x.data + row * x.stride + k / kDepth * x.step + k % kDepth;
      const float a = pair[0], b = pair[1];
      const Weight* w = block + k * kColumns;
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
    // To g++ 12 the instruction reads eight bytes; it may leave out the rest.
    asm volatile("" : : "r"(&config) : "memory");
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

inline void tile_block(const Rows& x, const bf16* block, int64_t depth, float* out, bool add, Ahead ahead) {
  constexpr int kBlockRow = kColumns * 2 * sizeof(bf16);
  constexpr int kOutRow = kColumns * sizeof(float);
  const int x_row = static_cast<int>(x.stride * sizeof(bf16));
  const bf16 *upper = x.data, *lower = x.data + 16 * x.stride;
  const bool both = x.count > 16;
  if (add) {
    _tile_loadd(0, out, kOutRow);
    _tile_loadd(1, out + 16, kOutRow);
    if (both) _tile_loadd(2, out + 16 * kColumns, kOutRow);
    if (both) _tile_loadd(3, out + 16 * kColumns + 16, kOutRow);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < depth; k += kDepth, block += kDepth * kColumns, upper += x.step, lower += x.step) {
    ahead.fetch();
    _tile_loadd(4, upper, x_row);
    _tile_loadd(6, block, kBlockRow);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, block + 32, kBlockRow);
    _tile_dpbf16ps(1, 4, 7);
    if (!both) continue;
    _tile_loadd(5, lower, x_row);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, out, kOutRow);
  _tile_stored(1, out + 16, kOutRow);
  if (!both) return;
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
  run(dot_block<bf16>);
}

// Some strips of 32 rows, or one of fewer. The last strip of all ends with the last row, so it may
// repeat rows of the one before.
struct Strips {
  int64_t rows, first, count;  // rows of all strips; those meant here

  int64_t height() const { return std::min(kRows, rows); }
  int64_t start(int64_t strip) const { return std::min((first + strip) * kRows, rows - height()); }
  // How many of a strip's rows are the strip before's.
  int64_t repeated(int64_t strip) const { return (first + strip) * kRows - start(strip); }
};

// x as a whole: row after row, or each strip apart as [K / 32, height, 32], as the tiles want it.
struct Input {
  const bf16* data;
  int64_t depth;
  bool in_tiles = false;

  Rows strip(const Strips& strips, int64_t number, int64_t k) const {
    const int64_t height = strips.height();
    if (in_tiles)
      return {data + (strips.first + number) * height * depth + k * height, kDepth, height, height * kDepth};
    return {data + strips.start(number) * depth + k, depth, height};
  }
};

// Sums of each strip of x with one block, and calls done(strip) when they are complete.
//
// Of several strips each passes a part of the block that stays in the L1 cache before any goes on
// to the next part; meanwhile the next block comes into L2.
template <class Product, class Done>
void multiply(
    const Input& x, const Strips& strips, const bf16* block, Product product, ResultBlock* sums, const Done& done) {
  constexpr int64_t kPart = 9;  // of K / 32: 18 KiB of weights
  const int64_t steps = x.depth / kDepth, parts = strips.count == 1 ? 1 : (steps + kPart - 1) / kPart;
  // A single strip reads weights as fast as memory gives them, and asks for them a little earlier.
  constexpr int64_t kNear = 8192 / sizeof(bf16);
  const char* next = reinterpret_cast<const char*>(block + (strips.count == 1 ? kNear : x.depth * kColumns));
  const int64_t lines = (kDepth + strips.count - 1) / strips.count;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t begin = steps * part / parts, count = steps * (part + 1) / parts - begin, k = begin * kDepth;
    for (int64_t strip = 0; strip < strips.count; ++strip) {
      const Ahead ahead{next + (begin * kDepth + strip * count * lines) * 64, lines};
      product(x.strip(strips, strip, k), block + k * kColumns, count * kDepth, sums[strip], part > 0, ahead);
      if (part == parts - 1) done(strip);
    }
  }
}

// Calls compute(strips, block, product, sums) for all rows and blocks; sums are SETS blocks for each strip.
//
// Threads share the blocks out, or groups of strips where there are several: a group is as many as
// stay in a core's cache while all blocks pass by.
template <int SETS, class Compute>
void for_blocks(int64_t rows, int64_t depth, int64_t blocks, const Compute& compute) {
  constexpr int64_t kGroup = 9;
  // Below this many multiplications a thread costs more than it brings.
  const int64_t work = depth * kColumns * std::min<int64_t>(rows, 8);
  const int64_t grain = std::max<int64_t>(1, (1 << 15) / work);
  const int64_t strips = (rows + kRows - 1) / kRows, groups = (strips + kGroup - 1) / kGroup;
  struct alignas(64) Sums {
    ResultBlock of[SETS][kGroup];
  };
  share(groups * blocks, grain, [&] {
    return [&, sums = std::unique_ptr<Sums>(new Sums)](int64_t begin, int64_t end) {
      with_product(std::min(rows, kRows), [&](auto product) {
        for (int64_t task = begin; task < end; ++task) {
          const int64_t group = task / blocks, first = strips * group / groups;
          const Strips own{rows, first, strips * (group + 1) / groups - first};
          compute(own, task % blocks, product, sums->of);
        }
      });
    };
  });
}

}  // namespace trnport
