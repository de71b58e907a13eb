// Memory that is owned here: scratch that grows, weight panels, and lazily committed regions for pages and slots.
#pragma once

#include <cstddef>
#include <cstdint>

namespace statemark {

// Anonymous memory, zero until written and not counted until touched.
class Region {
 public:
  Region() = default;
  // `huge`: ask for 2 MiB pages; for memory that is used whole (weights, scratch), as it keeps what was touched.
  Region(size_t bytes, bool huge);
  ~Region();
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Gives whole operating-system pages inside [offset, offset + bytes) back; those read as zero from then on.
  void discard(size_t offset, size_t bytes);

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

// Grows and never shrinks; contents are lost when it grows.
class Scratch {
 public:
  float* floats(size_t count) {
    if (count * sizeof(float) > region_.bytes()) grow(count * sizeof(float));
    return reinterpret_cast<float*>(region_.data());
  }

 private:
  void grow(size_t bytes);
  Region region_;
};

}  // namespace statemark
