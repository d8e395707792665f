// SPDX-License-Identifier: Apache-2.0
#include "arena.h"
#include "layers.h"

#include <torch/library.h>

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

  template <class Product, class Done>
  void multiply(
      const Input& x, const Strips& strips, int64_t block, Product product, ResultBlock* sums, const Done& done) const {
    trnport::multiply(x, strips, data + block * depth * kColumns, product, sums, done);
  }
};

Tensor linear(const Tensor& x, const Tensor& weight, const optional<Tensor>& bias) {
  return linear_of<Packed>(x, weight, bias);
}

Tensor mlp(
    const Tensor& x, const Tensor& gate, const Tensor& up, const Tensor& down, const optional<Tensor>& gate_bias,
    const optional<Tensor>& up_bias, const optional<Tensor>& down_bias) {
  return mlp_of<Packed>(x, gate, up, down, gate_bias, up_bias, down_bias);
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
