// The vector of the AVX-512 BF16 target: 16 floats, and the dot product of bf16 pairs that linear layers use.
// Few and simple intrinsics on purpose: on machines without AVX-512 the tests run this file through SIMDe, so the names
// below must exist there. Tails go through memory instead of mask registers.
#pragma once

#ifdef STATEMARK_EMULATE_AVX512
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/fma.h>
#else
#include <immintrin.h>
#endif

#include <cstdint>
#include <cstring>

#define STATEMARK_DOT_BF16 1

namespace {

struct Vec {
  using F = __m512;
  using I = __m512i;
  using M = __mmask16;
  static constexpr int kWidth = 16;
  // 12 x 2 accumulators of 32 registers: enough chains for the 6-cycle latency of the bf16 dot product.
  static constexpr int kTileRows = 12;
  static constexpr int kScoreRows = 12;
  static constexpr int kIntRows = 6;  // sums of whole numbers and chains, 6 x 2 each, fit the registers
  static constexpr bool kDotBf16 = true;

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static F load_n(const float* p, int n) {
    if (n >= kWidth) return load(p);
    alignas(64) float buffer[kWidth] = {};
    for (int i = 0; i < n; ++i) buffer[i] = p[i];
    return load(buffer);
  }
  static void store_n(float* p, F v, int n) {
    if (n >= kWidth) return store(p, v);
    alignas(64) float buffer[kWidth];
    store(buffer, v);
    for (int i = 0; i < n; ++i) p[i] = buffer[i];
  }

  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm512_mask_blend_ps(less(b, a), b, a); }
  static F sqrt(F a) { return _mm512_sqrt_ps(a); }

  static M less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static M is_nan(F a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
  static F select(M m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
  static bool any(M m) { return m != 0; }

  static I bits(F a) { return _mm512_castps_si512(a); }
  static F floats(I a) { return _mm512_castsi512_ps(a); }
  static I set1_int(int32_t x) { return _mm512_set1_epi32(x); }
  static I add_int(I a, I b) { return _mm512_add_epi32(a, b); }
  static I sub_int(I a, I b) { return _mm512_sub_epi32(a, b); }
  template <int n>
  static I shift_left(I a) {
    return _mm512_slli_epi32(a, n);
  }
  template <int n>
  static I shift_right(I a) {
    return _mm512_srli_epi32(a, n);
  }

  static I load_words(const uint32_t* p) { return _mm512_loadu_si512(p); }
  static F low_bf16(I w) { return floats(_mm512_slli_epi32(w, 16)); }
  static F high_bf16(I w) { return floats(_mm512_and_si512(w, _mm512_set1_epi32(static_cast<int>(0xffff0000u)))); }
  // acc + x.high * w.high, then + x.low * w.low, in each lane; x is one pair for all lanes. Each is a fused multiply-add
  // (to nearest even; inputs and results that are denormal count as zero, products don't: compared with Zen 4).
  static F dot_bf16(F acc, uint32_t x, I w) {
#ifdef STATEMARK_EMULATE_AVX512  // SIMDe's order is whatever the compiler makes of a loop
    const I pair = _mm512_set1_epi32(static_cast<int32_t>(x));
    const F sum = fma(high_bf16(pair), high_bf16(w), acc);
    return fma(low_bf16(pair), low_bf16(w), sum);
#else
    const I pair = _mm512_set1_epi32(static_cast<int32_t>(x));
    __m512bh a, b;
    std::memcpy(&a, &pair, sizeof a);
    std::memcpy(&b, &w, sizeof b);
    return _mm512_dpbf16_ps(acc, a, b);
#endif
  }

  // 32 values as pairs of bf16, to nearest even; what is denormal becomes zero.
  static I to_bf16_pairs(F first, F second) {
#ifdef STATEMARK_EMULATE_AVX512  // missing in SIMDe
    alignas(64) uint32_t b[2 * kWidth];
    alignas(64) uint16_t to[2 * kWidth];
    store(reinterpret_cast<float*>(b), first);
    store(reinterpret_cast<float*>(b) + kWidth, second);
    for (int i = 0; i < 2 * kWidth; ++i) {
      const uint32_t rounded = (b[i] + 0x7fffu + ((b[i] >> 16) & 1u)) >> 16, cut = b[i] >> 16;
      const uint32_t finite = (b[i] & 0x7f800000u) ? rounded : cut & 0x8000u;
      to[i] = static_cast<uint16_t>((b[i] & 0x7fffffffu) > 0x7f800000u ? cut | 0x40u : finite);
    }
    return _mm512_loadu_si512(to);
#else
    const __m512bh both = _mm512_cvtne2ps_pbh(second, first);
    I words;
    std::memcpy(&words, &both, sizeof words);
    return words;
#endif
  }

  // Pairs of 16-bit values: lane i is low[i] with high[i] above it.
  static I pair_u16(const uint16_t* low, const uint16_t* high) { return add_int(load_u16(low), bits(load_bf16(high))); }
  static F load_bf16(const uint16_t* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
#ifdef STATEMARK_EMULATE_AVX512  // this one is missing in SIMDe
    const __m256i low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(half));
    const __m256i high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(half, 1));
    const I words = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
#else
    const I words = _mm512_cvtepu16_epi32(half);
#endif
    return floats(_mm512_slli_epi32(words, 16));
  }

