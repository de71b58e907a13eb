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
constexpr int kRowStep = 16;  // rows of a tile of AMX: scratch has whole ones

struct AttendScratch {
  int64_t o_stride;
  float *keys, *values;                // one tile: [page][head_dim][16], [head_dim / kTileCols][64][kTileCols]
  float* weights;                      // [rows][64]: scores, then their exponentials
  float* rescale;                      // [rows]: for what was summed before the tile
  int32_t* seen;                       // [rows]: how many of the tile's keys a row sees
  float *o, *m, *l;                    // a segment: outputs not yet divided, largest score, sum of weights
  float *total_o, *total_m, *total_l;  // segments so far

  static size_t floats(int64_t rows, int64_t head_dim) {
    const int64_t stride = round_up(head_dim, kTileCols);
    rows = round_up(rows, kRowStep);
    return static_cast<size_t>(kKeyTile * (head_dim + stride) + rows * (kKeyTile + 2 * stride + 6));
  }
  AttendScratch(float* p, int64_t rows, int64_t head_dim) : o_stride(round_up(head_dim, kTileCols)) {
    rows = round_up(rows, kRowStep);
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
    seen = reinterpret_cast<int32_t*>(take(rows));
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

inline F load_value(const uint8_t* values, bool bf16, int64_t i, int lanes) {
  if (!bf16) return load_some(reinterpret_cast<const float*>(values) + i, lanes);
  const auto* from = reinterpret_cast<const uint16_t*>(values) + i;
  if (lanes == W) return Vec::load_bf16(from);
  uint16_t buffer[W] = {};
  for (int j = 0; j < lanes; ++j) buffer[j] = from[j];
  return Vec::load_bf16(buffer);
}

// Values of `count` keys into column panels, so that the product reads them contiguously.
template <bool kBf16>
void unpack_values(const uint8_t* block, int64_t d, int count, int first_key, float* to) {
  const uint8_t* values = block + kPage * d * (kBf16 ? 2 : 4);
  for (int64_t col = 0; col < d; col += kTileCols, to += kKeyTile * kTileCols)
    for (int j = 0; j < count; ++j) {
      float* row = to + (first_key + j) * kTileCols;
      if (col + kTileCols <= d) {
        unroll<2>([&](auto v)
                      INLINE_LAMBDA { Vec::store(row + v * W, load_value(values, kBf16, j * d + col + v * W, W)); });
        continue;
      }
      for (int v = 0; v < 2; ++v) {
        const int lanes = static_cast<int>(at_least(0, at_most(W, d - col - v * W)));
        Vec::store(row + v * W, lanes > 0 ? load_value(values, kBf16, j * d + col + v * W, lanes) : Vec::zero());
      }
    }
}

template <int R>
void score_rows(const float* q, int64_t d, const float* keys, float* scores, Ahead ahead) {
  Chains<R, kScoreVecs> chains;
  chains.clear();
  for (int64_t i = 0; i < d; ++i, ahead.at += ahead.step) {
    chains.advance_floats(q + i, d, keys + i * kPage);
    __builtin_prefetch(ahead.at, 0, 2);
  }
  chains.store(scores, kKeyTile);
}

// o = o * rescale + weights . values over `keys` keys, for R rows and kTileCols columns.
template <int R>
void mix_rows(const float* weights, const float* rescale, const float* values, int64_t keys, float* o, int64_t o_stride,
              Ahead ahead) {
  Chains<R, 2> chains;
  chains.load(o, o_stride);
  unroll<R * 2>([&](auto i) INLINE_LAMBDA {
    chains.at[i / 2][i % 2] = Vec::mul(chains.at[i / 2][i % 2], Vec::set1(rescale[i / 2]));
  });
  for (int64_t j = 0; j < keys; ++j, ahead.at += ahead.step) {
    chains.advance_floats(weights + j, kKeyTile, values + j * kTileCols);
    __builtin_prefetch(ahead.at, 0, 2);
  }
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
  static inline void score(int rows, const float* q, int64_t d, const float* keys, float* scores, Ahead ahead) {
    rows == R ? score_rows<R>(q, d, keys, scores, ahead) : RowDispatch<R - 1>::score(rows, q, d, keys, scores, ahead);
  }
  static inline void mix(int rows, const float* w, const float* rescale, const float* values, int64_t keys, float* o,
                         int64_t stride, Ahead ahead) {
    rows == R ? mix_rows<R>(w, rescale, values, keys, o, stride, ahead)
              : RowDispatch<R - 1>::mix(rows, w, rescale, values, keys, o, stride, ahead);
  }
};
template <>
struct RowDispatch<0> {
  static inline void score(int, const float*, int64_t, const float*, float*, Ahead) {}
  static inline void mix(int, const float*, const float*, const float*, int64_t, float*, int64_t, Ahead) {}
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

// Rows [first, rows) see at least one key of a tile; those before see none.
struct TileRows {
  const float* q;  // [rows][head_dim]
  int64_t first, rows, head_dim;
};

// Where the tile after the current one lies, or null: asked for while this one is busy, as pages are scattered in
// memory and no hardware prefetcher follows them. Its values are asked for with the scores, its keys with the outputs,
// a little at each step: a burst would fill the miss buffers and stall.
struct NextTile {
  const char* pages[kTilePages];
  int64_t bytes;  // of the keys of a page, and of its values, which follow

  // Part `part` of `parts` of the keys (first = 0) or values (first = bytes) of a page, over `steps` steps.
  Ahead ahead(int page, int64_t first, int64_t part, int64_t parts, int64_t steps, const void* harmless) const {
    if (!pages[page]) return {static_cast<const char*>(harmless), 0};
    return {pages[page] + first + part * bytes / parts, bytes / parts / steps};
  }
};

// A page of keys (16 KiB for a head of 256) stays in L1 while all rows pass; the same for a column panel of values.
void score_tile(const TileRows& t, const float* const* pages, const NextTile& next, const AttendScratch& s) {
  const int64_t parts = ceil_div(t.rows - t.first, Vec::kScoreRows);
  for (int p = 0; p * kPage < s.seen[t.rows - 1]; ++p)
    for (int64_t r = t.first; r < t.rows; r += Vec::kScoreRows) {
      const int count = static_cast<int>(at_most(Vec::kScoreRows, t.rows - r));
      if (p * kPage >= s.seen[r + count - 1]) continue;
      const float* q = t.q + r * t.head_dim;
      const Ahead ahead = next.ahead(p, next.bytes, (r - t.first) / Vec::kScoreRows, parts, t.head_dim, q);
      RowDispatch<Vec::kScoreRows>::score(count, q, t.head_dim, pages[p], s.weights + r * kKeyTile + p * kPage, ahead);
    }
}

void mix_tile(const TileRows& t, const NextTile& next, const AttendScratch& s) {
  const int64_t parts = ceil_div(t.rows - t.first, Vec::kTileRows) * ceil_div(s.o_stride, kTileCols);
  int64_t part = 0;
  for (int64_t col = 0; col < s.o_stride; col += kTileCols) {
    const float* values = s.values + col * kKeyTile;
    for (int64_t r = t.first; r < t.rows; r += Vec::kTileRows) {
      const int count = static_cast<int>(at_most(Vec::kTileRows, t.rows - r));
      const int common = s.seen[r], most = s.seen[r + count - 1];
      float* o = s.o + r * s.o_stride + col;
      const int64_t page = part * kTilePages / parts, begin = ceil_div(page * parts, kTilePages);
      const int64_t share = ceil_div((page + 1) * parts, kTilePages) - begin;
      const Ahead ahead = next.ahead(static_cast<int>(page), 0, part++ - begin, share, kKeyTile, o);
      RowDispatch<Vec::kTileRows>::mix(count, s.weights + r * kKeyTile, s.rescale + r, values, common, o, s.o_stride,
                                       ahead);
      for (int i = 0; common < most && i < count; ++i)
        mix_more(s.weights + (r + i) * kKeyTile, values, common, s.seen[r + i], o + i * s.o_stride);
    }
  }
}

}  // namespace
