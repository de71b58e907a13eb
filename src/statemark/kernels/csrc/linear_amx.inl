// out[m][n] = sum over k of x[m][k] * w[n][k] with bf16 weights and AMX: the order is that of dot_bf16 (amx.inl), in blocks
// of 32 k from the first to the last, the last one padded with zeros.
//
// Rows go in strips of 32: two tiles of activations times two of weights (a panel) give four tiles of sums, so each tile
// that is loaded is used twice. Several strips: 512 k of a panel (32 KiB of the 48 KiB L1) stay in L1 while the strips
// pass by it from L2; sums wait in memory between blocks of k. One strip: weights stream from memory.

namespace {

constexpr int64_t kStripRows = 2 * kAmxRows;
constexpr int64_t kBlockSteps = 512 / kAmxDepth;     // of 32 k, where several strips share a panel
constexpr int64_t kBlockStrips = 256 / kStripRows;   // strips that stay in L2: with 1,024 columns 512 KiB
constexpr int64_t kStepBytes = kAmxWords * kPanel * 4;  // of weights
constexpr int kSumFloats = kAmxRows * W;             // a tile of sums
constexpr int64_t kAmxAhead = 4 * kStepBytes;        // from reading weights to asking for them, where they are read once

// Activations as pairs of bf16: [strip][step][tile][row][16 words]. Up to 16 rows lie closer: one tile of `rows`.
struct AmxActs {
  uint32_t* words;
  int64_t rows, steps;

