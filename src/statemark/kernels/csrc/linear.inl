// out[m][n] = sum over k of x[m][k] * w[n][k], with weights in panels of 32 columns. See tile.inl for the order.
//
// Few rows: weights stream from memory once, in the order in which they lie; each 16 KiB block of a panel meets all
// rows from L1. Many rows: a block of activations stays in L2 while blocks of weights pass over it. In both, the block
// of weights after the current one is asked for meanwhile: without that a tenth to a half of the rate is lost.

namespace {

constexpr int kMaxRows = Vec::kTileRows;
// Up to 48 rows (of 1024 to 4096) the activations stay near enough when all of k passes; above, they are kept in L2
// block by block (measured: the two meet between 32 and 64 rows).
constexpr int64_t kFewRows = 8 * kMaxRows;
// 192 rows x 256 deep x 4 bytes = 192 KiB of activations: less than half of a 512 KiB L2.
constexpr int64_t kBlockRows = 192 / kMaxRows * kMaxRows;
constexpr int kWidestTile = 4 * W <= kPanel ? 4 : 2;  // vectors of columns for one or two rows
// More rows than this are packed in turns, to bound the scratch (2048 x 4096 x 4 = 32 MiB).
constexpr int64_t kMaxPackedRows = 2048;
// Steps (of 128 bytes) between reading a weight and asking for it when one pass reads a panel (measured: 8 to 16 best).
constexpr int64_t kNear = 16;

// Rows are dealt evenly to tiles, so no tile is nearly empty.
struct RowTiles {
  int64_t rows, tiles;
  explicit RowTiles(int64_t m, int most = kMaxRows) : rows(m), tiles(ceil_div(m, most)) {}
  int64_t start(int64_t t) const { return t * (rows / tiles) + at_most(t, rows % tiles); }
  int count(int64_t t) const { return static_cast<int>(start(t + 1) - start(t)); }
};

// Where finished columns go: out = acc + bias, or out + (acc + bias).
struct Finish {
  float* out;
  int64_t out_stride;
  const float* bias;
  bool accumulate;
  int64_t cols;  // valid columns from here on

