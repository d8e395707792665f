// SPDX-License-Identifier: Apache-2.0
// Attention over a paged cache that reads each block where it lies, up to the row's own length.
#include "parallel.h"
#include "softmax.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

namespace trnport {
namespace {

using at::Tensor;
using std::optional;

inline void prefetch(const void* start, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(start) + at);
}

// HEADS query heads of one KV head, and what they have seen so far. All of them share each key and value that is read.
template <int HEADS, class T>
class Group {
 public:
  Group(int64_t dim, int64_t block_size)
      : dim_(dim), size_(block_size), q_(HEADS * dim), out_(HEADS * dim), scores_(HEADS * block_size) {}

  void start(const T* q, float scale, const T* sinks) {
    for (int64_t i = 0; i < HEADS * dim_; ++i) q_[i] = static_cast<float>(q[i]) * scale;
    std::fill(out_.begin(), out_.end(), 0.0f);
    for (int head = 0; head < HEADS; ++head) seen_[head] = Seen::from(sinks ? sinks + head : nullptr);
  }

  // Positions of one block: `count` rows of `k` and `v`.
  void read(const T* k, const T* v, int64_t count) {
    score(k, count);
    float shrink[HEADS];
    for (int head = 0; head < HEADS; ++head) shrink[head] = weigh(head, count);
    add(v, count, shrink);
  }

  void finish(T* out) const {
    for (int head = 0; head < HEADS; ++head) seen_[head].finish(&out_[head * dim_], dim_, out + head * dim_);
  }

 private:
  void score(const T* k, int64_t count) {
    const float* q = q_.data();
    float* scores = scores_.data();
    for (int64_t at = 0; at < count; ++at, k += dim_) {
      Floats low[HEADS], high[HEADS];
      for (int head = 0; head < HEADS; ++head) low[head] = high[head] = Floats(0.0f);
      for (int64_t d = 0; d < dim_; d += 2 * kWidth) {
        const auto [first, second] = load_two(k + d);
        for (int head = 0; head < HEADS; ++head) {
          const float* own = q + head * dim_ + d;
          low[head] = at::vec::fmadd(Floats::loadu(own), first, low[head]);
          high[head] = at::vec::fmadd(Floats::loadu(own + kWidth), second, high[head]);
        }
      }
      for (int head = 0; head < HEADS; ++head)
        scores[head * size_ + at] = sum_of(low[head] + high[head]);
    }
  }

  // From scores to weights. Returns the factor of what was added up before, since the largest
  // score may be a new one.
  float weigh(int head, int64_t count) {
    float* scores = &scores_[head * size_];
    Seen& seen = seen_[head];
    const float largest = std::max(seen.largest, *std::max_element(scores, scores + count));
    const float shrink = seen.rise_to(largest);
    int64_t at = 0;
    float sum = 0.0f;
    Floats sums(0.0f);
    for (; at + kWidth <= count; at += kWidth) {
      const auto weights = (Floats::loadu(scores + at) - Floats(largest)).exp_u20();
      weights.store(scores + at);
      sums = sums + weights;
    }
    for (; at < count; ++at) sum += scores[at] = std::exp(scores[at] - largest);
    seen.sum += sum + sum_of(sums);
    return shrink;
  }

  void add(const T* v, int64_t count, const float* shrink) {
    const float* weights = scores_.data();
    for (int64_t d = 0; d < dim_; d += 2 * kWidth) {
      Floats low[HEADS], high[HEADS];
      for (int head = 0; head < HEADS; ++head) {
        const auto [first, second] = load_two(&out_[head * dim_ + d]);
        low[head] = first * Floats(shrink[head]);
        high[head] = second * Floats(shrink[head]);
      }
      for (int64_t at = 0; at < count; ++at) {
        const auto [first, second] = load_two(v + at * dim_ + d);
        for (int head = 0; head < HEADS; ++head) {
          const Floats weight(weights[head * size_ + at]);
          low[head] = at::vec::fmadd(weight, first, low[head]);
          high[head] = at::vec::fmadd(weight, second, high[head]);
        }
      }
      for (int head = 0; head < HEADS; ++head) store_two(&out_[head * dim_ + d], low[head], high[head]);
    }
  }

  int64_t dim_, size_;
  std::vector<float> q_, out_, scores_;
  Seen seen_[HEADS];
};

// One step's queries, caches and tables.
template <class T>
struct Step {
  const T *queries, *keys, *values, *sinks;
  const int32_t *blocks, *last;
  T* outputs;
  int64_t rows, heads, kv_heads, dim, size, columns;
  float scale;
  optional<int64_t> window;

  const T* at(const T* cache, int64_t block, int64_t kv_head, int64_t offset) const {
    return cache + ((block * kv_heads + kv_head) * size + offset) * dim;
  }

