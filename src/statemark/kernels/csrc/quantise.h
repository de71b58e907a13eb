// Rounding weights to int8 and int4, a group of columns of 32 rows at a time. Layout: quantised.h.
#pragma once

#include "kernel_args.h"
#include "quantised.h"

namespace statemark {

inline bool is_quantised(Packing packing) { return packing == Packing::kInt8 || packing == Packing::kInt4; }

// Columns that are packed together, and the bytes that they take for the 32 rows of a panel.
inline int64_t depth_of(Packing packing) {
  return packing == Packing::kInt8 ? kInt8Depth : packing == Packing::kInt4 ? kInt4Depth : 2;
}
inline int64_t group_bytes(Packing packing) {
  switch (packing) {
    case Packing::kInt8:
      return kInt8GroupBytes;
    case Packing::kInt4:
      return kInt4GroupBytes;
    default:
      return 2 * kPanel * (packing == Packing::kBfloat16 ? 2 : 4);
  }
}

struct LanesOfGroup {
  float at[kInt8Depth][kPanel];  // [column][row]; an int4 group uses the first half
};

// Writes rows first..last of a group and leaves the others as they are.
void quantise_group(Packing packing, const LanesOfGroup& w, int first, int last, uint8_t* group);

// The `count` first values of one row of a group.
void values_of_group(Packing packing, const uint8_t* group, int row, int64_t count, float* out);

}  // namespace statemark
