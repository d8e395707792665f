// SPDX-License-Identifier: Apache-2.0
// Causal attention of requests' chunks, each over its own cached prefix and itself.
//
// Keys and values are packed like weights, so that scores and sums are the products of matmul.h.
#include "matmul.h"
#include "softmax.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <cstring>
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
        keys_(new Line[kv_heads * head_size_ / kColumns]), values_(new Line[kv_heads * head_size_ / kColumns]),
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

  // Whether each position from this one on may be seen.
  const char* seen(int64_t position) const { return &seen_[position]; }
  // All of the 32 positions from this one on.
  bool whole(int64_t position) const { return whole_[position / kColumns]; }
  // 32 keys as columns.
  const bf16* keys(int64_t kv_head, int64_t position) const {
    return keys_[0].at + kv_head * head_size_ + position * dim_;
  }
  // 32 dimensions of the values from `position` on.
  const bf16* values(int64_t kv_head, int64_t dimension, int64_t position) const {
    return values_[0].at + kv_head * head_size_ + dimension * count_ + position * kColumns;
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
    bf16* k = keys_[0].at + kv_head * head_size_ + first * dim_;
    for (int64_t d = 0; d < dim_; d += 2)
      for (int64_t n = 0; n < kColumns; ++n, k += 2) std::memcpy(k, keys[n] + d, 2 * sizeof(bf16));
    for (int64_t d = 0; d < dim_; d += kColumns) {
      bf16* v = values_[0].at + kv_head * head_size_ + d * count_ + first * kColumns;
      for (int64_t n = 0; n < kColumns; n += 2, v += 2 * kColumns) interleave(values[n] + d, values[n + 1] + d, v);
    }
  }

  static void interleave(const bf16* __restrict even, const bf16* __restrict odd, bf16* __restrict to) {
    for (int64_t i = 0; i < kColumns; ++i) {
      to[2 * i] = even[i];
      to[2 * i + 1] = odd[i];
    }
  }

  struct alignas(64) Line {
    bf16 at[kColumns];
  };
  int64_t count_, dim_, head_size_;
  std::unique_ptr<Line[]> keys_, values_;
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
  explicit Strip(int64_t dim) : dim_(dim), sums_(dim / kColumns) {}

  template <class Product>
  void run(
      const bf16* q, int64_t stride, int64_t rows, int64_t query, int64_t kv_head, const Packed& packed,
      const Mask& mask, float scale, const bf16* sink, Product product) {
    for (Block& block : sums_) std::fill_n(block.at, kRows * kColumns, 0.0f);
    std::fill_n(weight_, kRows, Floats(0.0f));
    std::fill_n(seen_, kRows, Seen::from(sink));
    const int64_t from = mask.first(query) / kColumns * kColumns, to = mask.last(query + rows - 1);
    for (int64_t key = from; key < to; key += kSegment) {
      const int64_t width = std::min(kSegment, rounded_up(to - key));
      for (int64_t n = 0; n < width; n += kColumns)
        product(Rows{q, stride, rows}, packed.keys(kv_head, key + n), dim_, scores_[n / kColumns].at, false, Ahead{});
      if (!all_seen(query, rows, key, width, packed, mask))
        for (int64_t row = 0; row < rows; ++row) hide(row, query + row, key, width, packed, mask);
      for (int64_t row = 0; row < rows; ++row) weigh(row, width, scale);
      const Rows weights{weights_, kColumns, rows, kRows * kColumns};
      for (int64_t d = 0; d < dim_; d += kColumns)
        product(weights, packed.values(kv_head, d, key), width, sums_[d / kColumns].at, true, Ahead{});
    }
  }

  void finish(int64_t rows, bf16* out, int64_t stride) {
    for (int64_t row = 0; row < rows; ++row) {
      seen_[row].sum += sum_of(weight_[row]);
      for (int64_t d = 0; d < dim_; d += kColumns)
        seen_[row].finish(sums_[d / kColumns].at + row * kColumns, kColumns, out + row * stride + d);
    }
  }

 private:
  static bool all_seen(
      int64_t query, int64_t rows, int64_t key, int64_t width, const Packed& packed, const Mask& mask) {
    if (mask.first(query + rows - 1) > key || key + width > mask.last(query)) return false;
    for (int64_t n = 0; n < width; n += kColumns)
      if (!packed.whole(key + n)) return false;
    return true;
  }

  // Scores of keys that the mask hides, and of those that nobody may see, become -inf.
  void hide(int64_t row, int64_t query, int64_t key, int64_t width, const Packed& packed, const Mask& mask) {
    const int64_t first = mask.first(query) - key, last = mask.last(query) - key;
    for (int64_t n = 0; n < width; n += kColumns) {
      float* scores = scores_[n / kColumns].at + row * kColumns;
      if (first <= n && n + kColumns <= last && packed.whole(key + n)) continue;
      const char* seen = packed.seen(key + n);
      for (int i = 0; i < kColumns; ++i)
        scores[i] = (n + i >= first) & (n + i < last) & (seen[i] != 0) ? scores[i] : kNothing;
    }
  }

  // From a row's scores to its weights; what was summed before is scaled to the new largest score.
  void weigh(int64_t row, int64_t width, float scale) {
    const int64_t blocks = width / kColumns;
    Floats highest(kNothing);
    for (int64_t block = 0; block < blocks; ++block)
      for (int64_t n = 0; n < kColumns; n += kWidth)
        highest = larger(highest, Floats::loadu(scores_[block].at + row * kColumns + n));
    const float found = at::vec::vec_reduce_all<float>([](Floats a, Floats b) { return larger(a, b); }, highest);
    const float largest = std::max(seen_[row].largest, found * scale);
    bf16* weights = weights_ + row * kColumns;
    if (largest == kNothing) {
      for (int64_t block = 0; block < blocks; ++block)
        std::fill_n(weights + block * kRows * kColumns, kColumns, bf16(0.0f));
      return;
    }
    if (largest > seen_[row].largest) shrink(row, seen_[row].rise_to(largest));
    const Floats factor(scale * kLog2E), offset(-largest * kLog2E);
    Floats sum = weight_[row];
    for (int64_t block = 0; block < blocks; ++block)
      for (int64_t n = 0; n < kColumns; n += 2 * kWidth) {
        const auto [a, b] = load_two(scores_[block].at + row * kColumns + n);
        const auto low = exp2_of(at::vec::fmadd(a, factor, offset));
        const auto high = exp2_of(at::vec::fmadd(b, factor, offset));
        sum = sum + low + high;
        store_two(weights + block * kRows * kColumns + n, low, high);
      }
    weight_[row] = sum;
  }

  void shrink(int64_t row, float by) {
    weight_[row] = weight_[row] * Floats(by);
    for (Block& block : sums_)
      for (int64_t n = 0; n < kColumns; n += kWidth) {
        float* sums = block.at + row * kColumns + n;
        (Floats::loadu(sums) * Floats(by)).store(sums);
      }
  }

  struct alignas(64) Block {
    ResultBlock at;
  };
  int64_t dim_;
  std::vector<Block> sums_;  // of values, 32 dimensions each
  Seen seen_[kRows];
  Floats weight_[kRows];  // sums of weights, apart from that of the sink
  Block scores_[kSegment / kColumns];
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
