// SPDX-License-Identifier: Apache-2.0
// Causal attention of requests' chunks, each over its own cached prefix and itself.
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
        product(Rows{q, stride, rows}, packed.keys(kv_head, key + n), dim_, scores, false, Ahead{});
        for (int64_t row = 0; row < rows; ++row)
          std::copy_n(scores + row * kColumns, kColumns, scores_ + row * kSegment + n);
      }
      for (int64_t row = 0; row < rows; ++row) weigh(row, query + row, key, width, packed, mask, scale);
      for (int64_t d = 0; d < dim_; d += kColumns) {
        alignas(64) ResultBlock seen;
        product(Rows{weights_, kSegment, rows}, packed.values(kv_head, d, key), width, seen, false, Ahead{});
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

// The tokens of one request: rows of q, and the keys that they may see.
struct Request {
  int64_t first, rows;
  Mask mask;
  Packed packed;
};

struct Task {
  const Request* request;
  int64_t head, row;
};

std::vector<Task> tasks_of(const std::vector<Request>& requests, int64_t heads) {
  std::vector<Task> tasks;
  // One head's strips after another: they read the same keys.
  for (const Request& request : requests)
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t row = 0; row < request.rows; row += kRows) tasks.push_back({&request, head, row});
  return tasks;
}

Tensor attend(
    const Tensor& q_, const std::vector<Request>& requests, int64_t kv_heads, double scale_,
    const optional<Tensor>& sink_logits) {
  const Tensor q = q_.contiguous();
  Tensor out = at::empty_like(q);
  const int64_t heads = q.size(1), dim = q.size(2), stride = heads * dim, group = heads / kv_heads;
  const float scale = static_cast<float>(scale_);
  const bf16* queries = q.const_data_ptr<bf16>();
  const bf16* sinks = sink_logits.has_value() ? sink_logits->const_data_ptr<bf16>() : nullptr;
  bf16* outputs = out.mutable_data_ptr<bf16>();
  const std::vector<Task> tasks = tasks_of(requests, heads);
  share(tasks.size(), 1, [&] {
    return [&, strip = Strip(dim)](int64_t begin, int64_t end) mutable {
      for (int64_t i = begin; i < end; ++i) {
        const auto& [request, head, row] = tasks[i];
        const int64_t count = std::min(kRows, request->rows - row);
        const int64_t at = ((request->first + row) * heads + head) * dim;
        with_product(count, [&, head = head, row = row, request = request](auto product) {
          strip.run(
              queries + at, stride, count, row, head / group, request->packed, request->mask, scale,
              sinks ? sinks + head : nullptr, product);
        });
        strip.finish(count, outputs + at, stride);
      }
    };
  });
  return out;
}

// The places of positions, one after the other.
class Places {
 public:
  const std::vector<Place>& all() const { return places_; }

  void add_rows(const Tensor& k, const Tensor& v, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) add_row(k, v, row);
  }

  void add_valid_rows(const Tensor& k, const Tensor& v, const Tensor& valid) {
    const bool* real = valid.const_data_ptr<bool>();
    for (int64_t row = 0; row < k.size(0); ++row)
      if (real[row])
        add_row(k, v, row);
      else
        places_.emplace_back();
  }

  // `table` is one row of blocks.
  void add_cached(const Tensor& k_cache, const Tensor& v_cache, const int32_t* table, int64_t count) {
    const int64_t heads = k_cache.size(1), size = k_cache.size(2), dim = k_cache.size(3);
    const bf16 *keys = k_cache.const_data_ptr<bf16>(), *values = v_cache.const_data_ptr<bf16>();
    for (int64_t position = 0; position < count; ++position) {
      const int64_t block = table[position / size];
      const int64_t at = (block * heads * size + position % size) * dim;
      places_.push_back(block < 0 ? Place{} : Place{keys + at, values + at, size * dim});
    }
  }

 private:
  void add_row(const Tensor& k, const Tensor& v, int64_t row) {
    places_.push_back(
        {k.const_data_ptr<bf16>() + row * k.stride(0), v.const_data_ptr<bf16>() + row * v.stride(0), k.stride(1)});
  }

  std::vector<Place> places_;
};

