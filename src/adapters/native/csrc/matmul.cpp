// SPDX-License-Identifier: Apache-2.0
#include "matmul.h"

#include "arena.h"
#include "vectors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>

#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace trnport {

bool has_tiles() {
#if defined(__AMX_BF16__)
  // The kernel hands out the tiles' state on request: ARCH_REQ_XCOMP_PERM of feature 18.
  static const bool permitted = syscall(SYS_arch_prctl, 0x1023, 18) == 0;
  return permitted;
#else
  return false;
#endif
}

namespace {

using at::Tensor;
using std::optional;

struct Packed {
  const bf16* data;
  int64_t blocks, depth;

  explicit Packed(const Tensor& t)
      : data(t.const_data_ptr<bf16>()), blocks(t.size(0)), depth(t.size(1) * 2) {}
  int64_t columns() const { return blocks * kColumns; }
  const bf16* block(int64_t number) const { return data + number * depth * kColumns; }
};

const bf16* data_of(const optional<Tensor>& t) {
  return t.has_value() ? t->const_data_ptr<bf16>() : nullptr;
}

static_assert(kColumns % (2 * kWidth) == 0);

// Adds the bias of a block's columns to one of its rows.
void add_bias(float* row, const bf16* bias, int64_t column) {
  if (bias == nullptr) return;
  for (int64_t n = 0; n < kColumns; ++n) row[n] += static_cast<float>(bias[column + n]);
}

void round_row(const float* row, bf16* out) {
  for (int64_t n = 0; n < kColumns; n += 2 * kWidth) {
    const auto [low, high] = load_two(row + n);
    store_two(out + n, low, high);
  }
}

void silu_times(float* gate, const float* up) {
  for (int64_t n = 0; n < kColumns; n += kWidth) {
    const auto g = Floats::loadu(gate + n);
    const auto sigmoid = reciprocal(Floats(1.0f) + exp2_of(g * Floats(-kLog2E)));
    (g * sigmoid * Floats::loadu(up + n)).store(gate + n);
  }
}

void project(const Input& x, int64_t rows, const Packed& w, const bf16* bias, bf16* out) {
  for_blocks<1>(rows, w.depth, w.blocks, [&](const Strips& strips, int64_t block, auto product, auto* sums) {
    const int64_t column = block * kColumns;
    multiply(x, strips, w.block(block), product, sums[0], [&](int64_t strip) {
      const int64_t start = strips.start(strip);
      for (int64_t row = strips.repeated(strip); row < strips.height(); ++row) {
        float* row_sums = sums[0][strip] + row * kColumns;
        add_bias(row_sums, bias, column);
        round_row(row_sums, out + (start + row) * w.columns() + column);
      }
    });
  });
}

Tensor linear(const Tensor& x_, const Tensor& weight, const optional<Tensor>& bias) {
  const Tensor x = x_.contiguous();
  const Packed w(weight);
  Tensor out = at::empty({x.size(0), w.columns()}, x.options());
  project({x.const_data_ptr<bf16>(), w.depth}, x.size(0), w, data_of(bias), out.mutable_data_ptr<bf16>());
  return out;
}

Tensor mlp(
    const Tensor& x_, const Tensor& gate_weight, const Tensor& up_weight, const Tensor& down_weight,
    const optional<Tensor>& gate_bias, const optional<Tensor>& up_bias, const optional<Tensor>& down_bias) {
  const Tensor x = x_.contiguous();
  const Packed gate(gate_weight), up(up_weight), down(down_weight);
  const int64_t rows = x.size(0), height = std::min(rows, kRows), strips_of_all = (rows + kRows - 1) / kRows;
  Tensor inner = at::empty({strips_of_all * height, down.depth}, x.options());
  Tensor out = at::empty({rows, down.columns()}, x.options());
  const Input in{x.const_data_ptr<bf16>(), gate.depth};
  bf16* mid = inner.mutable_data_ptr<bf16>();
  const bf16 *gate_b = data_of(gate_bias), *up_b = data_of(up_bias);
  for_blocks<2>(rows, 2 * gate.depth, gate.blocks, [&](const Strips& strips, int64_t block, auto product, auto* sums) {
    const int64_t column = block * kColumns;
    multiply(in, strips, gate.block(block), product, sums[0], [](int64_t) {});
    multiply(in, strips, up.block(block), product, sums[1], [&](int64_t strip) {
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

Tensor pack(const Tensor& weight_) {
  const Tensor weight = weight_.contiguous();
  const int64_t depth = weight.size(0), columns = weight.size(1);
  TORCH_CHECK(depth % kDepth == 0 && columns % kColumns == 0, "pack takes multiples of 32");
  Tensor packed = empty_in_arena({columns / kColumns, depth / 2, kColumns, 2}, weight.options());
  // Of two rows one number of twice the width is made, which compilers turn into vectors.
  const auto* from = reinterpret_cast<const uint16_t*>(weight.const_data_ptr<bf16>());
  auto* to = reinterpret_cast<uint32_t*>(packed.mutable_data_ptr<bf16>());
  at::parallel_for(0, columns / kColumns, 1, [&](int64_t begin, int64_t end) {
    // Few rows at a time: each is a page of its own, and the processor knows few pages by heart.
    for (int64_t start = 0; start < depth; start += kDepth)
      for (int64_t block = begin; block < end; ++block)
        for (int64_t k = start; k < start + kDepth; k += 2) {
          const uint16_t* even = from + k * columns + block * kColumns;
          const uint16_t* odd = even + columns;
          uint32_t* pairs = to + (block * depth + k) / 2 * kColumns;
          for (int64_t n = 0; n < kColumns; ++n)
            pairs[n] = even[n] | static_cast<uint32_t>(odd[n]) << 16;
        }
  });
  return packed;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trnport_native, m) {
  m.def("pack(Tensor weight) -> Tensor");
  m.def("linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor");
  m.def(
      "mlp(Tensor x, Tensor gate_weight, Tensor up_weight, Tensor down_weight, Tensor? gate_bias=None, "
      "Tensor? up_bias=None, Tensor? down_bias=None) -> Tensor");
}

TORCH_LIBRARY_IMPL(trnport_native, CPU, m) {
  m.impl("pack", pack);
  m.impl("linear", linear);
  m.impl("mlp", mlp);
}

}  // namespace trnport