  // Heads `head` to `head + HEADS` of a row, which read one KV head.
  template <int HEADS>
  void attend(Group<HEADS, T>& group, int64_t row, int64_t head) const {
    const int64_t kv_head = head / (heads / kv_heads), offset = (row * heads + head) * dim;
    const int64_t stop = std::min<int64_t>(last[row] + 1, columns * size);
    const int64_t start = window ? std::max<int64_t>(0, last[row] + 1 - *window) : 0;
    const int32_t* table = blocks + row * columns;
    group.start(queries + offset, scale, sinks ? sinks + head : nullptr);
    for (int64_t column = start / size; column * size < stop; ++column) {
      if (table[column] < 0) continue;
      const int64_t from = std::max<int64_t>(start - column * size, 0);
      const int64_t count = std::min(stop - column * size, size) - from;
      // Blocks lie anywhere: without this, each begins with a wait for the memory.
      if ((column + 1) * size < stop && table[column + 1] >= 0) {
        const int64_t bytes = std::min(stop - (column + 1) * size, size) * dim * sizeof(T);
        prefetch(at(keys, table[column + 1], kv_head, 0), bytes);
        prefetch(at(values, table[column + 1], kv_head, 0), bytes);
      }
      group.read(at(keys, table[column], kv_head, from), at(values, table[column], kv_head, from), count);
    }
    group.finish(outputs + offset);
  }

  template <int HEADS>
  void run() const {
    share(rows * heads / HEADS, 1, [&] {
      return [this, group = Group<HEADS, T>(dim, size)](int64_t begin, int64_t end) mutable {
        for (int64_t task = begin; task < end; ++task)
          attend(group, task * HEADS / heads, task * HEADS % heads);
      };
    });
  }

  // As many heads at a time as a register file holds and as share a KV head.
  void run_all() const {
    const int64_t sharing = heads / kv_heads;
    if (sharing % 4 == 0) return run<4>();
    if (sharing % 3 == 0) return run<3>();
    if (sharing % 2 == 0) return run<2>();
    run<1>();
  }
};

Tensor decode_attention(
    const Tensor& q_, const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_table,
    const Tensor& positions, double scale, optional<int64_t> window, const optional<Tensor>& sinks) {
  const Tensor q = q_.contiguous(), table = block_table.contiguous(), last = positions.contiguous();
  Tensor out = at::empty_like(q);
  const auto run = [&]<class T>(T) {
    const Step<T> step{
        .queries = q.const_data_ptr<T>(),
        .keys = k_cache.const_data_ptr<T>(),
        .values = v_cache.const_data_ptr<T>(),
        .sinks = sinks.has_value() ? sinks->const_data_ptr<T>() : nullptr,
        .blocks = table.const_data_ptr<int32_t>(),
        .last = last.const_data_ptr<int32_t>(),
        .outputs = out.mutable_data_ptr<T>(),
        .rows = q.size(0),
        .heads = q.size(1),
        .kv_heads = k_cache.size(1),
        .dim = q.size(2),
        .size = k_cache.size(2),
        .columns = table.size(1),
        .scale = static_cast<float>(scale),
        .window = window,
    };
    step.run_all();
  };
  if (q.scalar_type() == at::kFloat)
    run(float());
  else
    run(c10::BFloat16());
  return out;
}

void copy_rows(const Tensor& rows, Tensor& cache, const int64_t* slots) {
  TORCH_CHECK(rows.stride(2) == 1 && cache.is_contiguous(), "rows of a head and caches are dense");
  const int64_t heads = rows.size(1), size = cache.size(2), width = rows.element_size();
  const int64_t bytes = rows.size(2) * width, row_step = rows.stride(0) * width;
  const int64_t head_step = rows.stride(1) * width;
  const auto* from = static_cast<const char*>(rows.const_data_ptr());
  auto* to = static_cast<char*>(cache.mutable_data_ptr());
  share(rows.size(0), 64, [&] {
    return [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        if (slots[row] < 0) continue;
        const int64_t block = slots[row] / size, offset = slots[row] % size;
        for (int64_t head = 0; head < heads; ++head)
          std::memcpy(
              to + ((block * heads + head) * size + offset) * bytes,
              from + row * row_step + head * head_step, bytes);
      }
    };
  });
}

void kv_write(const Tensor& k, const Tensor& v, Tensor k_cache, Tensor v_cache, const Tensor& slot_mapping) {
  const Tensor slots = slot_mapping.contiguous();
  copy_rows(k, k_cache, slots.const_data_ptr<int64_t>());
  copy_rows(v, v_cache, slots.const_data_ptr<int64_t>());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(trnport_native, m) {
  m.def(
      "decode_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor positions, "
      "float scale, int? sliding_window, Tensor? sinks) -> Tensor");
  m.def("kv_write(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slot_mapping) -> ()");
}

TORCH_LIBRARY_IMPL(trnport_native, CPU, m) {
  m.impl("decode_attention", decode_attention);
  m.impl("kv_write", kv_write);
}

}  // namespace trnport
