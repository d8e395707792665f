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
#if defined(__AVX512BF16__)
  _mm512_storeu_si512(at, (__m512i)_mm512_cvtne2ps_pbh(high, low));
#else
  at::vec::convert_float_bfloat16(low, high).store(at);
#endif
}

// 2^x, and 1 / x, to more digits than bf16 has, and the larger of two numbers.
#if defined(CPU_CAPABILITY_AVX512)
inline Floats exp2_of(Floats x) {
  constexpr int kFloor = 9;  // without an exception for what it cuts off
  const Floats part = _mm512_reduce_ps(x, kFloor);
  Floats sum(0.0135557472f);
  for (const float factor : {0.0520323499f, 0.2413797379f, 0.6930321866f, 1.0000024996f})
    sum = at::vec::fmadd(sum, part, Floats(factor));
  return _mm512_scalef_ps(sum, x);
}
inline Floats reciprocal(Floats x) { return _mm512_rcp14_ps(x); }
inline Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
#else
inline Floats exp2_of(Floats x) { return (x * Floats(0.693147181f)).exp_u20(); }
inline Floats reciprocal(Floats x) { return Floats(1.0f) / x; }
inline Floats larger(Floats a, Floats b) { return at::vec::maximum(a, b); }
#endif

constexpr float kLog2E = 1.442695041f;

inline float sum_of(Floats x) {
  return at::vec::vec_reduce_all<float>([](Floats a, Floats b) { return a + b; }, x);
}

}  // namespace trnport
