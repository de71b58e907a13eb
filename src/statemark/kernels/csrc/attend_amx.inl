// The walk of attend.inl over pages of bfloat16 on AMX tiles (amx.inl): products of pairs of bf16.
//
// The order, for each query alone: queries are rounded to bf16, a score is one chain of blocks of 32 along the head
// dimension. Weights are exp(s - m), rounded to bf16; their sum adds the rounded ones, so that an output is a true mean of
// values: lane i sums keys i, i + 16, i + 32, i + 48 of each tile, tile after tile, and lanes meet in a fixed tree at the
// end of a segment. An output is one chain of blocks of 32 keys; keys of a block go as pairs (i, i + 16). m is the largest
// score of the segment's first tile, and of a later one where that is larger by more than kLoose: so outputs are rarely
// rescaled. A weight is at most exp(kLoose) then, and rounding is relative.
//
// Keys that a query doesn't see have weight 0, and values that aren't there count as 0. A value that is there for later
// queries only contributes 0 x v = 0 or -0: chains begin with 0, so no bit changes but the sign of a zero, which
// write_rows makes equal. Where such a value isn't finite, 0 x v would be NaN: then each token's values are laid out alone.

namespace {

constexpr float kLoose = 8.0f;
constexpr int kPairRows = kKeyTile / 2;  // rows of pairs of keys in a tile
constexpr int kColWords = kPairRows * W;  // values of a tile's keys in 16 columns

struct TileScratch {
  int64_t depth;             // head_dim padded to 32
  uint32_t* queries;         // [rows][depth / 2] pairs
  uint32_t *keys, *values;   // [page][depth / 2][16 keys]; [o_stride / 16][2][16 pairs of keys][16]
  uint32_t* weights;         // [rows][32] pairs
  float *scores, *sums;      // [2][16][64]: of a tile of rows and the one before; [rows][16]: lanes of l
  float* spare;              // [16][o_stride]

