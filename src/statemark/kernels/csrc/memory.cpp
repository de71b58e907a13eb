#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <utility>

namespace statemark {
namespace {
constexpr size_t kHuge = size_t(2) << 20;
}

Region::Region(size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  const bool huge = bytes >= 2 * kHuge;
  map_bytes_ = huge ? bytes + kHuge : bytes;
  map_ = mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map_ == MAP_FAILED) {
    map_ = nullptr;
    throw std::bad_alloc();
  }
  const auto address = reinterpret_cast<uintptr_t>(map_);
  data_ = reinterpret_cast<uint8_t*>(huge ? (address + kHuge - 1) / kHuge * kHuge : address);
#ifdef MADV_HUGEPAGE
  if (huge) madvise(data_, bytes, MADV_HUGEPAGE);  // a wish; nothing depends on it
#endif
}

Region::~Region() {
  if (map_) munmap(map_, map_bytes_);
}

Region::Region(Region&& other) noexcept
    : map_(std::exchange(other.map_, nullptr)),
      map_bytes_(std::exchange(other.map_bytes_, 0)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Region& Region::operator=(Region&& other) noexcept {
  std::swap(map_, other.map_);
  std::swap(map_bytes_, other.map_bytes_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void Region::discard(size_t offset, size_t bytes) {
  static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t begin = (offset + page - 1) / page * page, end = (offset + bytes) / page * page;
  if (begin < end) madvise(data_ + begin, end - begin, MADV_DONTNEED);
}

void Scratch::grow(size_t bytes) {
  // A quarter more than asked, so that a slowly growing batch doesn't map anew each time.
  const size_t rounded = (bytes + bytes / 4 + kHuge - 1) / kHuge * kHuge;
  region_ = Region();
  region_ = Region(rounded);
}

}  // namespace statemark
