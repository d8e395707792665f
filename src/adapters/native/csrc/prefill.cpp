// SPDX-License-Identifier: Apache-2.0
// Causal attention of one request's chunk over its cached prefix and itself.
//
// Keys and values are packed like weights, so that scores and sums are the products of matmul.h.
#include "matmul.h"
#include "softmax.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <memory>
#include <optional>
#include <vector>

namespace trnport {
namespace {

using at::Tensor;
using std::optional;

constexpr int64_t kSegment = 8 * kColumns;  // keys of one pass over a strip of queries

int64_t rounded_up(int64_t count) { return (count + kColumns - 1) / kColumns * kColumns; }

// Where a position's keys and values lie, those of KV head 0; null if nobody may see them.
struct Place {
  const bf16 *key = nullptr, *value = nullptr;
  int64_t head_stride = 0;
};

// Keys and values of all positions, packed for each KV head; what must not be seen is zero.
class Packed {
 public:
  Packed(const std::vector<Place>& places, int64_t kv_heads, int64_t dim)
      : count_(rounded_up(places.size())), dim_(dim), head_size_(count_ * dim),
        keys_(new bf16[kv_heads * head_size_]), values_(new bf16[kv_heads * head_size_]),
        seen_(count_), whole_(count_ / kColumns) {
    for (size_t i = 0; i < places.size(); ++i) seen_[i] = places[i].key != nullptr;
    for (int64_t i = 0; i < count_ / kColumns; ++i)
      whole_[i] = std::all_of(&seen_[i * kColumns], &seen_[i * kColumns] + kColumns, [](char c) { return c; });
    share(kv_heads * count_ / kColumns, 1, [&] {
      return [&, zeros = std::vector<bf16>(dim)](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task)
          fill(places, task % kv_heads, task / kv_heads * kColumns, zeros.data());
      };
    });
  }

  bool seen(int64_t position) const { return seen_[position]; }
  // All of the 32 positions from this one on.
  bool whole(int64_t position) const { return whole_[position / kColumns]; }
  // 32 keys as columns.
  const bf16* keys(int64_t kv_head, int64_t position) const {
    return &keys_[kv_head * head_size_ + position * dim_];
  }
  // 32 dimensions of the values from `position` on.
  const bf16* values(int64_t kv_head, int64_t dimension, int64_t position) const {
    return &values_[kv_head * head_size_ + dimension * count_ + position * kColumns];
  }

 private:
  // 32 positions.
  void fill(const std::vector<Place>& places, int64_t kv_head, int64_t first, const bf16* zeros) {
    const bf16 *keys[kColumns], *values[kColumns];
    for (int64_t n = 0; n < kColumns; ++n) {
      const bool seen = seen_[first + n];
      const int64_t offset = seen ? kv_head * places[first + n].head_stride : 0;
      keys[n] = seen ? places[first + n].key + offset : zeros;
      values[n] = seen ? places[first + n].value + offset : zeros;
    }
    bf16* k = &keys_[kv_head * head_size_ + first * dim_];
    for (int64_t d = 0; d < dim_; d += 2)
      for (int64_t n = 0; n < kColumns; ++n, k += 2) {
        k[0] = keys[n][d];
        k[1] = keys[n][d + 1];
      }
    for (int64_t d = 0; d < dim_; d += kColumns) {
      bf16* v = &values_[kv_head * head_size_ + d * count_ + first * kColumns];
      for (int64_t n = 0; n < kColumns; n += 2)
        for (int64_t i = 0; i < kColumns; ++i, v += 2) {
          v[0] = values[n][d + i];
          v[1] = values[n + 1][d + i];
        }
    }
  }

  int64_t count_, dim_, head_size_;
  std::unique_ptr<bf16[]> keys_, values_;
  std::vector<char> seen_, whole_;
};

struct Mask {
  int64_t start;  // position of the first query
  optional<int64_t> window;
  // The keys that a query may see: from `first` to, but without, `last`.
  int64_t first(int64_t query) const { return window ? std::max<int64_t>(0, start + query + 1 - *window) : 0; }
  int64_t last(int64_t query) const { return start + query + 1; }
};

// 32 queries of one head, and what they have seen so far.
class Strip {
 public:
  explicit Strip(int64_t dim) : dim_(dim), sums_(kRows * dim) {}

