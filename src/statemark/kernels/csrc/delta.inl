// The delta rule over a strip of value columns, up to eight tokens at a time, with the bits of one token at a time.
//
// Tokens are told apart by their position alone: eight of them, from a multiple of eight on, are a fold. A state stands
// still during a fold; what its tokens add waits beside it as pairs (key, delta), and is added when the fold is full.
// So for token i of a fold, with the state S at its start, decays g, and R(i, j) = g(j+1) ... g(i), G(i) = g(0) ... g(i):
//   delta(i) = beta (v - (G(i) k.S + sum over j < i of R(i, j) (k.k(j)) delta(j)))
//   out(i)   = G(i) q.S + sum over j <= i of R(i, j) (q.k(j)) delta(j)
//   S        = G(7) S + sum over j of R(7, j) k(j) (x) delta(j)     after the eighth
// That is the recurrence S = g S + k (x) delta in another order of sums. The state is read for several tokens at once
// and written once in eight; every k.S and q.S is one chain over the key dimension, however many tokens share a read.

namespace {

constexpr int kStrip = 32;
constexpr int kStripVecs = kStrip / W;
constexpr int kFoldRows = Vec::kTileRows >= 8 ? 8 : 4;  // rows of the state in registers; divides every key dimension

// A strip of a state: row k of it is at state + k * stride.
struct Strip {
  float* state;
  int64_t stride, key_dim;
};

// What a value head's tokens of a fold bring, row i for token i. Rows of k and q alternate: q(0), k(0), q(1), ...
struct Fold {
  const float* queries_keys;  // [8][2][key_dim]
  const float* decayed_keys;  // [8][key_dim]: R(7, j) k(j)
  const float *from_state;    // [8]: G
  const float *to_delta, *to_out;  // [8][8]: R k.k and R q.k
  const float* beta;               // [8]
};

template <int R, int NV>
void read_rows(const float* x, const Strip& strip, int64_t col, float* out) {
  Chains<R, NV> chains;
  chains.clear();
  const float* s = strip.state + col;
  for (int64_t k = 0; k < strip.key_dim; ++k, s += strip.stride) chains.advance_floats(x + k, strip.key_dim, s);
  chains.store(out + col, kStrip);
}

template <int R, int NV>
inline void read_some(int rows, const float* x, const Strip& strip, int64_t col, float* out) {
  if (rows == R) return read_rows<R, NV>(x, strip, col, out);
  if constexpr (R > 1) read_some<R - 1, NV>(rows, x, strip, col, out);
}

// out [rows][kStrip] = x [rows][key_dim] . S
inline void read_state(int64_t rows, const float* x, const Strip& strip, float* out) {
  constexpr int kWide = kStripVecs < 4 ? kStripVecs : 4;
  const RowTiles tiles(rows);
  for (int64_t t = 0; t < tiles.tiles; ++t) {
    const int64_t row = tiles.start(t);
    const float* mine = x + row * strip.key_dim;
    if (rows <= 2) {
      for (int64_t col = 0; col < kStrip; col += kWide * W) read_some<2, kWide>(tiles.count(t), mine, strip, col, out);
      continue;
    }
    for (int64_t col = 0; col < kStrip; col += 2 * W)
      read_some<kMaxRows, 2>(tiles.count(t), mine, strip, col, out + row * kStrip);
  }
}

// Adds what waits: deltas [8][delta_stride].
inline void fold_state(const Fold& fold, const float* deltas, int64_t delta_stride, const Strip& strip) {
  const F decay = Vec::set1(fold.from_state[kFold - 1]);
  for (int64_t k = 0; k < strip.key_dim; k += kFoldRows)
    for (int64_t col = 0; col < kStrip; col += 2 * W) {
      float* s = strip.state + k * strip.stride + col;
      Chains<kFoldRows, 2> rows;
      rows.load(s, strip.stride);
      unroll<kFoldRows * 2>(
          [&](auto i) INLINE_LAMBDA { rows.at[i / 2][i % 2] = Vec::mul(rows.at[i / 2][i % 2], decay); });
      for (int64_t j = 0; j < kFold; ++j)
        rows.advance_floats(fold.decayed_keys + j * strip.key_dim + k, 1, deltas + j * delta_stride + col);
      rows.store(s, strip.stride);
    }
}

// Tokens [from, to) of a fold. `deltas` holds values where tokens are new and deltas of those before; rows become
// deltas and outputs are written.
inline void step_fold(const Fold& fold, int from, int to, const Strip& strip, float* deltas, float* out,
                      int64_t stride) {
  alignas(64) float reads[2 * kFold * kStrip];
  read_state(2 * (to - from), fold.queries_keys + 2 * from * strip.key_dim, strip, reads);
  for (int i = from; i < to; ++i) {
    const float *of_query = reads + 2 * (i - from) * kStrip, *of_key = of_query + kStrip;
    const F decay = Vec::set1(fold.from_state[i]), beta = Vec::set1(fold.beta[i]);
    F sum[kStripVecs];
    unroll<kStripVecs>([&](auto n) INLINE_LAMBDA { sum[n] = Vec::mul(decay, Vec::load(of_key + n * W)); });
    const auto add = [&](int j, float weight) INLINE_LAMBDA {
      const F by = Vec::set1(weight);
      unroll<kStripVecs>(
          [&](auto n) INLINE_LAMBDA { sum[n] = Vec::fma(by, Vec::load(deltas + j * stride + n * W), sum[n]); });
    };
    for (int j = 0; j < i; ++j) add(j, fold.to_delta[i * kFold + j]);
    unroll<kStripVecs>([&](auto n) INLINE_LAMBDA {
      float* v = deltas + i * stride + n * W;
      Vec::store(v, Vec::mul(Vec::sub(Vec::load(v), sum[n]), beta));
      sum[n] = Vec::mul(decay, Vec::load(of_query + n * W));
    });
    for (int j = 0; j <= i; ++j) add(j, fold.to_out[i * kFold + j]);
    unroll<kStripVecs>([&](auto n) INLINE_LAMBDA { Vec::store(out + i * stride + n * W, sum[n]); });
  }
  if (to == kFold) fold_state(fold, deltas, stride, strip);
}

}  // namespace
