// The innermost loop of every matrix product: R rows times NV vectors of columns, accumulated over k in order.
//
// Each output element is one chain acc = fma(x[k], w[k], acc) over k = 0, 1, 2, ... (bf16 dot: over pairs of k), so its
// bits depend on its row and its column alone. Everything else - R, NV, blocks of k, which thread - only decides when
// a chain advances. A chain may be written to memory and read back between blocks; that is exact.

namespace {

// A source of weights: how one step over k feeds the chains of a tile. `a` holds R values a step (kActs a value).
struct FloatWeights {
  using Act = float;
  using Word = float;
  static constexpr int kDepth = 1;  // k consumed by a step
  static constexpr int kActs = 1;   // Act consumed by a row in a step
  template <int R, int NV>
  static inline void step(const Act* a, const Word* b, F (&acc)[R][NV]) {
    step_strided<R, NV>(a, 1, b, acc);
  }
  template <int R, int NV>
  static inline void step_strided(const Act* a, int64_t row_stride, const Word* b, F (&acc)[R][NV]) {
    F w[NV];
    for (int v = 0; v < NV; ++v) w[v] = Vec::load(b + v * W);
    for (int r = 0; r < R; ++r) {
      const F x = Vec::set1(a[r * row_stride]);
      for (int v = 0; v < NV; ++v) acc[r][v] = Vec::fma(x, w[v], acc[r][v]);
    }
  }
};

// bf16 pairs unpacked in registers; used where the rows are too few to pay for unpacking into scratch.
struct PairWeights {
  using Act = float;
  using Word = uint32_t;
  static constexpr int kDepth = 2;
  static constexpr int kActs = 2;
  template <int R, int NV>
  static inline void step(const Act* a, const Word* b, F (&acc)[R][NV]) {
    F low[NV], high[NV];
    for (int v = 0; v < NV; ++v) {
      const I words = Vec::load_words(b + v * W);
      low[v] = Vec::low_bf16(words);
      high[v] = Vec::high_bf16(words);
    }
    for (int r = 0; r < R; ++r) {
      const F x = Vec::set1(a[r]);
      for (int v = 0; v < NV; ++v) acc[r][v] = Vec::fma(x, low[v], acc[r][v]);
    }
    for (int r = 0; r < R; ++r) {
      const F x = Vec::set1(a[R + r]);
      for (int v = 0; v < NV; ++v) acc[r][v] = Vec::fma(x, high[v], acc[r][v]);
    }
  }
};

#ifdef STATEMARK_DOT_BF16
struct DotWeights {
  using Act = uint32_t;
  using Word = uint32_t;
  static constexpr int kDepth = 2;
  static constexpr int kActs = 1;
  template <int R, int NV>
  static inline void step(const Act* a, const Word* b, F (&acc)[R][NV]) {
    I w[NV];
    for (int v = 0; v < NV; ++v) w[v] = Vec::load_words(b + v * W);
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < NV; ++v) acc[r][v] = Vec::dot_bf16(acc[r][v], a[r], w[v]);
  }
};
#endif

template <int R, int NV>
inline void load_tile(F (&acc)[R][NV], const float* c, int64_t stride) {
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < NV; ++v) acc[r][v] = c ? Vec::load(c + r * stride + v * W) : Vec::zero();
}

template <int R, int NV>
inline void store_tile(const F (&acc)[R][NV], float* c, int64_t stride) {
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < NV; ++v) Vec::store(c + r * stride + v * W, acc[r][v]);
}

}  // namespace
