// Memory that is owned here: scratch that grows, weight panels, and lazily committed regions for pages and slots.
#pragma once

#include <cstddef>
#include <cstdint>

namespace statemark {

// Anonymous memory, zero until written and not counted until touched.
class Region {
 public:
  Region() = default;
  // Asks for 2 MiB pages where that is worth it: scattered pages of keys and values were read at half the rate without.
  // Memory is then committed 2 MiB at a time; parts that are given back return when the system wants them.
  explicit Region(size_t bytes);
  ~Region();
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Gives whole operating-system pages inside [offset, offset + bytes) back; those read as zero from then on.
  void discard(size_t offset, size_t bytes);

 private:
  void* map_ = nullptr;
  size_t map_bytes_ = 0;
  uint8_t* data_ = nullptr;  // aligned inside the mapping
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
