// out[m][n] = sum over k of x[m][k] * w[n][k], with weights in panels of 32 columns. See tile.inl for the order.
//
// Many rows: activations are packed in tiles; a block of activations stays in L2 while a block of weights, unpacked to
// floats in L1, passes over it. Few rows: weights are unpacked in registers and read from memory exactly once.

namespace {

constexpr int kTileCols = 2 * W;                   // columns of a tile
constexpr int kSubTiles = kPanel / kTileCols;      // tiles across a panel
constexpr int kMaxRows = Vec::kTileRows;
// 256 deep: a weight block of 16 columns is 16 KiB, half of the smallest L1, and a tile of 6 rows adds 6 KiB.
constexpr int64_t kBlockDepth = 256;
// 192 rows x 256 deep x 4 bytes = 192 KiB of activations: less than half of a 512 KiB L2.
constexpr int64_t kBlockRows = 192;
// Rows handled by the kernel that unpacks in registers; above, unpacking once into scratch is faster (measured).
constexpr int64_t kFewRows = 4 * kMaxRows;
// More rows than this are packed in turns, to bound the scratch (2048 x 4096 x 4 = 32 MiB).
constexpr int64_t kMaxPackedRows = 2048;

// Rows are dealt evenly to tiles, so no tile is nearly empty.
struct RowTiles {
  int64_t rows, tiles;
  explicit RowTiles(int64_t m) : rows(m), tiles(ceil_div(m, kMaxRows)) {}
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
  inline void apply(const F (&acc)[R][NV]) const {
    for (int v = 0; v < NV; ++v) {
      const int lanes = static_cast<int>(at_most(cols - v * W, W));
      if (lanes <= 0) return;
      const F b = bias ? load_some(bias + v * W, lanes) : Vec::zero();
      for (int r = 0; r < R; ++r) {
        float* p = out + r * out_stride + v * W;
        F y = bias ? Vec::add(acc[r][v], b) : acc[r][v];
        if (accumulate) y = Vec::add(load_some(p, lanes), y);
        store_some(p, y, lanes);
      }
    }
  }
};

// One tile over one block of k. `c` carries the chains between blocks: null in = start at zero, finish = last block.
template <class Src, int R, int NV>
void run_tile(const void* acts, const void* words, int64_t word_stride, int64_t steps, const float* c_in, float* c_out,
              int64_t c_stride, const Finish* finish) {
  const auto* a = static_cast<const typename Src::Act*>(acts);
  const auto* b = static_cast<const typename Src::Word*>(words);
  F acc[R][NV];
  load_tile<R, NV>(acc, c_in, c_stride);
  for (int64_t s = 0; s < steps; ++s) {
    Src::template step<R, NV>(a, b, acc);
    a += R * Src::kActs;
    b += word_stride;
  }
  if (finish)
    finish->apply<R, NV>(acc);
  else
    store_tile<R, NV>(acc, c_out, c_stride);
}

using TileFn = void (*)(const void*, const void*, int64_t, int64_t, const float*, float*, int64_t, const Finish*);

template <class Src, int NV, int R>
struct TileTable {
  static inline TileFn get(int rows) { return rows == R ? run_tile<Src, R, NV> : TileTable<Src, NV, R - 1>::get(rows); }
};
template <class Src, int NV>
struct TileTable<Src, NV, 0> {
  static inline TileFn get(int) { return nullptr; }
};

template <class Src, int NV>
inline TileFn tile_for(int rows) {
  return TileTable<Src, NV, kMaxRows>::get(rows);
}

// Activations of `count` rows, k-major: [padded_k][count] floats, or [padded_k / 2][count] bf16 pairs.
void pack_rows(const float* x, int64_t stride, int count, int64_t k, int64_t padded_k, bool pairs, float* to) {
  if (pairs) {
    auto* words = reinterpret_cast<uint32_t*>(to);
    for (int r = 0; r < count; ++r) {
      const float* row = x + r * stride;
      for (int64_t i = 0; i < padded_k; i += 2) {
        const uint32_t low = to_bf16(row[i]), high = i + 1 < k ? to_bf16(row[i + 1]) : 0u;
        words[(i / 2) * count + r] = low | high << 16;
      }
    }
    return;
  }
  for (int64_t i = 0; i < k; ++i)
    for (int r = 0; r < count; ++r) to[i * count + r] = x[r * stride + i];
  for (int64_t i = k; i < padded_k; ++i)
    for (int r = 0; r < count; ++r) to[i * count + r] = 0.0f;
}

// A block of `depth` k of one sub-tile as floats [depth][kTileCols]: contiguous, so that it fills L1 evenly.
void unpack_block(const WeightView& w, int64_t panel, int64_t k0, int64_t depth, int sub, float* to) {
  if (w.bf16) {
    const uint32_t* from = w.words + (panel * w.padded_cols + k0) / 2 * kPanel + sub * kTileCols;
    for (int64_t i = 0; i < depth; i += 2, from += kPanel, to += 2 * kTileCols)
      for (int v = 0; v < kTileCols; v += W) {
        const I words = Vec::load_words(from + v);
        Vec::store(to + v, Vec::low_bf16(words));
        Vec::store(to + kTileCols + v, Vec::high_bf16(words));
      }
    return;
  }
  const float* from = reinterpret_cast<const float*>(w.words) + (panel * w.padded_cols + k0) * kPanel + sub * kTileCols;
  for (int64_t i = 0; i < depth; ++i, from += kPanel, to += kTileCols)
    for (int v = 0; v < kTileCols; v += W) Vec::store(to + v, Vec::load(from + v));
}

struct Packed {
  const float* acts;  // 4 bytes an element for every format
  int64_t depth;      // elements a row: padded_k, or padded_k / 2 pairs
  RowTiles tiles;
};

inline Finish finish_at(const LinearArgs& args, int64_t row, int64_t col) {
  return {args.out + row * args.out_stride + col, args.out_stride, args.bias ? args.bias + col : nullptr,
          args.accumulate, args.w.rows - col};
}

template <class Src>
inline const uint32_t* panel_words(const WeightView& w, int64_t panel, int64_t k0) {
  return w.words + (panel * w.padded_cols + k0) / Src::kDepth * kPanel;
}

// One panel of weights, read once, times all rows; NV vectors of columns at a time.
template <class Src, int NV>
void few_rows_panel(const LinearArgs& args, const Packed& packed, int64_t panel, float* carry) {
  const WeightView& w = args.w;
  const bool one_pass = packed.tiles.tiles == 1 && NV * W == kPanel;  // nothing is read twice: no need for blocks
  const int64_t block = one_pass ? w.padded_cols : kBlockDepth;
  for (int64_t k0 = 0; k0 < w.padded_cols; k0 += block) {
    const int64_t depth = at_most(block, w.padded_cols - k0);
    const bool first = k0 == 0, last = k0 + depth == w.padded_cols;
    for (int64_t t = 0; t < packed.tiles.tiles; ++t) {
      const int64_t row = packed.tiles.start(t);
      const int count = packed.tiles.count(t);
      const float* acts = packed.acts + row * packed.depth + k0 / Src::kDepth * Src::kActs * count;
      for (int col = 0; col < kPanel && panel * kPanel + col < w.rows; col += NV * W) {
        const Finish finish = finish_at(args, row, panel * kPanel + col);
        float* c = carry + row * kPanel + col;
        tile_for<Src, NV>(count)(acts, panel_words<Src>(w, panel, k0) + col, kPanel, depth / Src::kDepth,
                                 first ? nullptr : c, c, kPanel, last ? &finish : nullptr);
      }
    }
  }
}

template <class Src>
void few_rows(Context& context, const LinearArgs& args, const Packed& packed) {
  const int64_t panels = ceil_div(args.w.rows, kPanel);
  // About 256 KiB of weights a task: long enough to stream, short enough to balance.
  const int64_t panel_bytes = args.w.padded_cols * kPanel * (args.w.bf16 ? 2 : 4);
  const int64_t group = at_least(1, at_most(ceil_div(panels, 2 * worker_count(context)), (256 << 10) / panel_bytes));
  parallel(context, ceil_div(panels, group), [&](int64_t task, int) {
    alignas(64) float carry[kFewRows * kPanel];
    for (int64_t p = task * group; p < at_most((task + 1) * group, panels); ++p) {
      // Up to 3 rows a whole panel fits the accumulators; beyond, two vectors of columns at a time.
      if (kSubTiles > 1 && packed.tiles.count(0) <= 3)
        few_rows_panel<Src, kSubTiles == 1 ? 2 : 4>(args, packed, p, carry);
      else
        few_rows_panel<Src, 2>(args, packed, p, carry);
    }
  });
}

struct ManyRows {
  const LinearArgs& args;
  const Packed& packed;
  int64_t tiles_per_block, group, panels;
};

// Rows of one block times a group of panels. `scratch`: the unpacked weight block, then the carried chains.
template <class Src, bool kUnpack>
void many_rows_task(const ManyRows& job, int64_t row_block, int64_t panel_group, float* scratch) {
  const LinearArgs& args = job.args;
  const WeightView& w = args.w;
  const RowTiles& tiles = job.packed.tiles;
  const int64_t tile0 = row_block * job.tiles_per_block, tile1 = at_most(tile0 + job.tiles_per_block, tiles.tiles);
  const int64_t panel0 = panel_group * job.group, panel1 = at_most(panel0 + job.group, job.panels);
  const int64_t row0 = tiles.start(tile0), carry_stride = (panel1 - panel0) * kPanel;
  float* carry = scratch + kBlockDepth * kTileCols;
  for (int64_t k0 = 0; k0 < w.padded_cols; k0 += kBlockDepth) {
    const int64_t depth = at_most(kBlockDepth, w.padded_cols - k0);
    const bool first = k0 == 0, last = k0 + depth == w.padded_cols;
    for (int64_t col = panel0 * kPanel; col < panel1 * kPanel && col < w.rows; col += kTileCols) {
      const int64_t panel = col / kPanel, sub = col % kPanel;
      const void* words = panel_words<Src>(w, panel, k0) + sub;
      if (kUnpack) {
        unpack_block(w, panel, k0, depth, static_cast<int>(sub / kTileCols), scratch);
        words = scratch;
      }
      for (int64_t t = tile0; t < tile1; ++t) {
        const int64_t row = tiles.start(t);
        const int count = tiles.count(t);
        const Finish finish = finish_at(args, row, col);
        float* c = carry + (row - row0) * carry_stride + (col - panel0 * kPanel);
        const float* acts = job.packed.acts + row * job.packed.depth + k0 / Src::kDepth * Src::kActs * count;
        tile_for<Src, 2>(count)(acts, words, kUnpack ? kTileCols : kPanel, depth / Src::kDepth, first ? nullptr : c, c,
                                carry_stride, last ? &finish : nullptr);
      }
    }
  }
}

template <class Src, bool kUnpack>
void many_rows(Context& context, const LinearArgs& args, const Packed& packed) {
  const int64_t panels = ceil_div(args.w.rows, kPanel);
  const int64_t per_block = kBlockRows / kMaxRows, row_blocks = ceil_div(packed.tiles.tiles, per_block);
  // 16 panels reuse a block of activations 32 times from L2; fewer where that would leave threads without work.
  const int64_t wanted = ceil_div(4 * worker_count(context), row_blocks);
  const int64_t group = at_least(1, at_most(16, panels / wanted));
  const ManyRows job{args, packed, per_block, group, panels};
  const int64_t groups = ceil_div(panels, group);
  parallel(context, row_blocks * groups, [&](int64_t task, int worker) {
    float* scratch = worker_scratch(context, worker, kBlockDepth * kTileCols + kBlockRows * group * kPanel);
    many_rows_task<Src, kUnpack>(job, task % row_blocks, task / row_blocks, scratch);
  });
}

void linear_some(Context& context, const LinearArgs& args) {
  const WeightView& w = args.w;
  const bool pairs = Vec::kDotBf16 && w.bf16;
  const int64_t depth = pairs ? w.padded_cols / 2 : w.padded_cols;
  const RowTiles tiles(args.m);
  float* acts = shared_scratch(context, 0, static_cast<size_t>(args.m * depth));
  const auto pack = [&](int64_t t, int) {
    const int64_t row = tiles.start(t);
    pack_rows(args.x + row * args.x_stride, args.x_stride, tiles.count(t), w.cols, w.padded_cols, pairs,
              acts + row * depth);
  };
  if (args.m <= kMaxRows)
    pack(0, 0);
  else
    parallel(context, tiles.tiles, pack);
  const Packed packed{acts, depth, tiles};
  const bool few = args.m <= kFewRows;
#ifdef STATEMARK_DOT_BF16
  if (pairs && few) return few_rows<DotWeights>(context, args, packed);
  if (pairs) return many_rows<DotWeights, false>(context, args, packed);
#endif
  if (few && w.bf16) return few_rows<PairWeights>(context, args, packed);
  if (few) return few_rows<FloatWeights>(context, args, packed);
  return many_rows<FloatWeights, (kSubTiles > 1)>(context, args, packed);
}

void linear(Context& context, const LinearArgs& args) {
  for (int64_t row = 0; row < args.m; row += kMaxPackedRows) {
    LinearArgs part = args;
    part.x += row * args.x_stride;
    part.out += row * args.out_stride;
    part.m = at_most(kMaxPackedRows, args.m - row);
    linear_some(context, part);
  }
}

}  // namespace
