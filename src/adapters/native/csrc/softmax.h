// SPDX-License-Identifier: Apache-2.0
// Softmax in one pass over scores that come in pieces (Milakov and Gimelshein, 2018).
#pragma once

#include "vectors.h"

#include <cmath>
#include <cstdint>
#include <limits>

namespace trnport {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// What one query has seen so far: the largest score, and the sum of weights relative to it.
struct Seen {
  float largest = kNothing, sum = 0.0f;

  // A sink is a score that has no value; null for none.
  template <class T>
  static Seen from(const T* sink) {
    const float score = sink ? static_cast<float>(*sink) : kNothing;
    return {score, score > kNothing ? 1.0f : 0.0f};
  }

  // Goes over to a new largest score. Returns the factor of whatever was added up before.
  float rise_to(float score) {
    const float factor = largest > kNothing ? std::exp(largest - score) : 0.0f;
    sum *= factor;
    largest = score;
    return factor;
  }

  // From weighted sums of values to their mean; zeros if there was nothing to see.
  template <class T>
  void finish(const float* sums, int64_t dim, T* out) const {
    const Floats factor(sum > 0.0f ? 1.0f / sum : 0.0f);
    for (int64_t d = 0; d < dim; d += 2 * kWidth) {
      const auto [low, high] = load_two(sums + d);
      store_two(out + d, low * factor, high * factor);
    }
  }
};

}  // namespace trnport