  template <class Product>
  void run(
      const bf16* q, int64_t stride, int64_t rows, int64_t query, int64_t kv_head, const Packed& packed,
      const Mask& mask, float scale, const bf16* sink, Product product) {
    std::fill(sums_.begin(), sums_.end(), 0.0f);
    std::fill_n(seen_, kRows, Seen::from(sink));
    const int64_t from = mask.first(query) / kColumns * kColumns, to = mask.last(query + rows - 1);
    for (int64_t key = from; key < to; key += kSegment) {
      const int64_t width = std::min(kSegment, rounded_up(to - key));
      for (int64_t n = 0; n < width; n += kColumns) {
        alignas(64) ResultBlock scores;
        product(q, stride, rows, packed.keys(kv_head, key + n), dim_, scores);
        for (int64_t row = 0; row < rows; ++row)
          std::copy_n(scores + row * kColumns, kColumns, scores_ + row * kSegment + n);
      }
      for (int64_t row = 0; row < rows; ++row) weigh(row, query + row, key, width, packed, mask, scale);
      for (int64_t d = 0; d < dim_; d += kColumns) {
        alignas(64) ResultBlock seen;
        product(weights_, kSegment, rows, packed.values(kv_head, d, key), width, seen);
        for (int64_t row = 0; row < rows; ++row)
          for (int64_t n = 0; n < kColumns; ++n) sums_[row * dim_ + d + n] += seen[row * kColumns + n];
      }
    }
  }

  void finish(int64_t rows, bf16* out, int64_t stride) const {
    for (int64_t row = 0; row < rows; ++row) seen_[row].finish(&sums_[row * dim_], dim_, out + row * stride);
  }

 private:
  // From a row's scores to its weights; what was summed before is scaled to the new largest score.
  void weigh(
      int64_t row, int64_t query, int64_t key, int64_t width, const Packed& packed, const Mask& mask, float scale) {
    float* scores = scores_ + row * kSegment;
    hide(scores, mask.first(query) - key, mask.last(query) - key, key, width, packed);
    Floats highest(kNothing);
    for (int64_t n = 0; n < width; n += kWidth) highest = at::vec::maximum(highest, Floats::loadu(scores + n));
    const float found = at::vec::vec_reduce_all<float>(
        [](Floats a, Floats b) { return at::vec::maximum(a, b); }, highest);
    const float largest = std::max(seen_[row].largest, found * scale);
    bf16* weights = weights_ + row * kSegment;
    if (largest == kNothing) {
      std::fill_n(weights, width, bf16(0.0f));
      return;
    }
    Floats sum(0.0f);
    for (int64_t n = 0; n < width; n += 2 * kWidth) {
      const auto [a, b] = load_two(scores + n);
      const auto low = (a * Floats(scale) - Floats(largest)).exp_u20();
      const auto high = (b * Floats(scale) - Floats(largest)).exp_u20();
      sum = sum + low + high;
      store_two(weights + n, low, high);
    }
    const float shrink = seen_[row].rise_to(largest);
    seen_[row].sum += sum_of(sum);
    if (shrink == 1.0f) return;
    for (int64_t d = 0; d < dim_; ++d) sums_[row * dim_ + d] *= shrink;
  }

  // Scores of keys outside of first..last, and of those that nobody may see, become -inf.
  static void hide(
      float* scores, int64_t first, int64_t last, int64_t key, int64_t width, const Packed& packed) {
    const int64_t begin = std::clamp<int64_t>(first, 0, width), end = std::clamp<int64_t>(last, begin, width);
    std::fill(scores, scores + begin, kNothing);
    std::fill(scores + end, scores + width, kNothing);
    for (int64_t n = begin; n < end; n = (n / kColumns + 1) * kColumns) {
      if (packed.whole(key + n)) continue;
      for (int64_t i = n; i < std::min(end, (n / kColumns + 1) * kColumns); ++i)
        if (!packed.seen(key + i)) scores[i] = kNothing;
    }
  }

