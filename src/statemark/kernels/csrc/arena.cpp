// Pages of keys and values and slots of recurrent state, reserved at once and committed when written.
#include <cstring>

#include "objects.h"

namespace statemark {
namespace {

size_t align64(size_t bytes) { return (bytes + 63) / 64 * 64; }

void check_index(const char* what, int64_t i, int64_t n) {
  require(i >= 0 && i < n, what, " ", i, " is out of range: the arena has ", n);
}

}  // namespace

Arena::Arena(int64_t num_pages, int64_t page_elems, const std::string& kv_dtype, int64_t num_slots, int64_t slot_floats,
             int64_t num_stamps)
    : num_pages(num_pages),
      page_elems(page_elems),
      num_slots(num_slots),
      slot_floats(slot_floats),
      num_stamps(num_stamps),
      kv_bf16(is_bf16(kv_dtype)),
      page_bytes(static_cast<size_t>(page_elems) * (kv_bf16 ? 2 : 4)),
      page_stride(align64(page_bytes)),
      slot_bytes(static_cast<size_t>(slot_floats) * sizeof(float)),
      slot_stride(align64(slot_bytes)) {
  for (const int64_t n : {num_pages, page_elems, num_slots, slot_floats, num_stamps})
    require(n >= 0 && n < (int64_t(1) << 40), "an arena's sizes can't be ", num_pages, " pages of ", page_elems, ", ",
            num_slots, " slots of ", slot_floats, " with ", num_stamps, " stamps");
  // 2^47 bytes is the user address space of x86-64; products below can't overflow once this holds.
  const double total = double(page_stride) * double(num_pages) + double(slot_stride) * double(num_slots);
  require(total < 1.4e14, "an arena of ", num_pages, " pages of ", page_bytes, " bytes and ", num_slots, " slots of ",
          slot_bytes, " bytes doesn't fit the address space");
  pages_ = Region(page_stride * static_cast<size_t>(num_pages));
  slots_ = Region(slot_stride * static_cast<size_t>(num_slots));
  stamps.assign(static_cast<size_t>(num_slots * num_stamps * 2), 0);
}

uint8_t* Arena::page(int64_t i) const {
  check_index("page", i, num_pages);
  return pages_.data() + static_cast<size_t>(i) * page_stride;
}

float* Arena::slot(int64_t i) const {
  check_index("slot", i, num_slots);
  return reinterpret_cast<float*>(slots_.data() + static_cast<size_t>(i) * slot_stride);
}

void Arena::release_page(int64_t i) {
  check_index("page", i, num_pages);
  pages_.discard(static_cast<size_t>(i) * page_stride, page_stride);
}

// The stamps go too: a released slot can't pass for a state.
void Arena::release_slot(int64_t i) {
  check_index("slot", i, num_slots);
  slots_.discard(static_cast<size_t>(i) * slot_stride, slot_stride);
  if (num_stamps) std::memset(stamp(i, 0), 0, static_cast<size_t>(num_stamps) * 2 * sizeof(uint64_t));
}

void Arena::copy_page(int64_t src, int64_t dst) {
  const uint8_t* from = page(src);
  uint8_t* to = page(dst);
  if (from != to) std::memcpy(to, from, page_bytes);
}

void Arena::copy_slot(int64_t src, int64_t dst) {
  const float* from = slot(src);
  float* to = slot(dst);
  if (from == to) return;
  std::memcpy(to, from, slot_bytes);
  if (num_stamps) std::memcpy(stamp(dst, 0), stamp(src, 0), static_cast<size_t>(num_stamps) * 2 * sizeof(uint64_t));
}

ArenaView Arena::view() const { return {pages_.data(), page_stride, kv_bf16, slots_.data(), slot_stride}; }

}  // namespace statemark