  // Whole numbers: pairs of 16-bit values in each lane.
  static void store_words(uint32_t* p, I v) { _mm512_storeu_si512(p, v); }
  static I and_int(I a, I b) { return _mm512_and_si512(a, b); }
  static I even_bytes(I w) { return _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8); }
  static I odd_bytes(I w) { return _mm512_srai_epi16(w, 8); }
  static I sub_pairs(I a, I b) { return _mm512_sub_epi16(a, b); }
  static I load_u16(const uint16_t* p) { return _mm512_srli_epi32(bits(load_bf16(p)), 16); }
  template <int n>
  static I shift_right_pairs(I a) {
    return _mm512_srli_epi16(a, n);
  }
  static I mul_int(I a, I b) { return _mm512_mullo_epi32(a, b); }
#ifdef STATEMARK_EMULATE_AVX512  // these are missing in SIMDe, or wrong
  template <int n>
  static I shift_right_signed(I a) {
    const __m256i low = _mm256_srai_epi32(_mm512_extracti64x4_epi64(a, 0), n);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), _mm256_srai_epi32(_mm512_extracti64x4_epi64(a, 1), n), 1);
  }
  static I dot_pairs(I acc, I x, I w) { return _mm512_add_epi32(acc, simde_mm512_madd_epi16(x, w)); }
  static F from_int(I a) {
    const __m256 low = _mm256_cvtepi32_ps(_mm512_extracti64x4_epi64(a, 0));
    const __m256 high = _mm256_cvtepi32_ps(_mm512_extracti64x4_epi64(a, 1));
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
  }
#else
  template <int n>
  static I shift_right_signed(I a) {
    return _mm512_srai_epi32(a, n);
  }
  // Not the intrinsic: GCC 12 then keeps two copies of each sum and stores one of them at every step.
  static I dot_pairs(I acc, I x, I w) {
    __asm__("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(x), "v"(w));
    return acc;
  }
  static F from_int(I a) { return _mm512_cvtepi32_ps(a); }
#endif

  // Both: lane i with lane i + 8, then + 4, + 2, + 1.
  static float sum(F v) {
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), upper(v));
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
  }
  static float largest(F v) {
    const __m256 a = _mm256_max_ps(_mm512_castps512_ps256(v), upper(v));
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
  }
  static __m256 upper(F v) { return _mm256_castsi256_ps(_mm512_extracti64x4_epi64(bits(v), 1)); }
};

}  // namespace