  template <int R, int NV>
  INLINE void apply(const Chains<R, NV>& chains) const {
    if (!bias && !accumulate && cols >= NV * W) return chains.store(out, out_stride);
    float sums[R * NV * W];
    chains.store(sums, NV * W);
    apply_slow(sums, R, NV * W);
  }
  void apply_slow(const float* sums, int rows, int width) const {
    for (int r = 0; r < rows; ++r)
      each_vector(at_most(cols, width), [&](int64_t i, int lanes) {
        float* p = out + r * out_stride + i;
        F y = load_some(sums + r * width + i, lanes);
        if (bias) y = Vec::add(y, load_some(bias + i, lanes));
        if (accumulate) y = Vec::add(load_some(p, lanes), y);
        store_some(p, y, lanes);
      });
  }
};

// Weights to ask memory for while a tile is busy: one line a step (two where a step reads a whole panel).
struct Ahead {
  const char* at;
  int64_t step;  // bytes
};

// One tile over one block of k. `c` carries the chains between blocks: null in = start at zero, finish = last block.
template <class Src, int R, int NV, bool kStream>
void run_tile(const void* acts, const void* words, int64_t steps, const float* c_in, float* c_out, int64_t c_stride,
              const Finish* finish, Ahead ahead) {
  const auto* a = static_cast<const typename Src::Act*>(acts);
  const auto* b = static_cast<const typename Src::Word*>(words);
  Chains<R, NV> chains;
  c_in ? chains.load(c_in, c_stride) : chains.clear();
  for (int64_t s = 0; s < steps; ++s) {
    Src::template step<R, NV>(a, b, chains);
    a += Src::kActStep;
    if (kStream) {
      __builtin_prefetch(ahead.at, 0, 3);
      if (NV * W == kPanel) __builtin_prefetch(ahead.at + 64, 0, 3);
      ahead.at += ahead.step;
    }
    b += kPanel;
  }
  finish ? finish->apply(chains) : chains.store(c_out, c_stride);
}

using TileFn = void (*)(const void*, const void*, int64_t, const float*, float*, int64_t, const Finish*, Ahead);

template <class Src, int NV, bool kStream, int R>
struct TileTable {
  static inline TileFn get(int rows) {
    return rows == R ? run_tile<Src, R, NV, kStream> : TileTable<Src, NV, kStream, R - 1>::get(rows);
  }
};
template <class Src, int NV, bool kStream>
struct TileTable<Src, NV, kStream, 0> {
  static inline TileFn get(int) { return nullptr; }
};

template <class Src, int NV, bool kStream>
inline TileFn tile_for(int rows) {
  return TileTable<Src, NV, kStream, kMaxRows>::get(rows);
}

// bf16 pairs of one row; an odd last column is paired with zero.
inline void pack_pairs(const float* x, int64_t depth, uint32_t* to) {
  for (int64_t i = 0; i + 1 < depth; i += 2) to[i / 2] = to_bf16(x[i]) | to_bf16(x[i + 1]) << 16;
  if (depth % 2) to[depth / 2] = to_bf16(x[depth - 1]);
}

// Rows of activations as a tile reads them: see kBlockDepth. `x` starts at k0.
void pack_block(const float* x, int64_t stride, int64_t rows, int64_t depth, bool pairs, float* to) {
  for (int64_t r = 0; r < rows; ++r, x += stride) {
    if (pairs)
      pack_pairs(x, depth, reinterpret_cast<uint32_t*>(to) + r * kBlockDepth / 2);
    else
      __builtin_memcpy(to + r * kBlockDepth, x, static_cast<size_t>(depth) * sizeof(float));
    if (depth % 2 && !pairs) to[r * kBlockDepth + depth] = 0.0f;
  }
}

struct Packed {
  const float* acts;
  bool pairs;
  RowTiles tiles;
  int64_t words(int64_t depth) const { return pairs ? depth / 2 : depth; }
  const float* at(int64_t row, int64_t k0) const { return acts + words(k0 * tiles.rows + row * kBlockDepth); }
};

inline Finish finish_at(const LinearArgs& args, int64_t row, int64_t col) {
  return {args.out + row * args.out_stride + col, args.out_stride, args.bias ? args.bias + col : nullptr,
          args.accumulate, args.w.rows - col};
}

template <class Src>
inline const uint32_t* words_at(const WeightView& w, int64_t col, int64_t k0) {
  return w.words + (col / kPanel * w.padded_cols + k0) / Src::kDepth * kPanel + col % kPanel;
}

// One panel of weights, read once, times all rows; NV vectors of columns at a time.
template <class Src, int NV>
void panel_times_rows(const LinearArgs& args, const Packed& packed, int64_t panel, float* carry) {
  // One pass over floats is 128 bytes a step, which the hardware's prefetcher follows better alone (measured).
  constexpr bool kStream = NV * W < kPanel || Src::kDepth == 2;
  const WeightView& w = args.w;
  const int64_t passes = packed.tiles.tiles * (kPanel / (NV * W));
  for (int64_t k0 = 0; k0 < w.padded_cols; k0 += kBlockDepth) {
    const int64_t steps = at_most(kBlockDepth, w.padded_cols - k0) / Src::kDepth;
    const bool first = k0 == 0, last = k0 + kBlockDepth >= w.padded_cols;
    const uint32_t* words = words_at<Src>(w, panel * kPanel, k0);
    // A block of a panel follows the one before it in memory, also from panel to panel. Past the end nothing happens.
    Ahead ahead{reinterpret_cast<const char*>(words + (passes == 1 ? kNear : steps) * kPanel), kPanel * 4 / passes};
    for (int64_t t = 0; t < packed.tiles.tiles; ++t) {
      const int64_t row = packed.tiles.start(t);
      const TileFn tile = tile_for<Src, NV, kStream>(packed.tiles.count(t));
      for (int64_t col = 0; col < kPanel && panel * kPanel + col < w.rows; col += NV * W) {
        const Finish finish = finish_at(args, row, panel * kPanel + col);
        float* c = carry + row * kPanel + col;
        tile(packed.at(row, k0), words + col, steps, first ? nullptr : c, c, kPanel, last ? &finish : nullptr, ahead);
        ahead.at += steps * ahead.step;
      }
    }
  }
}

template <class Src>
void few_rows(Context& context, const LinearArgs& args, const Packed& packed) {
  const int64_t panels = ceil_div(args.w.rows, kPanel), panel_bytes = args.w.padded_cols * kPanel * 4 / Src::kDepth;
  // About 256 KiB of weights a task: long enough to stream, short enough that threads end together.
  const int64_t share = ceil_div(panels, 4 * worker_count(context));
  const int64_t group = at_least(1, at_most(share, (256 << 10) / panel_bytes));
  parallel(context, ceil_div(panels, group), [&](int64_t task, int) {
    alignas(64) float carry[kFewRows * kPanel];
    for (int64_t p = task * group; p < at_most((task + 1) * group, panels); ++p) {
      // For one or two rows the chains of a whole panel fit the registers; beyond, two vectors of columns at a time.
      if (args.m <= 2)
        panel_times_rows<Src, kWidestTile>(args, packed, p, carry);
      else
        panel_times_rows<Src, 2>(args, packed, p, carry);
    }
  });
}

// Asks for part `t` of `parts` of the block of weights that will be read next.
template <class Src>
inline void ask_part(const uint32_t* words, int64_t steps, int64_t t, int64_t parts) {
  for (int64_t s = t * steps / parts; s < (t + 1) * steps / parts; ++s)
    for (int i = 0; i < kTileCols; i += 16) __builtin_prefetch(words + s * kPanel + i, 0, 2);
}

struct ManyRows {
  const LinearArgs& args;
  const Packed& packed;
  int64_t tile0, tile1, col0, col1;
};

// Rows of one block times a group of panels; `carry` holds chains between blocks of k, [column tile][row][kTileCols].
template <class Src>
void block_times_panels(const ManyRows& job, float* carry) {
  const WeightView& w = job.args.w;
  const RowTiles& tiles = job.packed.tiles;
  const int64_t row0 = tiles.start(job.tile0), rows = tiles.start(job.tile1) - row0;
  for (int64_t k0 = 0; k0 < w.padded_cols; k0 += kBlockDepth) {
    const int64_t steps = at_most(kBlockDepth, w.padded_cols - k0) / Src::kDepth;
    const bool first = k0 == 0, last = k0 + kBlockDepth >= w.padded_cols;
    for (int64_t col = job.col0; col < job.col1; col += kTileCols) {
      const uint32_t* words = words_at<Src>(w, col, k0);
      const bool wraps = col + kTileCols >= job.col1;
      const uint32_t* next =
          words_at<Src>(w, wraps ? job.col0 : col + kTileCols, wraps && !last ? k0 + kBlockDepth : k0);
      for (int64_t t = job.tile0; t < job.tile1; ++t) {
        const int64_t row = tiles.start(t);
        const Finish finish = finish_at(job.args, row, col);
        float* c = carry + (col - job.col0) * rows + (row - row0) * kTileCols;
        ask_part<Src>(next, steps, t - job.tile0, job.tile1 - job.tile0);
        tile_for<Src, 2, false>(tiles.count(t))(job.packed.at(row, k0), words, steps, first ? nullptr : c, c, kTileCols,
                                                last ? &finish : nullptr, Ahead{});
      }
    }
  }
}

template <class Src>
void many_rows(Context& context, const LinearArgs& args, const Packed& packed) {
  const int64_t tiles = packed.tiles.tiles, per_block = kBlockRows / kMaxRows, blocks = ceil_div(tiles, per_block);
  const int64_t panels = ceil_div(args.w.rows, kPanel);
  // 16 panels use a block of activations 16 to 32 times from L2; fewer where threads would end far apart.
  const int64_t group = at_least(1, at_most(16, panels * blocks / (8 * worker_count(context))));
  parallel(context, ceil_div(panels, group) * blocks, [&](int64_t task, int worker) {
    const int64_t tile0 = task % blocks * per_block, col0 = task / blocks * group * kPanel;
    const int64_t col1 = at_most(col0 + group * kPanel, round_up(args.w.rows, kTileCols));
    float* carry = worker_scratch(context, worker, static_cast<size_t>(kBlockRows * group * kPanel));
    block_times_panels<Src>({args, packed, tile0, at_most(tile0 + per_block, tiles), col0, col1}, carry);
  });
}

template <class Src>
void multiply(Context& context, const LinearArgs& args, const Packed& packed) {
  args.m <= kFewRows ? few_rows<Src>(context, args, packed) : many_rows<Src>(context, args, packed);
}

void linear_some(Context& context, const LinearArgs& args) {
  const WeightView& w = args.w;
  const bool bf16 = w.packing == Packing::kBfloat16;
  const int64_t blocks = ceil_div(w.padded_cols, kBlockDepth);
  Packed packed{shared_scratch(context, 0, static_cast<size_t>(args.m * blocks * kBlockDepth)), Vec::kDotBf16 && bf16,
                RowTiles(args.m)};
  const auto pack = [&](int64_t b, int) {
    const int64_t k0 = b * kBlockDepth;
    pack_block(args.x + k0, args.x_stride, args.m, at_most(kBlockDepth, w.cols - k0), packed.pairs,
               const_cast<float*>(packed.at(0, k0)));
  };
  if (args.m <= kMaxRows)
    for (int64_t b = 0; b < blocks; ++b) pack(b, 0);
  else
    parallel(context, blocks, pack);
#ifdef STATEMARK_DOT_BF16
  if (packed.pairs) return multiply<DotWeights>(context, args, packed);
#endif
  bf16 ? multiply<PairWeights>(context, args, packed) : multiply<FloatWeights>(context, args, packed);
}

}  // namespace
