// SPDX-License-Identifier: Apache-2.0
// Memory for packed weights: one after the other on huge pages, where the system has them.
//
// A step reads every weight once. On small pages it loses a third of the memory's speed to the
// translation of addresses.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace trnport {

#if defined(MADV_HUGEPAGE)
class Chunk {
 public:
  explicit Chunk(int64_t bytes) : bytes_(bytes) {
    void* found = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(found != MAP_FAILED, "no memory for ", bytes, " bytes of packed weights");
    start_ = static_cast<char*>(found);
    madvise(start_, bytes, MADV_HUGEPAGE);  // advice: without such pages it is memory all the same
  }
  ~Chunk() { munmap(start_, bytes_); }
  Chunk(const Chunk&) = delete;
  Chunk& operator=(const Chunk&) = delete;

  // The next `bytes` of it, or null when it is full.
  char* take(int64_t bytes) {
    const int64_t at = used_;
    if (at + bytes > bytes_) return nullptr;
    used_ = (at + bytes + 63) / 64 * 64;
    return start_ + at;
  }

 private:
  char* start_;
  int64_t bytes_, used_ = 0;
};

// An uninitialised tensor; its memory is returned when all tensors of its chunk are gone.
inline at::Tensor empty_in_arena(at::IntArrayRef sizes, const at::TensorOptions& options) {
  constexpr int64_t kChunk = int64_t{64} << 20;
  static std::mutex mutex;
  static std::weak_ptr<Chunk> last;
  int64_t bytes = c10::elementSize(c10::typeMetaToScalarType(options.dtype()));
  for (const int64_t size : sizes) bytes *= size;
  const std::lock_guard lock(mutex);
  auto chunk = last.lock();
  char* start = chunk ? chunk->take(bytes) : nullptr;
  if (start == nullptr) {
    chunk = std::make_shared<Chunk>(std::max(bytes, kChunk));
    last = chunk;
    start = chunk->take(bytes);
  }
  return at::from_blob(start, sizes, [chunk](void*) {}, options);
}
#else
inline at::Tensor empty_in_arena(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::empty(sizes, options);
}
#endif

}  // namespace trnport