  static size_t floats(int64_t rows, int64_t head_dim) {
    const int64_t depth = round_up(head_dim, kAmxDepth), stride = round_up(head_dim, kTileCols);
    rows = round_up(rows, kAmxRows);
    return static_cast<size_t>(rows * (depth / 2 + kPairRows + W) + kPairRows * (depth + stride) + kAmxRows * stride +
                               2 * kAmxRows * kKeyTile);
  }
  TileScratch(float* p, int64_t rows, int64_t head_dim) : depth(round_up(head_dim, kAmxDepth)) {
    rows = round_up(rows, kAmxRows);
    const int64_t stride = round_up(head_dim, kTileCols);
    const auto take = [&p](int64_t n) {
      float* at = p;
      p += n;
      return at;
    };
    const auto words = [&take](int64_t n) { return reinterpret_cast<uint32_t*>(take(n)); };
    keys = words(kPairRows * depth);
    values = words(kPairRows * stride);
    queries = words(rows * depth / 2);
    weights = words(rows * kPairRows);
    scores = take(2 * kAmxRows * kKeyTile);
    sums = take(rows * W);
    spare = take(kAmxRows * stride);
  }
};

// Rows that don't exist, up to a whole tile, are zeros; so are columns up to `depth`.
inline void round_queries(const float* q, int64_t rows, int64_t head_dim, const TileScratch& t) {
  __builtin_memset(t.queries, 0, static_cast<size_t>(round_up(rows, kAmxRows) * t.depth * 2));
  for (int64_t r = 0; r < rows; ++r) pack_pairs(q + r * head_dim, head_dim, t.queries + r * t.depth / 2);
}

// A page of keys [head_dim][16] as pairs along the head dimension.
inline void pair_keys(const uint8_t* block, int64_t head_dim, int64_t depth, uint32_t* to) {
  const auto* from = reinterpret_cast<const uint16_t*>(block);
  for (int64_t i = 0; i < head_dim; i += 2, from += 2 * kPage, to += W)
    Vec::store_words(to, Vec::pair_u16(from, from + kPage));
  for (int64_t i = head_dim; i < depth; i += 2, to += W) Vec::store_words(to, Vec::set1_int(0));
}

// Values of a tile's pages as pairs of keys; of the tile's keys `count` are there.
inline void pair_values(const uint8_t* const* blocks, int64_t head_dim, int64_t o_stride, int count, uint32_t* to) {
  static const uint16_t nothing[W] = {};
  for (int half = 0; half < 2; ++half)
    for (int i = 0; i < kPage; ++i) {
      const uint16_t* rows[2];
      for (int j = 0; j < 2; ++j) {
        const int page = 2 * half + j;
        rows[j] = page * kPage + i < count
                      ? reinterpret_cast<const uint16_t*>(blocks[page]) + (kPage + i) * head_dim
                      : nullptr;
      }
      uint32_t* row = to + (half * kPage + i) * W;
      for (int64_t col = 0; col < o_stride; col += W, row += kColWords) {
        uint16_t part[2][W] = {};
        const uint16_t* from[2];
        for (int j = 0; j < 2; ++j) {
          from[j] = rows[j] ? rows[j] + col : nothing;
          if (!rows[j] || col + W <= head_dim) continue;
          for (int64_t n = 0; n < head_dim - col; ++n) part[j][n] = from[j][n];
          from[j] = part[j];
        }
        Vec::store_words(row, Vec::pair_u16(from[0], from[1]));
      }
    }
}

inline bool all_finite(const uint32_t* words, int64_t n) {
  uint32_t bad = 0;
  for (int64_t i = 0; i < n; ++i)
    bad |= static_cast<uint32_t>((words[i] & 0x7f80u) == 0x7f80u) |
           static_cast<uint32_t>((words[i] & 0x7f800000u) == 0x7f800000u);
  return bad == 0;
}

// exp(x) to 1e-4 for x up to kLoose, rounded to bf16 (halves away from zero); 0 below -87. NaN stays NaN.
INLINE F rounded_weight(F x) {
  constexpr float kPowers = kRounder + 127.0f;  // the low bits of a sum become the exponent of 2^n
  const F t = Vec::fma(x, Vec::set1(1.44269504088896341f), Vec::set1(kPowers));
  const F r = Vec::fma(x, Vec::set1(1.44269504088896341f), Vec::sub(Vec::set1(kPowers), t));
  F p = Vec::fma(r, Vec::set1(0.05500829f), Vec::set1(0.24221052f));
  p = Vec::fma(p, r, Vec::set1(0.69328295f));
  p = Vec::fma(p, r, Vec::set1(1.0f));
  p = Vec::mul(p, Vec::floats(Vec::shift_left<23>(Vec::bits(t))));
  const I whole = Vec::and_int(Vec::add_int(Vec::bits(p), Vec::set1_int(0x8000)), Vec::set1_int(-0x10000));
  return Vec::select(Vec::less(x, Vec::set1(-87.0f)), Vec::zero(), Vec::floats(whole));
}

// Scores of one row, `seen` of them valid, become pairs of weights; returns the factor for what was summed before.
INLINE float weigh_row(float* scores, int seen, float& m, float* sums, uint32_t* to) {
  if (seen == 0) {
    __builtin_memset(to, 0, kPairRows * sizeof *to);
    return 1.0f;
  }
  for (int j = seen; j < kKeyTile; ++j) scores[j] = -__builtin_inff();
  F x[4];
  unroll<4>([&](auto i) INLINE_LAMBDA { x[i] = Vec::load(scores + i * W); });
  const F peak = Vec::max(Vec::max(x[0], x[1]), Vec::max(x[2], x[3]));
  float rescale = 1.0f;
  F total = Vec::load(sums);
  if (Vec::any(Vec::less(Vec::set1(m + kLoose), peak))) {
    const float top = Vec::largest(peak);
    float lanes[W];
    Vec::store(lanes, exp(Vec::set1(m - top)));
    rescale = lanes[0];
    m = top;
    total = Vec::mul(total, Vec::set1(rescale));
  }
  const F base = Vec::set1(m);
  unroll<4>([&](auto i) INLINE_LAMBDA { x[i] = rounded_weight(Vec::sub(x[i], base)); });
  Vec::store(sums, Vec::add(total, Vec::add(Vec::add(x[0], x[1]), Vec::add(x[2], x[3]))));
  unroll<2>([&](auto i) INLINE_LAMBDA {
    Vec::store_words(to + i * W, Vec::add_int(Vec::shift_right<16>(Vec::bits(x[2 * i])), Vec::bits(x[2 * i + 1])));
  });
  return rescale;
}

// Asks for the next tile of keys and values, a few lines at a time.
struct AskTile {
  const NextTile& next;
  int64_t lines;  // a time
  int64_t page = 0, at = 0;

