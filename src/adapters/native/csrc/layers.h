// SPDX-License-Identifier: Apache-2.0
// A linear layer and an MLP over packed weights of any kind.
//
// A kind has the fields `blocks` and `depth`, is made of a tensor, and multiplies as matmul.h does.
#pragma once

#include "matmul.h"
#include "vectors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <optional>

namespace trnport {

using at::Tensor;
using std::optional;

inline const bf16* data_of(const optional<Tensor>& t) {
  return t.has_value() ? t->const_data_ptr<bf16>() : nullptr;
}

static_assert(kColumns % (2 * kWidth) == 0);

// Adds the bias of a block's columns to one of its rows.
inline void add_bias(float* row, const bf16* bias, int64_t column) {
  if (bias == nullptr) return;
  for (int64_t n = 0; n < kColumns; ++n) row[n] += static_cast<float>(bias[column + n]);
}

inline void round_row(const float* row, bf16* out) {
  for (int64_t n = 0; n < kColumns; n += 2 * kWidth) {
    const auto [low, high] = load_two(row + n);
    store_two(out + n, low, high);
  }
}

inline void silu_times(float* gate, const float* up) {
  for (int64_t n = 0; n < kColumns; n += kWidth) {
    const auto g = Floats::loadu(gate + n);
    const auto sigmoid = reciprocal(Floats(1.0f) + exp2_of(g * Floats(-kLog2E)));
    (g * sigmoid * Floats::loadu(up + n)).store(gate + n);
  }
}

template <class Packed>
void project(const Input& x, int64_t rows, const Packed& w, const bf16* bias, bf16* out) {
  const int64_t columns = w.blocks * kColumns;
  for_blocks<1>(rows, w.depth, w.blocks, [&](const Strips& strips, int64_t block, auto product, auto* sums) {
    const int64_t column = block * kColumns;
    w.multiply(x, strips, block, product, sums[0], [&](int64_t strip) {
      const int64_t start = strips.start(strip);
      for (int64_t row = strips.repeated(strip); row < strips.height(); ++row) {
        float* row_sums = sums[0][strip] + row * kColumns;
        add_bias(row_sums, bias, column);
        round_row(row_sums, out + (start + row) * columns + column);
      }
    });
  });
}

template <class Packed>
Tensor linear_of(const Tensor& x_, const Tensor& weight, const optional<Tensor>& bias) {
  const Tensor x = x_.contiguous();
  const Packed w(weight);
  Tensor out = at::empty({x.size(0), w.blocks * kColumns}, x.options());
  project({x.const_data_ptr<bf16>(), w.depth}, x.size(0), w, data_of(bias), out.mutable_data_ptr<bf16>());
  return out;
}

template <class Packed>
Tensor mlp_of(
    const Tensor& x_, const Tensor& gate_weight, const Tensor& up_weight, const Tensor& down_weight,
    const optional<Tensor>& gate_bias, const optional<Tensor>& up_bias, const optional<Tensor>& down_bias) {
  const Tensor x = x_.contiguous();
  const Packed gate(gate_weight), up(up_weight), down(down_weight);
  const int64_t rows = x.size(0), height = std::min(rows, kRows), strips_of_all = (rows + kRows - 1) / kRows;
  Tensor inner = at::empty({strips_of_all * height, down.depth}, x.options());
  Tensor out = at::empty({rows, down.blocks * kColumns}, x.options());
  const Input in{x.const_data_ptr<bf16>(), gate.depth};
  bf16* mid = inner.mutable_data_ptr<bf16>();
  const bf16 *gate_b = data_of(gate_bias), *up_b = data_of(up_bias);
  for_blocks<2>(rows, 2 * gate.depth, gate.blocks, [&](const Strips& strips, int64_t block, auto product, auto* sums) {
    const int64_t column = block * kColumns;
    gate.multiply(in, strips, block, product, sums[0], [](int64_t) {});
    up.multiply(in, strips, block, product, sums[1], [&](int64_t strip) {
      bf16* to = mid + (strips.first + strip) * height * down.depth + column * height;
      for (int64_t row = 0; row < height; ++row) {
        float* g = sums[0][strip] + row * kColumns;
        float* u = sums[1][strip] + row * kColumns;
        add_bias(g, gate_b, column);
        add_bias(u, up_b, column);
        silu_times(g, u);
        round_row(g, to + row * kColumns);
      }
    });
  });
  project({mid, down.depth, true}, rows, down, data_of(down_bias), out.mutable_data_ptr<bf16>());
  return out;
}

}  // namespace trnport
