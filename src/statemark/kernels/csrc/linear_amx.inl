// out[m][n] = sum over k of x[m][k] * w[n][k] with bf16 weights and AMX: the order is that of dot_bf16 (amx.inl), in blocks
// of 32 k from the first to the last, the last one padded with zeros.
//
// Rows go in strips of 32: two tiles of activations times two of weights (a panel) give four tiles of sums, so each tile
// that is loaded is used twice. Several strips: 512 k of a panel (32 KiB of the 48 KiB L1) stay in L1 while the strips
// pass by it from L2; sums wait in memory between blocks of k. One strip: weights stream from memory.

namespace {

constexpr int64_t kStripRows = 2 * kAmxRows;
constexpr int64_t kBlockSteps = 512 / kAmxDepth;    // of 32 k, where several strips share a panel
constexpr int64_t kBlockStrips = 256 / kStripRows;  // strips that stay in L2: with 1,024 columns 512 KiB
constexpr int kSumFloats = kAmxRows * W;            // a tile of sums
// Words between reading weights and asking for them, where they are read once: four steps.
constexpr int64_t kAmxAhead = 4 * kAmxWords * kPanel;

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
  const int64_t row0 = strip * kStripRows;
  for (int64_t r = 0; r < at_most(kStripRows, args.m - row0); ++r) {
    const float* x = args.x + (row0 + r) * args.x_stride;
    for (int64_t step = step0; step < step1; ++step) {
      const int64_t k = step * kAmxDepth, there = args.w.cols - k;
      F half[2] = {Vec::zero(), Vec::zero()};
      for (int i = 0; i < 2; ++i)
        if (there > i * W) half[i] = load_some(x + k + i * W, static_cast<int>(at_most(W, there - i * W)));
      Vec::store_words(acts.at(strip, step) + r * W, Vec::to_bf16_pairs(half[0], half[1]));
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

// Sums of a strip times a panel that go where they belong while the next strip is multiplied, two rows a step: right after
// the products they would wait for them, and everything else for the stores.
struct Leaving {
  const LinearArgs* args;
  const float* sums = nullptr;
  int64_t row = 0, col = 0;
  int next = 0, rows = 0;

  void begin(int64_t strip, int64_t panel, const float* from) {
    finish();
    sums = from;
    row = strip * kStripRows;
    col = panel * kPanel;
    next = 0;
    rows = static_cast<int>(at_most(kStripRows, args->m - row));
  }
  INLINE void two_rows() {
    if (next >= rows) return;
    one_row(next++);
    if (next < rows) one_row(next++);
  }
  void finish() {
    while (next < rows) two_rows();
  }

 private:
  INLINE void one_row(int r) {
    const float* from = sums + (r / kAmxRows * 2 * kAmxRows + r % kAmxRows) * W;
    if (const Finish to = finish_at(*args, row + r, col); to.cols >= kPanel) {
      finish_vector(to, from);
      finish_vector(finish_at(*args, row + r, col + W), from + kSumFloats);
    } else {
      to.apply_slow(from, 1, W);
      if (to.cols > W) finish_at(*args, row + r, col + W).apply_slow(from + kSumFloats, 1, W);
    }
  }
  static INLINE void finish_vector(const Finish& to, const float* from) {
    F y = Vec::load(from);
    if (to.bias) y = Vec::add(y, Vec::load(to.bias));
    if (to.accumulate) y = Vec::add(Vec::load(to.out), y);
    Vec::store(to.out, y);
  }
};

// A strip times a block of a panel. `sums` carries four tiles between blocks.
struct StripStep {
  const uint32_t *acts, *words;
  int64_t steps, act_step;
  const uint32_t* tail;  // of a last step with less than 32 k: weights padded with zeros
  bool first;
  float* sums;
};

template <bool kTwo, bool kStream>
INLINE void strip_times_block(Tiles& tiles, const StripStep& s, Ahead ahead, Leaving& leaving) {
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
    leaving.two_rows();
  }
  if (s.tail) step(a, s.tail);
  tiles.store<0>(s.sums, 64), tiles.store<1>(s.sums + kTile, 64);
  if (kTwo) tiles.store<2>(s.sums + 2 * kTile, 64), tiles.store<3>(s.sums + 3 * kTile, 64);
}

// What a task works on: strips times panels. `group` panels pass through each block of k together, and so do their sums.
struct AmxTask {
  int64_t strip0, strip1, panel0, panel1, group;

  int64_t strips() const { return strip1 - strip0; }
  // One panel more than a group: its sums may still be leaving.
  int64_t sum_floats() const { return (group + 1) * strips() * 4 * kSumFloats; }
};

// A block of a panel, and what to ask for meanwhile.
struct PanelBlock {
  const uint32_t *words, *tail;
  int64_t step0, steps;
  Ahead ahead;
};

void strips_times_panel(Tiles& tiles, const AmxTask& task, const AmxActs& acts, int64_t panel, PanelBlock block, float* sums,
                        Leaving& leaving) {
  for (int64_t strip = task.strip0; strip < task.strip1; ++strip, sums += 4 * kSumFloats) {
    const StripStep s{acts.at(strip, block.step0), block.words,         block.steps, acts.step_words(),
                      block.tail,                  block.step0 == 0, sums};
    const bool two = acts.rows - strip * kStripRows > kAmxRows;
    if (task.strips() == 1)
      (two ? strip_times_block<true, true> : strip_times_block<false, true>)(tiles, s, block.ahead, leaving);
    else
      (two ? strip_times_block<true, false> : strip_times_block<false, false>)(tiles, s, block.ahead, leaving);
    if (block.step0 + block.steps == acts.steps) leaving.begin(strip, panel, sums);
    block.ahead.at += block.steps * block.ahead.step;
  }
}

void run_amx_task(const LinearArgs& args, const AmxActs& acts, const AmxTask& task, float* sums) {
  constexpr int64_t kStepWords = kAmxWords * kPanel;
  const int64_t panel_words = args.w.padded_cols / 2 * kPanel, tail_words = panel_words % kStepWords;
  const int64_t depth = task.strips() == 1 ? acts.steps : kBlockSteps;
  const int64_t ask = round_up(ceil_div(kStepWords * 4, task.strips()), 64);
  Tiles tiles(acts.tile_rows());
  Leaving leaving{&args};
  alignas(64) uint32_t tail[kStepWords] = {};
  for (int64_t panel0 = task.panel0; panel0 < task.panel1; panel0 += task.group) {
    const int64_t panel1 = at_most(panel0 + task.group, task.panel1);
    for (int64_t step0 = 0; step0 < acts.steps; step0 += depth) {
      const int64_t steps = at_most(depth, acts.steps - step0);
      const bool has_tail = tail_words && step0 + steps == acts.steps;
      for (int64_t panel = panel0; panel < panel1; ++panel) {
        const uint32_t* words = args.w.words + panel * panel_words + step0 * kStepWords;
        if (has_tail) __builtin_memcpy(tail, words + (steps - 1) * kStepWords, static_cast<size_t>(tail_words) * 4);
        // What is read next: the same block of the following panel, or the following block of the group's first panel.
        const uint32_t* next = words + (panel + 1 < panel1 || step0 + steps == acts.steps
                                            ? panel_words
                                            : (panel0 - panel) * panel_words + depth * kStepWords);
        const auto* ahead = reinterpret_cast<const char*>(task.strips() == 1 ? words + kAmxAhead : next);
        float* mine = sums + (panel - task.panel0) % (task.group + 1) * task.strips() * 4 * kSumFloats;
        strips_times_panel(tiles, task, acts, panel, {words, has_tail ? tail : nullptr, step0, steps, {ahead, ask}}, mine,
                           leaving);
      }
    }
  }
  leaving.finish();
}

void linear_amx(Context& context, const LinearArgs& args) {
  const AmxActs acts = pack_amx(context, args);
  const int64_t strips = acts.strips(), blocks = ceil_div(strips, kBlockStrips), panels = ceil_div(args.w.rows, kPanel);
  // One strip: about 256 KiB of weights a task, long enough to stream, short enough that threads end together. Several:
  // each task reads its activations from memory once, so it gets as many panels as threads allow, up to 32.
  const bool stream = strips == 1;
  const int64_t most = stream ? ceil_div(256 << 10, args.w.padded_cols * kPanel * 2) : 32;
  const int64_t share = at_least(1, at_most(most, panels * blocks / ((stream ? 8 : 2) * worker_count(context))));
  // Where all k of a task's activations stay in L2, one panel after the other keeps the sums near; else 16 at a time use
  // a block of k before it goes.
  const bool near = at_most(strips, kBlockStrips) * acts.steps * acts.step_words() * 4 <= 640 << 10;
  const int64_t group = near ? 1 : at_most(16, share);
  parallel(context, ceil_div(panels, share) * blocks, [&](int64_t index, int worker) {
    const int64_t strip0 = index % blocks * kBlockStrips, panel0 = index / blocks * share;
    const AmxTask task{strip0, at_most(strip0 + kBlockStrips, strips), panel0, at_most(panel0 + share, panels), group};
    run_amx_task(args, acts, task, worker_scratch(context, worker, static_cast<size_t>(task.sum_floats())));
  });
}

}  // namespace
