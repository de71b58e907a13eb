// A block of queries walks the keys of its sequence.
//
// The order, for each query alone: keys in tiles of 64 from position 0; a score is one chain over the head dimension;
// in a tile the largest score, then the weights exp(s - m), their sum as lanes and a fixed tree, and the output as one
// chain over the tile's keys, rescaled when a tile begins. Every 1024 keys a new segment starts from nothing, and
// segments are merged in order; so threads may share a long walk without changing a bit.
// Keys beyond a query's own position contribute nothing at all: loops end before them (a stale page may hold NaN).

namespace {

constexpr int kKeyTile = 64;
constexpr int64_t kSegment = 16 * kKeyTile;
constexpr int kTilePages = kKeyTile / kPage;
constexpr int kScoreVecs = kPage / W;

struct AttendScratch {
  int64_t o_stride;
  float *keys, *values;          // one tile: [page][head_dim][16], [head_dim / kTileCols][64][kTileCols]
  float *weights;                // [rows][64]: scores, then their exponentials
  float *rescale;                // [rows]: for what was summed before the tile
  float *o, *m, *l;              // a segment: outputs not yet divided, largest score, sum of weights
  float *total_o, *total_m, *total_l;  // segments so far

  static size_t floats(int64_t rows, int64_t head_dim) {
    const int64_t stride = round_up(head_dim, kTileCols);
    return static_cast<size_t>(kKeyTile * (head_dim + stride) + rows * (kKeyTile + 2 * stride + 5) + 64);
  }
  AttendScratch(float* p, int64_t rows, int64_t head_dim) : o_stride(round_up(head_dim, kTileCols)) {
    const auto take = [&p](int64_t n) {
      float* at = p;
      p += n;
      return at;
    };
    keys = take(kKeyTile * head_dim);
    values = take(kKeyTile * o_stride);
    weights = take(rows * kKeyTile);
    o = take(rows * o_stride);
    total_o = take(rows * o_stride);
    rescale = take(rows);
    m = take(rows);
    l = take(rows);
    total_m = take(rows);
    total_l = take(rows);
  }
};

// Keys of a page as floats [head_dim][16]; pages of floats are used where they lie.
inline const float* unpack_keys(const uint8_t* block, bool bf16, int64_t d, float* to) {
  if (!bf16) return reinterpret_cast<const float*>(block);
  const auto* from = reinterpret_cast<const uint16_t*>(block);
  for (int64_t i = 0; i < d * kPage; i += W) Vec::store(to + i, Vec::load_bf16(from + i));
  return to;
}

inline F load_value(const uint8_t* row, bool bf16, int64_t i, int lanes) {
  if (!bf16) return load_some(reinterpret_cast<const float*>(row) + i, lanes);
  const auto* from = reinterpret_cast<const uint16_t*>(row) + i;
  if (lanes == W) return Vec::load_bf16(from);
  uint16_t buffer[W] = {};
  for (int j = 0; j < lanes; ++j) buffer[j] = from[j];
  return Vec::load_bf16(buffer);
}

// Values of `count` keys into column panels, so that the product reads them contiguously.
inline void unpack_values(const uint8_t* block, bool bf16, int64_t d, int count, int first_key, float* to) {
  const uint8_t* values = block + kPage * d * (bf16 ? 2 : 4);
  for (int j = 0; j < count; ++j)
    for (int64_t i = 0; i < round_up(d, kTileCols); i += W) {
      const int lanes = static_cast<int>(at_least(0, at_most(W, d - i)));
      const F v = lanes > 0 ? load_value(values + j * d * (bf16 ? 2 : 4), bf16, i, lanes) : Vec::zero();
      Vec::store(to + (i / kTileCols * kKeyTile + first_key + j) * kTileCols + i % kTileCols, v);
    }
}

template <int R>
void score_rows(const float* q, int64_t d, const float* keys, float* scores) {
  Chains<R, kScoreVecs> chains;
  chains.clear();
  for (int64_t i = 0; i < d; ++i) chains.advance_floats(q + i, d, keys + i * kPage);
  chains.store(scores, kKeyTile);
}

// o = o * rescale + weights . values over `keys` keys, for R rows and kTileCols columns.
template <int R>
void mix_rows(const float* weights, const float* rescale, const float* values, int64_t keys, float* o, int64_t o_stride) {
  Chains<R, 2> chains;
  chains.load(o, o_stride);
  unroll<R * 2>([&](auto i) INLINE_LAMBDA {
    chains.at[i / 2][i % 2] = Vec::mul(chains.at[i / 2][i % 2], Vec::set1(rescale[i / 2]));
  });
  for (int64_t j = 0; j < keys; ++j) chains.advance_floats(weights + j, kKeyTile, values + j * kTileCols);
  chains.store(o, o_stride);
}

// Keys from..to of one row, where a row sees more of the tile than its mates.
inline void mix_more(const float* weights, const float* values, int from, int to, float* o) {
  if (from >= to) return;
  Chains<1, 2> chains;
  chains.load(o, 0);
  for (int j = from; j < to; ++j) chains.advance_floats(weights + j, kKeyTile, values + j * kTileCols);
  chains.store(o, 0);
}

template <int R>
struct RowDispatch {
  static inline void score(int rows, const float* q, int64_t d, const float* keys, float* scores) {
    rows == R ? score_rows<R>(q, d, keys, scores) : RowDispatch<R - 1>::score(rows, q, d, keys, scores);
  }
  static inline void mix(int rows, const float* w, const float* rescale, const float* values, int64_t keys, float* o, int64_t stride) {
    rows == R ? mix_rows<R>(w, rescale, values, keys, o, stride) : RowDispatch<R - 1>::mix(rows, w, rescale, values, keys, o, stride);
  }
};
template <>
struct RowDispatch<0> {
  static inline void score(int, const float*, int64_t, const float*, float*) {}
  static inline void mix(int, const float*, const float*, const float*, int64_t, float*, int64_t) {}
};

// Scores of one row, `seen` of them valid, become weights; returns the factor for what was summed before.
inline float soften_row(float* scores, int seen, float& m, float& l) {
  for (int j = seen; j < kKeyTile; ++j) scores[j] = -__builtin_inff();
  F peak = Vec::load(scores);
  for (int j = W; j < kKeyTile; j += W) peak = Vec::max(Vec::load(scores + j), peak);
  const float top = Vec::largest(peak);
  const float next = top > m ? top : m;
  F total = Vec::zero();
  for (int j = 0; j < kKeyTile; j += W) {
    const F e = exp(Vec::sub(Vec::load(scores + j), Vec::set1(next)));
    Vec::store(scores + j, e);
    total = Vec::add(total, e);
  }
  float lanes[W];
  Vec::store(lanes, exp(Vec::sub(Vec::set1(m), Vec::set1(next))));
  m = next;
  l = l * lanes[0] + Vec::sum(total);
  return lanes[0];
}

// What a row sees of the 64 keys from `key` on.
inline int seen_of(int64_t position, int64_t key) {
  return static_cast<int>(at_least(0, at_most(kKeyTile, position + 1 - key)));
}

struct TileRows {
  const float* q;  // rows [head_dim]
  int64_t rows, group, position, head_dim;  // row r is at position + r / group
  int seen(int64_t r, int64_t key) const { return seen_of(position + r / group, key); }
};

void score_tile(const TileRows& t, int64_t r0, int64_t key, const float* const* pages, float* weights) {
  for (int64_t r = r0; r < t.rows; r += Vec::kScoreRows) {
    const int count = static_cast<int>(at_most(Vec::kScoreRows, t.rows - r));
    const int columns = t.seen(r + count - 1, key);
    for (int p = 0; p * kPage < columns; ++p)
      RowDispatch<Vec::kScoreRows>::score(count, t.q + r * t.head_dim, t.head_dim, pages[p], weights + r * kKeyTile + p * kPage);
  }
}

void mix_tile(const TileRows& t, int64_t r0, int64_t key, const AttendScratch& s) {
  for (int64_t r = r0; r < t.rows; r += Vec::kTileRows) {
    const int count = static_cast<int>(at_most(Vec::kTileRows, t.rows - r));
    const int common = t.seen(r, key);
    for (int64_t col = 0; col < s.o_stride; col += kTileCols) {
      const float* values = s.values + col * kKeyTile;
      float* o = s.o + r * s.o_stride + col;
      RowDispatch<Vec::kTileRows>::mix(count, s.weights + r * kKeyTile, s.rescale + r, values, common, o, s.o_stride);
      for (int i = 0; i < count; ++i)
        mix_more(s.weights + (r + i) * kKeyTile, values, common, t.seen(r + i, key), o + i * s.o_stride);
    }
  }
}

}  // namespace
