// Which integers and scales stand for a group of weights. Every step is elementwise in float32 or a sum in the order of
// columns, so the result is the same on every machine, and reference_quant.py repeats it bit for bit.
#include "quantise.h"

#include <cstring>

namespace statemark {
namespace {

constexpr float kRounder = 12582912.0f;  // adding 1.5 * 2^23 and taking it away rounds to nearest even

struct Lane {
  float at[kPanel];
};

template <class Fn>
inline void each(const Fn& f) {
  for (int i = 0; i < kPanel; ++i) f(i);
}

inline float round(float x) { return (x + kRounder) - kRounder; }
inline float clamp(float x, float low, float high) { return x < low ? low : x > high ? high : x; }
inline float magnitude(float x) { return x < 0.0f ? -x : x; }

inline uint32_t bits_of(float x) {
  uint32_t b;
  std::memcpy(&b, &x, sizeof b);
  return b;
}
inline float float_of(uint32_t b) {
  float x;
  std::memcpy(&x, &b, sizeof x);
  return x;
}

uint16_t* scales_of(uint8_t* group) { return reinterpret_cast<uint16_t*>(group); }
uint8_t* word_of(uint8_t* group, int word, int row) { return group + kGroupHead + (word * kPanel + row) * 4; }

// Which byte or nibble of a word holds column c of it.
inline int byte_of(int c) { return (c & 1) * 2 + (c >> 1); }
inline int nibble_of(int c) { return (c & 1) * 4 + (c >> 1); }

void quantise_int8(const LanesOfGroup& w, int first, int last, uint8_t* group) {
  Lane top{}, scale, inverse;
  for (const auto& row : w.at) each([&](int i) { top.at[i] = magnitude(row[i]) > top.at[i] ? magnitude(row[i]) : top.at[i]; });
  each([&](int i) {
    const uint32_t b = bits_of(top.at[i] / 127.0f);
    scale.at[i] = float_of((b + 0x7fffu + ((b >> 16) & 1u)) & 0xffff0000u);
    // Below 2^-100 everything is zero: the inverse would overflow.
    inverse.at[i] = top.at[i] > 7.888609e-31f ? 1.0f / scale.at[i] : 0.0f;
  });
  for (int i = first; i <= last; ++i) scales_of(group)[i] = static_cast<uint16_t>(bits_of(scale.at[i]) >> 16);
  for (int c = 0; c < kInt8Depth; ++c)
    for (int i = first; i <= last; ++i) {
      const float q = clamp(round(w.at[c][i] * inverse.at[i]), -127.0f, 127.0f);
      word_of(group, c / 4, i)[byte_of(c % 4)] = static_cast<uint8_t>(static_cast<int>(q));
    }
}

// A candidate for a group of int4: w is about scale * (4 * q - zero).
struct Fit {
  Lane scale, zero, error;
};

// The nearest scale that its 10 bits can say.
inline float sayable(float scale) {
  const float held = clamp(scale, 0x1p-26f, 63.0f);
  return float_of((bits_of(held) + (1u << 17)) & ~((1u << 18) - 1));
}

inline float q_of(float w, float quarter_inverse, float zero) {
  return clamp(round(w * quarter_inverse + zero * 0.25f), 0.0f, 15.0f);
}

// Fills in the error of a fit, and what the refinement needs: sums of 4q, of w times 4q and of 4q squared.
struct Sums {
  Lane q, wq, qq, w;
};
void measure(const LanesOfGroup& w, Fit& fit, Sums& sums) {
  Lane inverse;
  each([&](int i) { inverse.at[i] = 0.25f / fit.scale.at[i]; });
  fit.error = Lane{};
  sums = Sums{};
  for (int c = 0; c < kInt4Depth; ++c)
    each([&](int i) {
      const float x = w.at[c][i], q = 4.0f * q_of(x, inverse.at[i], fit.zero.at[i]);
      const float miss = x - fit.scale.at[i] * (q - fit.zero.at[i]);
      fit.error.at[i] = fit.error.at[i] + miss * miss;
      sums.q.at[i] = sums.q.at[i] + q;
      sums.w.at[i] = sums.w.at[i] + x;
      sums.wq.at[i] = sums.wq.at[i] + x * q;
      sums.qq.at[i] = sums.qq.at[i] + q * q;
    });
}

// Scale and zero that suit the integers of a fit best: first the zero, then the scale by least squares, then the zero.
void refine(const Sums& s, Fit& fit) {
  constexpr float kCount = kInt4Depth;
  each([&](int i) {
    const auto zero_for = [&](float scale) {
      return clamp(round((s.q.at[i] - s.w.at[i] / scale) * (1.0f / kCount)), 0.0f, 63.0f);
    };
    const float zero = zero_for(fit.scale.at[i]);
    const float above = s.wq.at[i] - zero * s.w.at[i];
    const float below = (s.qq.at[i] - 2.0f * zero * s.q.at[i]) + kCount * zero * zero;
    const float scale = above > 0.0f && below > 0.0f ? sayable(above / below) : fit.scale.at[i];
    fit.scale.at[i] = scale;
    fit.zero.at[i] = zero_for(scale);
  });
}

void keep_better(const Fit& fit, Fit& best) {
  each([&](int i) {
    const bool better = fit.error.at[i] < best.error.at[i];
    best.scale.at[i] = better ? fit.scale.at[i] : best.scale.at[i];
    best.zero.at[i] = better ? fit.zero.at[i] : best.zero.at[i];
    best.error.at[i] = better ? fit.error.at[i] : best.error.at[i];
  });
}

void quantise_int4(const LanesOfGroup& w, int first, int last, uint8_t* group) {
  Lane low{}, high{};
  for (int c = 0; c < kInt4Depth; ++c)
    each([&](int i) {
      low.at[i] = w.at[c][i] < low.at[i] ? w.at[c][i] : low.at[i];
      high.at[i] = w.at[c][i] > high.at[i] ? w.at[c][i] : high.at[i];
    });
  Fit best;
  each([&](int i) { best.scale.at[i] = 1.0f, best.zero.at[i] = 32.0f, best.error.at[i] = __builtin_inff(); });
  // From a range that is cut by a sixth to one that is not cut at all; each is refined once.
  for (int n = 26; n <= 32; ++n) {
    Fit fit;
    Sums sums;
    each([&](int i) {
      fit.scale.at[i] = sayable((high.at[i] - low.at[i]) * (0.5f / static_cast<float>(n)));
      fit.zero.at[i] = clamp(round(30.0f - 0.5f * (high.at[i] + low.at[i]) / fit.scale.at[i]), 0.0f, 63.0f);
    });
    measure(w, fit, sums);
    keep_better(fit, best);
    refine(sums, fit);
    measure(w, fit, sums);
    keep_better(fit, best);
  }
  // The zero point of a group of zeros must be a whole step, or they would not stay zero.
  each([&](int i) { best.zero.at[i] = low.at[i] < high.at[i] ? best.zero.at[i] : 32.0f; });
  for (int i = first; i <= last; ++i) {
    const uint32_t code = ((bits_of(best.scale.at[i]) - kInt4ScaleBase) >> 12) & kInt4ScaleMask;
    scales_of(group)[i] = static_cast<uint16_t>(code | static_cast<uint32_t>(best.zero.at[i]));
    const float inverse = 0.25f / best.scale.at[i];
    for (int word = 0; word < kInt4Depth / 8; ++word) {
      uint32_t packed = 0;
      for (int c = 0; c < 8; ++c)
        packed |= static_cast<uint32_t>(q_of(w.at[word * 8 + c][i], inverse, best.zero.at[i])) << (4 * nibble_of(c));
      std::memcpy(word_of(group, word, i), &packed, sizeof packed);
    }
  }
}

}  // namespace

// Compiled twice where that is possible: AVX2 is three times as fast, and gives the same, as no operation is fused.
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__)
__attribute__((target_clones("avx2", "default"), flatten))
#endif
void quantise_group(Packing packing, const LanesOfGroup& w, int first, int last, uint8_t* group) {
  packing == Packing::kInt8 ? quantise_int8(w, first, last, group) : quantise_int4(w, first, last, group);
}

void values_of_group(Packing packing, const uint8_t* group, int row, int64_t count, float* out) {
  const uint32_t code = reinterpret_cast<const uint16_t*>(group)[row];
  const bool eight = packing == Packing::kInt8;
  const float scale = float_of(eight ? code << 16 : ((code & kInt4ScaleMask) << 12) + kInt4ScaleBase);
  for (int64_t c = 0; c < count; ++c) {
    const int per_word = eight ? 4 : 8, at = static_cast<int>(c) % per_word;
    uint32_t word;
    std::memcpy(&word, group + kGroupHead + (c / per_word * kPanel + row) * 4, sizeof word);
    const int q = eight ? static_cast<int8_t>(word >> (8 * byte_of(at)))
                        : 4 * static_cast<int>(word >> (4 * nibble_of(at)) & 15u) - static_cast<int>(code & kInt4ZeroMask);
    out[c] = scale * static_cast<float>(q);
  }
}

}  // namespace statemark
