// SPDX-License-Identifier: Apache-2.0
// Vectors of fp32 over memory of either type.
#pragma once

#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/util/BFloat16.h>

#include <cstdint>
#include <tuple>

namespace trnport {

using Floats = at::vec::Vectorized<float>;

constexpr int64_t kWidth = Floats::size();

// Two vectors of fp32 from 2 * kWidth elements of either type.
inline std::tuple<Floats, Floats> load_two(const float* at) {
  return {Floats::loadu(at), Floats::loadu(at + kWidth)};
}
inline std::tuple<Floats, Floats> load_two(const c10::BFloat16* at) {
  return at::vec::convert_bfloat16_float(at::vec::Vectorized<c10::BFloat16>::loadu(at));
}
inline void store_two(float* at, Floats low, Floats high) {
  low.store(at);
  high.store(at + kWidth);
}
inline void store_two(c10::BFloat16* at, Floats low, Floats high) {
  at::vec::convert_float_bfloat16(low, high).store(at);
}

inline float sum_of(Floats x) {
  return at::vec::vec_reduce_all<float>([](Floats a, Floats b) { return a + b; }, x);
}

}  // namespace trnport
