// SPDX-License-Identifier: Apache-2.0
// Weights of 8 bits and a scale for each column.
//
// A matrix [K, N] is packed as [N / 32, 128 + K * 32] bytes: for each block of 32 columns their
// scales in fp32, then whole numbers in the order of matmul.h. bf16 has all of them, so products
// are those of bf16, and sums are scaled once.
#include "arena.h"
#include "layers.h"

#include <torch/library.h>

#include <cmath>

namespace trnport {

namespace {

constexpr int64_t kScaleBytes = kColumns * sizeof(float);
constexpr float kLargest = 127.0f;

// Meanwhile what is two parts ahead comes into L2.
inline void widen(const int8_t* from, int64_t count, bf16* to) {
  for (int64_t line = 0; line < count; line += 64) {
    __builtin_prefetch(from + line + 8192, 0, 2);
#if defined(__AVX512BF16__)
    for (int64_t i = line; i < line + 64; i += 32) _mm512_storeu_si512(to + i, (__m512i)load_pairs(from + i));
#else
    for (int64_t i = line; i < line + 64; ++i) to[i] = static_cast<float>(from[i]);
#endif
  }
}

struct PackedInt8 {
  const int8_t* data;
  int64_t blocks, depth;

  explicit PackedInt8(const Tensor& t)
      : data(t.const_data_ptr<int8_t>()), blocks(t.size(0)), depth((t.size(1) - kScaleBytes) / kColumns) {}

  template <class Product, class Done>
  void multiply(
      const Input& x, const Strips& strips, int64_t block, Product product, ResultBlock* sums, const Done& done) const {
    const int8_t* start = data + block * (kScaleBytes + depth * kColumns);
    const auto* scales = reinterpret_cast<const float*>(start);
    const int8_t* weights = start + kScaleBytes;
    const auto finish = [&](int64_t strip) {
      for (int64_t row = 0; row < strips.height(); ++row)
        for (int64_t n = 0; n < kColumns; ++n) sums[strip][row * kColumns + n] *= scales[n];
      done(strip);
    };
    if (strips.height() <= 4) {  // few enough to widen in registers, once
      dot_block(x.strip(strips, 0, 0), weights, depth, sums[0], false, {});
      return finish(0);
    }
    // A part at a time is widened into the L1 cache and passed by all strips. Parts are small: those
    // of twice the size made a step of 8 rows a fifth slower.
    constexpr int64_t kPart = 4;  // of K / 32: 8 KiB once widened
    alignas(64) thread_local bf16 wide[kPart * kDepth * kColumns];
    const int64_t steps = depth / kDepth, parts = (steps + kPart - 1) / kPart;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t begin = steps * part / parts, count = steps * (part + 1) / parts - begin, k = begin * kDepth;
      const int64_t elements = count * kDepth * kColumns;
      widen(weights + k * kColumns, elements, wide);
      for (int64_t strip = 0; strip < strips.count; ++strip) {
        product(x.strip(strips, strip, k), wide, count * kDepth, sums[strip], part > 0, {});
        if (part == parts - 1) finish(strip);
      }
    }
  }
};

// One block: its columns' scales, and its weights in units of them.
void pack_block(const bf16* from, int64_t depth, int64_t columns, int8_t* to) {
  float largest[kColumns] = {}, inverse[kColumns], zeros[kColumns] = {};
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t n = 0; n < kColumns; ++n) {
      const float value = from[k * columns + n];
      largest[n] = std::max(largest[n], std::abs(value));
      zeros[n] += value * 0.0f;  // NaN where a weight is NaN or infinite, and so the column's results
    }
  auto* scales = reinterpret_cast<float*>(to);
  for (int64_t n = 0; n < kColumns; ++n) {
    scales[n] = largest[n] / kLargest + zeros[n];
    inverse[n] = scales[n] > 0 ? kLargest / largest[n] : 0.0f;
  }
  to += kScaleBytes;
  for (int64_t k = 0; k < depth; k += 2)
    for (int64_t n = 0; n < kColumns; ++n)
      for (int64_t i = 0; i < 2; ++i) {
        const float units = std::nearbyint(static_cast<float>(from[(k + i) * columns + n]) * inverse[n]);
        to[k * kColumns + 2 * n + i] = static_cast<int8_t>(std::isnan(units) ? 0.0f : std::clamp(units, -kLargest, kLargest));
      }
}

Tensor pack_int8(const Tensor& weight_) {
  const Tensor weight = weight_.contiguous();
  const int64_t depth = weight.size(0), columns = weight.size(1), bytes = kScaleBytes + depth * kColumns;
  TORCH_CHECK(depth % kDepth == 0 && columns % kColumns == 0, "pack_int8 takes multiples of 32");
  Tensor packed = empty_in_arena({columns / kColumns, bytes}, weight.options().dtype(at::kChar));
  const bf16* from = weight.const_data_ptr<bf16>();
  int8_t* to = packed.mutable_data_ptr<int8_t>();
  at::parallel_for(0, columns / kColumns, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block)
      pack_block(from + block * kColumns, depth, columns, to + block * bytes);
  });
  return packed;
}

Tensor linear_int8(const Tensor& x, const Tensor& weight, const optional<Tensor>& bias) {
  return linear_of<PackedInt8>(x, weight, bias);
}

Tensor mlp_int8(
    const Tensor& x, const Tensor& gate, const Tensor& up, const Tensor& down, const optional<Tensor>& gate_bias,
    const optional<Tensor>& up_bias, const optional<Tensor>& down_bias) {
  return mlp_of<PackedInt8>(x, gate, up, down, gate_bias, up_bias, down_bias);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trnport_native, m) {
  m.def("pack_int8(Tensor weight) -> Tensor");
  m.def("linear_int8(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor");
  m.def(
      "mlp_int8(Tensor x, Tensor gate_weight, Tensor up_weight, Tensor down_weight, Tensor? gate_bias=None, "
      "Tensor? up_bias=None, Tensor? down_bias=None) -> Tensor");
}

TORCH_LIBRARY_IMPL(trnport_native, CPU, m) {
  m.impl("pack_int8", pack_int8);
  m.impl("linear_int8", linear_int8);
  m.impl("mlp_int8", mlp_int8);
}

}  // namespace trnport
