// Tiles of AMX, and their arithmetic in vectors: for a row or two, and for machines without AMX (tests).
//
// dot_bf16 adds to each element of a tile of sums a block of 32 k: with x[0..31] a row of bf16 activations and w[0..31] a
// column of bf16 weights (neighbouring k in one word),
//   even = 0; odd = 0; for i = 0 .. 15: even = fma(x[2i], w[2i], even), odd = fma(x[2i+1], w[2i+1], odd)
//   sum = sum + (even + odd)
// rounded to nearest even, with inputs and results that are denormal counted as zero (products aren't). So bits of an
// element depend on its row and its column alone, and a row alone may go through vectors instead.

namespace {

constexpr int kAmxRows = 16;   // of a tile, each of 64 bytes
constexpr int kAmxDepth = 32;  // k of one dot_bf16
constexpr int kAmxWords = kAmxDepth / 2;
static_assert(W == 16, "a row of a tile is one vector");

// What dot_bf16 does, for R rows (`a_stride` words apart) and NV vectors of columns of a block of weights whose pairs
// of k are `b_stride` words apart. Denormals are zero in kernels anyway (FloatMode).
template <int R, int NV>
INLINE void amx_step(const uint32_t* a, int64_t a_stride, const uint32_t* b, int64_t b_stride, F (&sums)[R][NV]) {
  F even[R][NV], odd[R][NV];
  unroll<R * NV>([&](auto i) INLINE_LAMBDA { even[i / NV][i % NV] = odd[i / NV][i % NV] = Vec::zero(); });
  for (int s = 0; s < kAmxWords; ++s, ++a, b += b_stride) {
    F low[NV], high[NV];
    unroll<NV>([&](auto v) INLINE_LAMBDA {
      const I words = Vec::load_words(b + v * W);
      low[v] = Vec::low_bf16(words);
      high[v] = Vec::high_bf16(words);
    });
    unroll<R>([&](auto r) INLINE_LAMBDA {
      const I x = Vec::set1_int(static_cast<int32_t>(a[r * a_stride]));
      const F x_low = Vec::low_bf16(x), x_high = Vec::high_bf16(x);
      unroll<NV>([&](auto v) INLINE_LAMBDA {
        even[r][v] = Vec::fma(x_low, low[v], even[r][v]);
        odd[r][v] = Vec::fma(x_high, high[v], odd[r][v]);
      });
    });
  }
  unroll<R * NV>([&](auto i) INLINE_LAMBDA {
    F& sum = sums[i / NV][i % NV];
    sum = Vec::add(sum, Vec::add(even[i / NV][i % NV], odd[i / NV][i % NV]));
  });
}

// Eight tiles of up to 16 rows x 64 bytes, for the time of a scope: one object a task, on the thread that runs it. Tiles 0
// to 5 have `rows` rows (sums and activations), 6 and 7 have 16 (weights).
class Tiles {
 public:
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
#ifdef STATEMARK_EMULATE_AVX512
  explicit Tiles(int rows = kAmxRows) : rows_(rows) {}
  template <int t>
  void clear() {
    __builtin_memset(tile_[t], 0, sizeof tile_[t]);
  }
  template <int t>
  void load(const void* rows, int64_t stride) {  // stride in bytes
    for (int r = 0; r < rows_of(t); ++r)
      __builtin_memcpy(tile_[t][r], static_cast<const char*>(rows) + r * stride, sizeof tile_[t][r]);
  }
  template <int t>
  void store(void* rows, int64_t stride) const {
    for (int r = 0; r < rows_of(t); ++r)
      __builtin_memcpy(static_cast<char*>(rows) + r * stride, tile_[t][r], sizeof tile_[t][r]);
  }
  template <int t>
  void load_once(const void* rows, int64_t stride) {
    load<t>(rows, stride);
  }
  template <int sums, int a, int b>
  void dot_bf16() {
    int r = 0;
    for (; r + 4 <= rows_of(sums); r += 4) dot_rows<4>(tile_[sums][r], tile_[a][r], tile_[b][0]);
    for (; r < rows_of(sums); ++r) dot_rows<1>(tile_[sums][r], tile_[a][r], tile_[b][0]);
  }

 private:
  int rows_of(int t) const { return t < 6 ? rows_ : kAmxRows; }
  template <int R>
  static void dot_rows(uint32_t* sums, const uint32_t* a, const uint32_t* b) {
    Chains<R, 1> chains;
    auto* c = reinterpret_cast<float*>(sums);
    chains.load(c, W);
    amx_step<R, 1>(a, W, b, W, chains.at);
    chains.store(c, W);
  }

  int rows_;
  alignas(64) uint32_t tile_[8][kAmxRows][W];
#else
  // Released at the end: a thread with live tiles has 8 KiB more to save at each switch, and keeps its core from sleeping
  // deeply.
  explicit Tiles(int rows = kAmxRows) {
    struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {};
    } config;
    for (int t = 0; t < 8; ++t) config.rows[t] = static_cast<uint8_t>(t < 6 ? rows : kAmxRows);
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
  }
  ~Tiles() { __asm__ volatile("tilerelease"); }
  template <int t>
  INLINE void clear() {
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(t));
  }
  template <int t>
  INLINE void load(const void* rows, int64_t stride) {  // stride in bytes
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride), "i"(t) : "memory");
  }
  // For what is read once before L1 would hold it again: it then displaces nothing there.
  template <int t>
  INLINE void load_once(const void* rows, int64_t stride) {
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(stride), "i"(t) : "memory");
  }
  template <int t>
  INLINE void store(void* rows, int64_t stride) const {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(stride), "i"(t) : "memory");
  }
  template <int sums, int a, int b>
  INLINE void dot_bf16() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(a), "i"(b));
  }
#endif
};

}  // namespace
