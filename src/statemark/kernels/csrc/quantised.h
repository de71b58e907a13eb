// Layout of int8 and int4 weights: what packing writes and the products read.
//
// A group is `depth` consecutive columns of the 32 rows of a panel; all groups of a panel lie one after another. A group
// begins with 32 scales of 16 bits, one for each row; words of 32 bits follow, [depth / columns of a word][32].
//
// int8: a weight is scale * q, q in -127..127, the scale a bfloat16. Bytes of a word, from the lowest: columns 0, 2, 1, 3,
//       so that the even and the odd bytes are pairs of neighbouring columns.
// int4: a weight is scale * (4 * q - zero), q in 0..15, zero in 0..63: the zero point is a quarter of a step fine. The
//       scale's 16 bits: 5 of exponent, 5 of mantissa, 6 of zero. Nibbles of a word, from the lowest: columns 0, 2, 4, 6,
//       1, 3, 5, 7.
// Both scales times an integer are exact in float32.
#pragma once

#include <cstdint>

namespace statemark {

constexpr int kInt8Depth = 64;  // 8.25 bits a weight
constexpr int kInt4Depth = 32;  // 4.5 bits a weight
constexpr int kGroupHead = 64;  // bytes of 32 scales
constexpr int kInt8GroupBytes = kGroupHead + kInt8Depth * 32;
constexpr int kInt4GroupBytes = kGroupHead + kInt4Depth * 32 / 2;

// An int4 scale is 2^(e - 26) * (1 + m / 32): exponent and mantissa, shifted left by 12, on top of these bits.
constexpr uint32_t kInt4ScaleBase = uint32_t(127 - 26) << 23;
constexpr uint32_t kInt4ScaleMask = 0xffc0u, kInt4ZeroMask = 0x3fu;

}  // namespace statemark
