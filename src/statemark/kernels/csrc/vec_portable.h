// The vector of the portable target: 4 floats in a GNU vector type, which GCC and Clang lower to whatever the machine
// has (SSE2, NEON, or scalars). Multiply and add are two roundings here: a fused one would be a slow library call on
// machines without the instruction, and the two kinds must not differ between machines.
#pragma once

#include <cstdint>
#include <cstring>

namespace {

struct Vec {
  typedef float F __attribute__((vector_size(16)));
  typedef int32_t I __attribute__((vector_size(16)));
  typedef uint32_t U __attribute__((vector_size(16)));
  using M = I;
  static constexpr int kWidth = 4;
  // 4 x 2 accumulators: SSE2 has 16 registers and needs temporaries, as it has no fused operation.
  static constexpr int kTileRows = 4;
  static constexpr int kScoreRows = 2;
  static constexpr int kIntRows = 4;
  static constexpr bool kDotBf16 = false;

  static F zero() { return F{0, 0, 0, 0}; }
  static F set1(float x) { return F{x, x, x, x}; }
  static F load(const float* p) {
    F v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static void store(float* p, F v) { std::memcpy(p, &v, sizeof v); }
  static F load_n(const float* p, int n) {
    F v = zero();
    for (int i = 0; i < kWidth; ++i)
      if (i < n) v[i] = p[i];
    return v;
  }
  static void store_n(float* p, F v, int n) {
    for (int i = 0; i < kWidth; ++i)
      if (i < n) p[i] = v[i];
  }

  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F fma(F a, F b, F c) { return a * b + c; }
  static F max(F a, F b) { return select(less(b, a), a, b); }
  static F sqrt(F a) {
    return F{__builtin_sqrtf(a[0]), __builtin_sqrtf(a[1]), __builtin_sqrtf(a[2]), __builtin_sqrtf(a[3])};
  }

  static M less(F a, F b) { return a < b; }
  static M is_nan(F a) { return a != a; }
  static F select(M m, F yes, F no) { return floats((m & bits(yes)) | (~m & bits(no))); }
  static bool any(M m) { return (m[0] | m[1] | m[2] | m[3]) != 0; }

  static I bits(F a) {
    I b;
    std::memcpy(&b, &a, sizeof b);
    return b;
  }
  static F floats(I a) {
    F b;
    std::memcpy(&b, &a, sizeof b);
    return b;
  }
  static I set1_int(int32_t x) { return I{x, x, x, x}; }
  static I add_int(I a, I b) { return (I)((U)a + (U)b); }
  static I sub_int(I a, I b) { return (I)((U)a - (U)b); }
  template <int n>
  static I shift_left(I a) {
    return (I)((U)a << n);
  }
  template <int n>
  static I shift_right(I a) {
    return (I)((U)a >> n);
  }

  // A word of weights holds two bf16 values; the low half is the earlier one.
  static I load_words(const uint32_t* p) {
    I v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static F low_bf16(I w) { return floats(shift_left<16>(w)); }
  static F high_bf16(I w) { return floats(w & set1_int(static_cast<int32_t>(0xffff0000u))); }

  static F load_bf16(const uint16_t* p) {
    return floats(I{int32_t(uint32_t(p[0]) << 16), int32_t(uint32_t(p[1]) << 16), int32_t(uint32_t(p[2]) << 16),
                    int32_t(uint32_t(p[3]) << 16)});
  }

  // Whole numbers: pairs of 16-bit values in each lane.
  typedef int16_t H __attribute__((vector_size(16)));
  static void store_words(uint32_t* p, I v) { std::memcpy(p, &v, sizeof v); }
  static I load_u16(const uint16_t* p) { return I{p[0], p[1], p[2], p[3]}; }
  static I and_int(I a, I b) { return a & b; }
  static I even_bytes(I w) { return (I)(((H)w << 8) >> 8); }
  static I odd_bytes(I w) { return (I)((H)w >> 8); }
  template <int n>
  static I shift_right_signed(I a) {
    return a >> n;
  }
  template <int n>
  static I shift_right_pairs(I a) {
    typedef uint16_t UH __attribute__((vector_size(16)));
    return (I)((UH)a >> n);
  }
  static I mul_int(I a, I b) { return (I)((U)a * (U)b); }
  static I sub_pairs(I a, I b) { return (I)((H)a - (H)b); }
  static I dot_pairs(I acc, I x, I w) {
    const U low = (U)((I)((U)x << 16) >> 16) * (U)((I)((U)w << 16) >> 16);
    return (I)((U)acc + low + (U)(x >> 16) * (U)(w >> 16));
  }
  static F from_int(I a) { return __builtin_convertvector(a, F); }

  static float sum(F v) { return (v[0] + v[2]) + (v[1] + v[3]); }
  static float largest(F v) {
    const float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
  }
};

}  // namespace