  INLINE void some() {
    for (int64_t i = 0; i < lines && page < kTilePages && next.pages[page]; ++i) {
      __builtin_prefetch(next.pages[page] + at, 0, 2);
      if ((at += 64) >= 2 * next.bytes) ++page, at = 0;
    }
  }
};

// Scores of the 16 rows whose queries begin at `q` (null: none), while others(row) handles `rows` rows between.
template <class Fn>
INLINE void score_rows_while(Tiles& tiles, const uint32_t* q, const TileScratch& t, float* scores, int64_t rows,
                             AskTile& ask, const Fn& others) {
  const int64_t steps = t.depth / kAmxDepth, page = t.depth / 2 * W;
  if (q) unroll<4>([&](auto i) INLINE_LAMBDA { tiles.clear<i>(); });
  const uint32_t* keys = t.keys;
  for (int64_t step = 0; step < steps; ++step, keys += kAmxWords * W) {
    if (q) {
      tiles.load_once<4>(q + step * kAmxWords, t.depth * 2);  // L1 is for keys
      unroll<4>([&](auto i) INLINE_LAMBDA {
        tiles.load<6 + i % 2>(keys + i * page, 64);
        tiles.dot_bf16<i, 4, 6 + i % 2>();
      });
    }
    ask.some();
    for (int64_t r = rows * step / steps; r < rows * (step + 1) / steps; ++r) others(r);
  }
  if (q) unroll<4>([&](auto i) INLINE_LAMBDA { tiles.store<i>(scores + i * W, kKeyTile * 4); });
}

template <int N>
INLINE void mix_cols(Tiles& tiles, const uint32_t* values, bool first, float* o, int64_t o_stride) {
  unroll<N>([&](auto c) INLINE_LAMBDA { first ? tiles.clear<c>() : tiles.load<c>(o + c * W, o_stride * 4); });
  unroll<N>([&](auto c) INLINE_LAMBDA {
    tiles.load<6>(values + c * kColWords, 64);
    tiles.dot_bf16<c, 4, 6>();
  });
  unroll<N>([&](auto c) INLINE_LAMBDA {
    tiles.load<7>(values + c * kColWords + kColWords / 2, 64);
    tiles.dot_bf16<c, 5, 7>();
    tiles.store<c>(o + c * W, o_stride * 4);
  });
}

// o [16][o_stride] += weights . values, or = where `first`.
inline void mix_row_tile(Tiles& tiles, const uint32_t* weights, const TileScratch& t, bool first, float* o,
                         int64_t o_stride) {
  tiles.load<4>(weights, kPairRows * 4);
  tiles.load<5>(weights + W, kPairRows * 4);
  int64_t col = 0;
  for (; col + 4 * W <= o_stride; col += 4 * W)
    mix_cols<4>(tiles, t.values + col / W * kColWords, first, o + col, o_stride);
  for (; col < o_stride; col += 2 * W)
    mix_cols<2>(tiles, t.values + col / W * kColWords, first, o + col, o_stride);
}

// A tile of keys for rows [0, rows), of a sequence's block whose tokens have `group` rows each.
struct KeyTile {
  const uint8_t* blocks[kTilePages];  // keys and then values of a head
  int count;                          // of its keys
  bool first;                         // of its segment
  int64_t rows, group, head_dim;
};

// Some values are seen by later rows only and aren't finite: token by token, with values of its own.
inline void mix_apart(Tiles& tiles, const KeyTile& k, const TileScratch& t, const AttendScratch& s) {
  for (int64_t row = 0; row < k.rows; row += k.group) {
    pair_values(k.blocks, k.head_dim, s.o_stride, s.seen[row], t.values);
    for (int64_t r = row / kAmxRows * kAmxRows; r < row + k.group; r += kAmxRows) {
      const int64_t first = at_least(r, row), last = at_most(r + kAmxRows, row + k.group);
      __builtin_memcpy(t.spare, s.o + r * s.o_stride, static_cast<size_t>(kAmxRows * s.o_stride) * sizeof(float));
      mix_row_tile(tiles, t.weights + r * kPairRows, t, k.first, t.spare, s.o_stride);
      __builtin_memcpy(s.o + first * s.o_stride, t.spare + (first - r) * s.o_stride,
                       static_cast<size_t>((last - first) * s.o_stride) * sizeof(float));
    }
  }
}

inline void attend_key_tile(Tiles& tiles, const KeyTile& k, const NextTile& next, const TileScratch& t,
                            const AttendScratch& s) {
  for (int p = 0; p * kPage < k.count; ++p)
    pair_keys(k.blocks[p], k.head_dim, t.depth, t.keys + p * t.depth / 2 * W);
  const int64_t parts = ceil_div(k.rows, kAmxRows);
  AskTile ask{next, ceil_div(2 * kTilePages * next.bytes / 64, parts * t.depth / kAmxDepth)};
  const auto scores_of = [&](int64_t part) { return t.scores + part % 2 * kAmxRows * kKeyTile; };
  for (int64_t part = 0; part <= parts; ++part) {  // vectors weigh one tile of rows while tiles score the next
    const int64_t before = (part - 1) * kAmxRows;
    score_rows_while(tiles, part < parts ? t.queries + part * kAmxRows * t.depth / 2 : nullptr, t, scores_of(part),
                     part ? at_most(kAmxRows, k.rows - before) : 0, ask, [&](int64_t i) INLINE_LAMBDA {
                       const int64_t r = before + i;
                       s.rescale[r] = weigh_row(scores_of(part + 1) + i * kKeyTile, s.seen[r], s.m[r], t.sums + r * W,
                                                t.weights + r * kPairRows);
                     });
  }
  for (int64_t r = 0; r < k.rows && !k.first; ++r)
    if (s.rescale[r] != 1.0f) scale_row(s.o + r * s.o_stride, s.o_stride, s.rescale[r]);
  pair_values(k.blocks, k.head_dim, s.o_stride, k.count, t.values);
  if (s.seen[0] < k.count && !all_finite(t.values, kPairRows * s.o_stride)) return mix_apart(tiles, k, t, s);
  for (int64_t r = 0; r < k.rows; r += kAmxRows)
    mix_row_tile(tiles, t.weights + r * kPairRows, t, k.first, s.o + r * s.o_stride, s.o_stride);
}

}  // namespace