void check_rows(const Tensor& k, const Tensor& v) {
  TORCH_CHECK(k.stride(2) == 1 && v.stride(2) == 1 && k.stride(1) == v.stride(1), "rows of a head are dense");
}

Tensor attend_alone(
    const Places& places, const Tensor& q, const Tensor& k, int64_t start, double scale, optional<int64_t> window,
    const optional<Tensor>& sinks) {
  std::vector<Request> one;
  one.push_back({0, q.size(0), {start, window}, Packed(places.all(), k.size(1), k.size(2))});
  return attend(q, one, k.size(1), scale, sinks);
}

Tensor prefill_attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& valid, double scale,
    optional<int64_t> window, const optional<Tensor>& sinks) {
  check_rows(k, v);
  Places places;
  places.add_valid_rows(k, v, valid.contiguous());
  return attend_alone(places, q, k, 0, scale, window, sinks);
}

Tensor prefill_attention_with_prior(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& valid, const Tensor& k_cache,
    const Tensor& v_cache, const Tensor& block_table, const Tensor& cached_seq_len, double scale,
    optional<int64_t> window, const optional<Tensor>& sinks) {
  check_rows(k, v);
  const int64_t cached = cached_seq_len.const_data_ptr<int32_t>()[0];
  const Tensor table = block_table.contiguous();
  Places places;
  places.add_cached(k_cache, v_cache, table.const_data_ptr<int32_t>(), cached);
  places.add_valid_rows(k, v, valid.contiguous());
  return attend_alone(places, q, k, cached, scale, window, sinks);
}

// Without a cached prefix, the last four tensors before `scale` are absent.
Tensor packed_prefill_attention(
    const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& query_start_loc,
    const optional<Tensor>& k_cache, const optional<Tensor>& v_cache, const optional<Tensor>& block_table,
    const optional<Tensor>& cached_seq_len, double scale, optional<int64_t> window, const optional<Tensor>& sinks) {
  check_rows(k, v);
  const Tensor starts = query_start_loc.contiguous();
  const int32_t* start = starts.const_data_ptr<int32_t>();
  const Tensor table = block_table.has_value() ? block_table->contiguous() : Tensor();
  const Tensor cached = cached_seq_len.has_value() ? cached_seq_len->contiguous() : Tensor();
  std::vector<Request> requests;
  for (int64_t i = 0; i + 1 < starts.size(0); ++i) {
    if (start[i] == start[i + 1]) continue;
    const int64_t prior = cached.defined() ? cached.const_data_ptr<int32_t>()[i] : 0;
    Places places;
    if (prior > 0) places.add_cached(*k_cache, *v_cache, table.const_data_ptr<int32_t>() + i * table.size(1), prior);
    places.add_rows(k, v, start[i], start[i + 1]);
    requests.push_back(
        {start[i], start[i + 1] - start[i], {prior, window}, Packed(places.all(), k.size(1), k.size(2))});
  }
  return attend(q, requests, k.size(1), scale, sinks);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trnport_native, m) {
  m.def(
      "prefill_attention(Tensor q, Tensor k, Tensor v, Tensor valid, float scale, int? sliding_window, "
      "Tensor? sinks) -> Tensor");
  m.def(
      "prefill_attention_with_prior(Tensor q, Tensor k, Tensor v, Tensor valid, Tensor k_cache, Tensor v_cache, "
      "Tensor block_table, Tensor cached_seq_len, float scale, int? sliding_window, Tensor? sinks) -> Tensor");
  m.def(
      "packed_prefill_attention(Tensor q, Tensor k, Tensor v, Tensor query_start_loc, Tensor? k_cache, "
      "Tensor? v_cache, Tensor? block_table, Tensor? cached_seq_len, float scale, int? sliding_window, "
      "Tensor? sinks) -> Tensor");
}

TORCH_LIBRARY_IMPL(trnport_native, CPU, m) {
  m.impl("prefill_attention", prefill_attention);
  m.impl("prefill_attention_with_prior", prefill_attention_with_prior);
  m.impl("packed_prefill_attention", packed_prefill_attention);
}

}  // namespace trnport