  int64_t dim_;
  std::vector<float> sums_;
  Seen seen_[kRows];
  alignas(64) float scores_[kRows * kSegment];
  alignas(64) bf16 weights_[kRows * kSegment];
};

void attend(
    const Tensor& q, const Packed& packed, int64_t kv_heads, const Mask& mask, float scale, const bf16* sinks,
    Tensor& out) {
  const int64_t rows = q.size(0), heads = q.size(1), dim = q.size(2), stride = heads * dim;
  const int64_t strips = (rows + kRows - 1) / kRows;
  const bf16* queries = q.const_data_ptr<bf16>();
  bf16* outputs = out.mutable_data_ptr<bf16>();
  // One head's strips after another: they read the same keys.
  share(heads * strips, 1, [&] {
    return [&, strip = Strip(dim)](int64_t begin, int64_t end) mutable {
      for (int64_t task = begin; task < end; ++task) {
        const int64_t head = task / strips, row = task % strips * kRows;
        const int64_t count = std::min(kRows, rows - row), at = (row * heads + head) * dim;
        with_product(count, [&](auto product) {
          strip.run(
              queries + at, stride, count, row, head / (heads / kv_heads), packed, mask, scale,
              sinks ? sinks + head : nullptr, product);
        });
        strip.finish(count, outputs + at, stride);
      }
    };
  });
}

void add_chunk(const Tensor& k, const Tensor& v, const Tensor& valid, std::vector<Place>& places) {
  TORCH_CHECK(k.stride(2) == 1 && v.stride(2) == 1 && k.stride(1) == v.stride(1), "rows of a head are dense");
  const bool* real = valid.const_data_ptr<bool>();
  const bf16 *keys = k.const_data_ptr<bf16>(), *values = v.const_data_ptr<bf16>();
  for (int64_t row = 0; row < k.size(0); ++row)
    places.push_back(
        real[row] ? Place{keys + row * k.stride(0), values + row * v.stride(0), k.stride(1)} : Place{});
}

void add_prefix(
    const Tensor& k_cache, const Tensor& v_cache, const Tensor& table, int64_t count, std::vector<Place>& places) {
  const int64_t heads = k_cache.size(1), size = k_cache.size(2), dim = k_cache.size(3);
  const bf16 *keys = k_cache.const_data_ptr<bf16>(), *values = v_cache.const_data_ptr<bf16>();
  const int32_t* blocks = table.const_data_ptr<int32_t>();
  for (int64_t position = 0; position < count; ++position) {
    const int64_t block = blocks[position / size];
    const int64_t at = (block * heads * size + position % size) * dim;
    places.push_back(block < 0 ? Place{} : Place{keys + at, values + at, size * dim});
  }
}

Tensor attend_to(
    const std::vector<Place>& places, const Tensor& q_, const Tensor& k, int64_t start, double scale,
    optional<int64_t> window, const optional<Tensor>& sinks) {
  const Packed packed(places, k.size(1), k.size(2));
  const Tensor q = q_.contiguous();
  Tensor out = at::empty_like(q);
  const bf16* sink_logits = sinks.has_value() ? sinks->const_data_ptr<bf16>() : nullptr;
  attend(q, packed, k.size(1), {start, window}, static_cast<float>(scale), sink_logits, out);
  return out;
}

Tensor prefill_attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& valid, double scale,
    optional<int64_t> window, const optional<Tensor>& sinks) {
  std::vector<Place> places;
  add_chunk(k, v, valid.contiguous(), places);
  return attend_to(places, q, k, 0, scale, window, sinks);
}

Tensor prefill_attention_with_prior(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& valid, const Tensor& k_cache,
    const Tensor& v_cache, const Tensor& block_table, const Tensor& cached_seq_len, double scale,
    optional<int64_t> window, const optional<Tensor>& sinks) {
  const int64_t cached = cached_seq_len.const_data_ptr<int32_t>()[0];
  std::vector<Place> places;
  add_prefix(k_cache, v_cache, block_table.contiguous(), cached, places);
  add_chunk(k, v, valid.contiguous(), places);
  return attend_to(places, q, k, cached, scale, window, sinks);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trnport_native, m) {
  m.def(
      "prefill_attention(Tensor q, Tensor k, Tensor v, Tensor valid, float scale, int? sliding_window, "
      "Tensor? sinks) -> Tensor");
  m.def(
      "prefill_attention_with_prior(Tensor q, Tensor k, Tensor v, Tensor valid, Tensor k_cache, Tensor v_cache, "
      "Tensor block_table, Tensor cached_seq_len, float scale, int? sliding_window, Tensor? sinks) -> Tensor");
}

TORCH_LIBRARY_IMPL(trnport_native, CPU, m) {
  m.impl("prefill_attention", prefill_attention);
  m.impl("prefill_attention_with_prior", prefill_attention_with_prior);
}

}  // namespace trnport
