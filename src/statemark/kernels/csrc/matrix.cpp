// Packing of weights: [rows, cols] of the checkpoint into panels of 32 output columns, bf16 in pairs along cols, int8 and
// int4 in groups (quantise.cpp).
#include <algorithm>
#include <cstring>

#include "objects.h"
#include "quantise.h"

namespace statemark {
namespace {

// 128 columns of a panel are 8 KiB (bf16): the block stays in L1 while 32 rows are scattered into it.
constexpr int64_t kBlock = 128;

float from_half(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16, mantissa = h & 0x3ffu, exponent = (h >> 10) & 0x1fu;
  uint32_t bits;
  if (exponent == 0x1f) {
    bits = sign | 0x7f800000u | mantissa << 13;
  } else if (exponent) {
    bits = sign | (exponent + 112) << 23 | mantissa << 13;
  } else if (!mantissa) {
    bits = sign;
  } else {  // subnormal: shift the leading one out of the mantissa
    uint32_t m = mantissa, e = 113;
    for (; !(m & 0x400u); m <<= 1) --e;
    bits = sign | e << 23 | (m & 0x3ffu) << 13;
  }
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

inline uint32_t float_bits(const void* values, int64_t i, Source source) {
  if (source == Source::kBfloat16) return uint32_t(static_cast<const uint16_t*>(values)[i]) << 16;
  const float f = source == Source::kFloat32 ? static_cast<const float*>(values)[i]
                                             : from_half(static_cast<const uint16_t*>(values)[i]);
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
}

inline uint32_t round_to_bf16(uint32_t b) {
  if ((b & 0x7fffffffu) > 0x7f800000u) return (b >> 16) | 0x40u;  // NaN: rounding could turn it into infinity
  return (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
}

inline bool not_finite(uint32_t float_bits) { return (float_bits & 0x7f800000u) == 0x7f800000u; }

}  // namespace

bool is_bf16(const std::string& dtype) {
  require(dtype == "bfloat16" || dtype == "float32", "dtype must be bfloat16 or float32, got '", dtype, "'");
  return dtype == "bfloat16";
}

namespace {
constexpr const char* kNames[] = {"float32", "bfloat16", "int8", "int4"};
}

Packing packing_of(const std::string& dtype) {
  for (int i = 0; i < 4; ++i)
    if (dtype == kNames[i]) return static_cast<Packing>(i);
  refuse("dtype must be bfloat16, float32, int8 or int4, got '", dtype, "'");
}

const char* name_of(Packing packing) { return kNames[static_cast<int>(packing)]; }

Matrix::Matrix(int64_t rows, int64_t cols, const std::string& dtype, const uint8_t* packed, int64_t nbytes) {
  const Packing packing = packing_of(dtype);
  require(rows >= 1 && cols >= 1, "a matrix needs at least one row and one column, got ", rows, " x ", cols);
  require(rows < (int64_t(1) << 31) && cols < (int64_t(1) << 31), "a matrix of ", rows, " x ", cols, " is too large");
  const int64_t panels = (rows + kPanel - 1) / kPanel, depth = depth_of(packing);
  const int64_t padded_cols = (cols + depth - 1) / depth * depth;
  nbytes_ = panels * (padded_cols / depth) * group_bytes(packing);
  if (packed) {
    require(nbytes == nbytes_, "a ", dtype, " matrix of ", rows, " x ", cols, " has ", nbytes_, " bytes, got ", nbytes);
    require(reinterpret_cast<uintptr_t>(packed) % alignof(uint32_t) == 0, "packed weights must be aligned to 4 bytes");
  } else {
    region_ = Region(static_cast<size_t>(nbytes_));
  }
  const uint8_t* data = packed ? packed : region_.data();
  view_ = {reinterpret_cast<const uint32_t*>(data), rows, cols, padded_cols, packing};
}

int64_t Matrix::fill(int64_t row, int64_t count, const void* values, Source source) {
  require(row >= 0 && count >= 0 && row + count <= rows(), "rows ", row, " to ", row + count, " don't fit a matrix of ",
          rows(), " rows");
  require(region_.data(), "a matrix over packed weights can't be filled");
  return is_quantised(packing()) ? fill_groups(row, count, values, source) : fill_words(row, count, values, source);
}

int64_t Matrix::fill_words(int64_t row, int64_t count, const void* values, Source source) {
  const bool bf16 = packing() == Packing::kBfloat16;
  int64_t bad = 0;
  auto* words = reinterpret_cast<uint32_t*>(region_.data());
  for (int64_t r0 = row; r0 < row + count;) {
    const int64_t panel = r0 / kPanel, r1 = std::min((panel + 1) * kPanel, row + count);
    for (int64_t c0 = 0; c0 < cols(); c0 += kBlock) {
      const int64_t c1 = std::min(c0 + kBlock, cols());
      for (int64_t r = r0; r < r1; ++r) {
        const int64_t lane = r % kPanel, from = (r - row) * cols();
        if (!bf16) {
          for (int64_t c = c0; c < c1; ++c) {
            const uint32_t bits = float_bits(values, from + c, source);
            bad += not_finite(bits);
            words[(panel * view_.padded_cols + c) * kPanel + lane] = bits;
          }
          continue;
        }
        uint32_t* to = words + (panel * view_.padded_cols + c0) / 2 * kPanel + lane;
        for (int64_t c = c0; c < c1; c += 2, to += kPanel) {
          const uint32_t low = round_to_bf16(float_bits(values, from + c, source));
          const uint32_t high = c + 1 < c1 ? round_to_bf16(float_bits(values, from + c + 1, source)) : 0u;
          bad += not_finite(low << 16) + not_finite(high << 16);
          *to = low | high << 16;
        }
      }
    }
    r0 = r1;
  }
  return bad;
}

int64_t Matrix::fill_groups(int64_t row, int64_t count, const void* values, Source source) {
  const int64_t depth = depth_of(packing()), groups = view_.padded_cols / depth, bytes = group_bytes(packing());
  int64_t bad = 0;
  LanesOfGroup lanes;
  for (int64_t r0 = row; r0 < row + count;) {
    const int64_t panel = r0 / kPanel, r1 = std::min((panel + 1) * kPanel, row + count);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t c0 = g * depth, c1 = std::min(c0 + depth, cols());
      std::memset(lanes.at, 0, sizeof lanes.at);
      for (int64_t r = r0; r < r1; ++r)
        for (int64_t c = c0; c < c1; ++c) {
          const uint32_t bits = float_bits(values, (r - row) * cols() + c, source);
          bad += not_finite(bits);
          std::memcpy(&lanes.at[c - c0][r % kPanel], &bits, sizeof bits);
        }
      const int first = static_cast<int>(r0 % kPanel), last = static_cast<int>((r1 - 1) % kPanel);
      quantise_group(packing(), lanes, first, last, region_.data() + (panel * groups + g) * bytes);
    }
    r0 = r1;
  }
  return bad;
}

void Matrix::copy_row(int64_t row, float* out) const {
  const int64_t panel = row / kPanel, lane = row % kPanel;
  if (is_quantised(packing())) {
    const int64_t depth = depth_of(packing()), groups = view_.padded_cols / depth;
    const auto* bytes = reinterpret_cast<const uint8_t*>(view_.words);
    for (int64_t g = 0; g < groups; ++g)
      values_of_group(packing(), bytes + (panel * groups + g) * group_bytes(packing()), static_cast<int>(lane),
                      std::min(depth, cols() - g * depth), out + g * depth);
    return;
  }
  if (packing() == Packing::kFloat32) {
    for (int64_t c = 0; c < cols(); ++c)
      std::memcpy(out + c, view_.words + (panel * view_.padded_cols + c) * kPanel + lane, sizeof(float));
    return;
  }
  for (int64_t c = 0; c < cols(); ++c) {
    const uint32_t word = view_.words[(panel * view_.padded_cols + c) / 2 * kPanel + lane];
    const uint32_t bits = c % 2 ? word & 0xffff0000u : word << 16;
    std::memcpy(out + c, &bits, sizeof bits);
  }
}

}  // namespace statemark