  int tile_rows() const { return static_cast<int>(at_most(rows, kAmxRows)); }
  int64_t strips() const { return ceil_div(rows, kStripRows); }
  int64_t step_words() const { return rows <= kAmxRows ? rows * W : kStripRows * W; }
  uint32_t* at(int64_t strip, int64_t step) const { return words + (strip * steps + step) * step_words(); }
};

void pack_strip(const LinearArgs& args, const AmxActs& acts, int64_t strip, int64_t step0, int64_t step1) {
  const int64_t row0 = strip * kStripRows, rows = at_most(kStripRows, args.m - row0);
  for (int64_t step = step0; step < step1; ++step) {
    const int64_t k0 = step * kAmxDepth, depth = at_most(kAmxDepth, args.w.cols - k0);
    const float* x = args.x + row0 * args.x_stride + k0;
    uint32_t* to = acts.at(strip, step);
    for (int64_t r = 0; r < rows; ++r, x += args.x_stride, to += W) {
      if (depth < kAmxDepth) __builtin_memset(to, 0, W * sizeof *to);
      pack_pairs(x, depth, to);
    }
  }
}

AmxActs pack_amx(Context& context, const LinearArgs& args) {
  AmxActs acts{nullptr, args.m, ceil_div(args.w.cols, kAmxDepth)};
  acts.words = reinterpret_cast<uint32_t*>(
      shared_scratch(context, 0, static_cast<size_t>(acts.strips() * acts.steps * acts.step_words())));
  const int64_t parts = ceil_div(acts.steps, kBlockSteps);
  const auto pack = [&](int64_t task, int) {
    const int64_t step = task % parts * kBlockSteps;
    pack_strip(args, acts, task / parts, step, at_most(step + kBlockSteps, acts.steps));
  };
  if (args.m <= kAmxRows)
    for (int64_t task = 0; task < parts; ++task) pack(task, 0);
  else
    parallel(context, acts.strips() * parts, pack);
  return acts;
}

// A strip times a block of a panel. `sums` carries four tiles between blocks.
struct StripStep {
  const uint32_t *acts, *words;
  int64_t steps, act_step;
  const uint32_t* tail;  // of a last step with less than 32 k: weights padded with zeros
  bool first;
  float* sums;
};

template <bool kTwo, bool kStream>
INLINE void strip_times_block(Tiles& tiles, const StripStep& s, Ahead ahead) {
  constexpr int64_t kTile = kSumFloats;
  if (s.first) {
    tiles.clear<0>(), tiles.clear<1>();
    if (kTwo) tiles.clear<2>(), tiles.clear<3>();
  } else {
    tiles.load<0>(s.sums, 64), tiles.load<1>(s.sums + kTile, 64);
    if (kTwo) tiles.load<2>(s.sums + 2 * kTile, 64), tiles.load<3>(s.sums + 3 * kTile, 64);
  }
  const auto step = [&](const uint32_t* a, const uint32_t* b) INLINE_LAMBDA {
    kStream ? tiles.load<4>(a, 64) : tiles.load_once<4>(a, 64);
    tiles.load<6>(b, kPanel * 4);
    tiles.dot_bf16<0, 4, 6>();
    tiles.load<7>(b + W, kPanel * 4);
    tiles.dot_bf16<1, 4, 7>();
    if (kTwo) {
      kStream ? tiles.load<5>(a + kAmxRows * W, 64) : tiles.load_once<5>(a + kAmxRows * W, 64);
      tiles.dot_bf16<2, 5, 6>();
      tiles.dot_bf16<3, 5, 7>();
    }
  };
  const uint32_t *a = s.acts, *b = s.words;
  for (int64_t i = s.tail ? 1 : 0; i < s.steps; ++i, a += s.act_step, b += kAmxWords * kPanel) {
    for (const char* at = ahead.at; at < ahead.at + ahead.step; at += 64) __builtin_prefetch(at, 0, kStream ? 3 : 2);
    ahead.at += ahead.step;
    step(a, b);
  }
  if (s.tail) step(a, s.tail);
  tiles.store<0>(s.sums, 64), tiles.store<1>(s.sums + kTile, 64);
  if (kTwo) tiles.store<2>(s.sums + 2 * kTile, 64), tiles.store<3>(s.sums + 3 * kTile, 64);
}

INLINE void finish_strip(const LinearArgs& args, int64_t strip, int64_t panel, const float* sums) {
  for (int t = 0; t < 4; ++t) {
    const int64_t row = strip * kStripRows + t / 2 * kAmxRows, col = panel * kPanel + t % 2 * W;
    if (row < args.m && col < args.w.rows)
      finish_at(args, row, col).apply_slow(sums + t * kSumFloats, static_cast<int>(at_most(kAmxRows, args.m - row)), W);
  }
}

// Strips [strip0, strip1) times panels [panel0, panel1). `sums`: room for all their tiles.
void strips_times_panels(const LinearArgs& args, const AmxActs& acts, int64_t strip0, int64_t strip1, int64_t panel0,
                         int64_t panel1, float* sums) {
  const WeightView& w = args.w;
  const int64_t strips = strip1 - strip0, panel_words = w.padded_cols / 2 * kPanel;
  const bool stream = strips == 1;
  const int64_t depth = stream ? acts.steps : kBlockSteps;
  Tiles tiles(acts.tile_rows());
  alignas(64) uint32_t tail[kAmxWords * kPanel];
  for (int64_t step0 = 0; step0 < acts.steps; step0 += depth) {
    const int64_t steps = at_most(depth, acts.steps - step0);
    const bool last = step0 + depth >= acts.steps;
    const int64_t tail_words = last ? w.padded_cols / 2 % kAmxWords * kPanel : 0;
    for (int64_t panel = panel0; panel < panel1; ++panel) {
      const uint32_t* words = w.words + panel * panel_words + step0 * kAmxWords * kPanel;
      if (tail_words) {
        __builtin_memset(tail, 0, sizeof tail);
        __builtin_memcpy(tail, words + (steps - 1) * kAmxWords * kPanel, static_cast<size_t>(tail_words) * 4);
      }
      // What is read next: the following panel, or the next block of the first one. Past the end nothing happens.
      const uint32_t* next = panel + 1 < panel1 || last ? words + panel_words
                                                        : words + (panel0 - panel) * panel_words + depth * kAmxWords * kPanel;
      Ahead ahead{stream ? reinterpret_cast<const char*>(words) + kAmxAhead : reinterpret_cast<const char*>(next),
                  round_up(ceil_div(kStepBytes, strips), 64)};
      for (int64_t strip = strip0; strip < strip1; ++strip) {
        float* mine = sums + ((panel - panel0) * strips + strip - strip0) * 4 * kSumFloats;
        const StripStep s{acts.at(strip, step0), words, steps, acts.step_words(), tail_words ? tail : nullptr, step0 == 0,
                          mine};
        const bool two = args.m - strip * kStripRows > kAmxRows;
        if (stream)
          two ? strip_times_block<true, true>(tiles, s, ahead) : strip_times_block<false, true>(tiles, s, ahead);
        else
          two ? strip_times_block<true, false>(tiles, s, ahead) : strip_times_block<false, false>(tiles, s, ahead);
        if (last) finish_strip(args, strip, panel, mine);
        ahead.at += steps * ahead.step;
      }
    }
  }
}

void linear_amx(Context& context, const LinearArgs& args) {
  const AmxActs acts = pack_amx(context, args);
  const int64_t strips = acts.strips(), blocks = ceil_div(strips, kBlockStrips), panels = ceil_div(args.w.rows, kPanel);
  // One strip: about 256 KiB of weights a task, long enough to stream, short enough that threads end together. Several: 16
  // panels use activations that often from L2.
  const int64_t most = strips == 1 ? ceil_div(256 << 10, acts.steps * kStepBytes) : 16;
  const int64_t group = at_least(1, at_most(most, panels * blocks / (8 * worker_count(context))));
  parallel(context, ceil_div(panels, group) * blocks, [&](int64_t task, int worker) {
    const int64_t strip0 = task % blocks * kBlockStrips, strip1 = at_most(strip0 + kBlockStrips, strips);
    const int64_t panel0 = task / blocks * group, panel1 = at_most(panel0 + group, panels);
    float* sums = worker_scratch(context, worker, static_cast<size_t>((strip1 - strip0) * group * 4 * kSumFloats));
    strips_times_panels(args, acts, strip0, strip1, panel0, panel1, sums);
  });
}

}  // namespace
