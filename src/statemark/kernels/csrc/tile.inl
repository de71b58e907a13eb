// The innermost loop of every matrix product: R rows times NV vectors of columns, accumulated over k in order.
//
// Each output element is one chain acc = fma(x[k], w[k], acc) over k = 0, 1, 2, ... (bf16 dot: over pairs of k), so its
// bits depend on its row and its column alone. Everything else - R, NV, blocks of k, which thread - only decides when
// a chain advances. A chain may be written to memory and read back between blocks; that is exact.

namespace {

// Calls f(0) .. f(N-1) with indices known at compile time: only then do arrays of vectors stay in registers (GCC
// unrolls plain loops after it has decided what lives in memory).
template <int... i, class Fn>
INLINE void unroll_these(std::integer_sequence<int, i...>, const Fn& f) {
  (f(std::integral_constant<int, i>{}), ...);
}
template <int N, class Fn>
INLINE void unroll(const Fn& f) {
  unroll_these(std::make_integer_sequence<int, N>{}, f);
}

constexpr int kTileCols = 2 * W;  // columns of the widest tile that leaves registers for kTileRows rows

template <int R, int NV>
struct Chains {
  F at[R][NV];

  INLINE void load(const float* c, int64_t stride) {
    unroll<R * NV>([&](auto i) INLINE_LAMBDA { at[i / NV][i % NV] = Vec::load(c + i / NV * stride + i % NV * W); });
  }
  INLINE void clear() {
    unroll<R * NV>([&](auto i) INLINE_LAMBDA { at[i / NV][i % NV] = Vec::zero(); });
  }
  INLINE void store(float* c, int64_t stride) const {
    unroll<R * NV>([&](auto i) INLINE_LAMBDA { Vec::store(c + i / NV * stride + i % NV * W, at[i / NV][i % NV]); });
  }
  // One k: row r of the activations is at a[r * row_stride].
  INLINE void advance(const float* a, int64_t row_stride, const F (&w)[NV]) {
    unroll<R>([&](auto r) INLINE_LAMBDA {
      const F x = Vec::set1(a[r * row_stride]);
      unroll<NV>([&](auto v) INLINE_LAMBDA { at[r][v] = Vec::fma(x, w[v], at[r][v]); });
    });
  }
  INLINE void advance_floats(const float* a, int64_t row_stride, const float* b) {
    F w[NV];
    unroll<NV>([&](auto v) INLINE_LAMBDA { w[v] = Vec::load(b + v * W); });
    advance(a, row_stride, w);
  }
};

// Activations are packed as [block of k][row][kBlockDepth] (pairs of bf16: half as many words): rows of a tile lie a
// constant apart, so packing is a copy and the inner loop needs one pointer.
// 256 deep: a weight block of 16 columns is 16 KiB, half of the smallest L1, and a tile of 6 rows adds 6 KiB. Where
// pairs are multiplied, 1024: the block (64 KiB) then comes from L2, which keeps up, and chains go to memory less often
// (Zen 4: 3 to 4 % faster than with 256 or 512).
constexpr int64_t kBlockDepth = Vec::kDotBf16 ? 1024 : 256;

// Sources of weights: how one step over k feeds the chains of a tile from packed activations.
struct FloatWeights {
  using Act = float;
  using Word = float;
  static constexpr int kDepth = 1;    // k consumed by a step
  static constexpr int kActStep = 1;  // Act consumed by a row in a step
  static constexpr int64_t kRowStride = kBlockDepth;
  template <int R, int NV>
  static INLINE void step(const Act* a, const Word* b, Chains<R, NV>& chains) {
    chains.advance_floats(a, kRowStride, b);
  }
};

// bf16 pairs unpacked in registers; used where the rows are too few to pay for unpacking into scratch.
struct PairWeights {
  using Act = float;
  using Word = uint32_t;
  static constexpr int kDepth = 2;
  static constexpr int kActStep = 2;
  static constexpr int64_t kRowStride = kBlockDepth;
  template <int R, int NV>
  static INLINE void step(const Act* a, const Word* b, Chains<R, NV>& chains) {
    F w[NV];
    unroll<NV>([&](auto v) INLINE_LAMBDA { w[v] = Vec::low_bf16(Vec::load_words(b + v * W)); });
    chains.advance(a, kRowStride, w);
    unroll<NV>([&](auto v) INLINE_LAMBDA { w[v] = Vec::high_bf16(Vec::load_words(b + v * W)); });
    chains.advance(a + 1, kRowStride, w);
  }
};

#ifdef STATEMARK_DOT_BF16
struct DotWeights {
  using Act = uint32_t;
  using Word = uint32_t;
  static constexpr int kDepth = 2;
  static constexpr int kActStep = 1;
  static constexpr int64_t kRowStride = kBlockDepth / 2;
  template <int R, int NV>
  static INLINE void step(const Act* a, const Word* b, Chains<R, NV>& chains) {
    I w[NV];
    unroll<NV>([&](auto v) INLINE_LAMBDA { w[v] = Vec::load_words(b + v * W); });
    unroll<R * NV>([&](auto i) INLINE_LAMBDA {
      F& acc = chains.at[i / NV][i % NV];
      acc = Vec::dot_bf16(acc, a[i / NV * kRowStride], w[i % NV]);
    });
  }
};
#endif

}  // namespace
