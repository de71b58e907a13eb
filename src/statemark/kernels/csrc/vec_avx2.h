// The vector of the AVX2 + FMA target: 8 floats. Known to the kernels as Vec; other targets offer the same names.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

struct Vec {
  using F = __m256;
  using I = __m256i;
  using M = __m256;
  static constexpr int kWidth = 8;
  // 6 x 2 accumulators, 2 vectors of weights and 1 broadcast fill the 16 registers; 12 chains hide the 4-cycle FMA.
  static constexpr int kTileRows = 6;
  static constexpr int kScoreRows = 6;
  // The chains of floats go to memory once a group; making pairs of weights is shared by more rows.
  static constexpr int kIntRows = 6;
  static constexpr bool kDotBf16 = false;
  static constexpr uint32_t kTop = 0xffff0000u;

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static I tail_mask(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static F load_n(const float* p, int n) { return _mm256_maskload_ps(p, tail_mask(n)); }
  static void store_n(float* p, F v, int n) { _mm256_maskstore_ps(p, tail_mask(n), v); }

  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F sqrt(F a) { return _mm256_sqrt_ps(a); }

  static M less(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static M is_nan(F a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
  static F select(M m, F yes, F no) { return _mm256_blendv_ps(no, yes, m); }
  static bool any(M m) { return _mm256_movemask_ps(m) != 0; }

  static I bits(F a) { return _mm256_castps_si256(a); }
  static F floats(I a) { return _mm256_castsi256_ps(a); }
  static I set1_int(int32_t x) { return _mm256_set1_epi32(x); }
  static I add_int(I a, I b) { return _mm256_add_epi32(a, b); }
  static I sub_int(I a, I b) { return _mm256_sub_epi32(a, b); }
  template <int n>
  static I shift_left(I a) {
    return _mm256_slli_epi32(a, n);
  }
  template <int n>
  static I shift_right(I a) {
    return _mm256_srli_epi32(a, n);
  }

  // A word of weights holds two bf16 values; the low half is the earlier one.
  static I load_words(const uint32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static F low_bf16(I w) { return floats(_mm256_slli_epi32(w, 16)); }
  // The mask stays in memory: as a 16th live register it made GCC spill accumulators, at a third of the rate.
  static F high_bf16(I w) {
    alignas(32) static constexpr uint32_t kHigh[8] = {kTop, kTop, kTop, kTop, kTop, kTop, kTop, kTop};
    I high;
    __asm__("vpand %2, %1, %0" : "=x"(high) : "x"(w), "m"(*reinterpret_cast<const I*>(kHigh)));
    return floats(high);
  }

  static F load_bf16(const uint16_t* p) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return floats(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }

  // Whole numbers: pairs of 16-bit values in each lane.
  static void store_words(uint32_t* p, I v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
  static I load_u16(const uint16_t* p) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static I and_int(I a, I b) { return _mm256_and_si256(a, b); }
  static I even_bytes(I w) { return _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8); }
  static I odd_bytes(I w) { return _mm256_srai_epi16(w, 8); }
  static I sub_pairs(I a, I b) { return _mm256_sub_epi16(a, b); }
  template <int n>
  static I shift_right_signed(I a) {
    return _mm256_srai_epi32(a, n);
  }
  template <int n>
  static I shift_right_pairs(I a) {
    return _mm256_srli_epi16(a, n);
  }
  static I mul_int(I a, I b) { return _mm256_mullo_epi32(a, b); }
  // Both instructions in one: GCC would do all products of a tile first and spill the sums, at half the rate.
  static I dot_pairs(I acc, I x, I w) {
    I product;
    __asm__("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0" : "+x"(acc), "=&x"(product) : "x"(x), "x"(w));
    return acc;
  }
  static F from_int(I a) { return _mm256_cvtepi32_ps(a); }

  static float sum(F v) {
    const __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 b = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
  }
  static float largest(F v) {
    const __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 b = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
  }
};

}  // namespace
