// Gated DeltaNet, token by token: the same arithmetic for one token and for thousands, in any cut.
//
// Tokens pass in blocks through three stages: (1) per token: causal convolution, silu, unit q and k, gates;
// (2) per (sequence, value head, strip of 32 value columns): the recurrence, with the strip's state in L1 while all
// tokens of the block pass; value columns do not interact, so strips are independent; (3) per token: norm and gate.
// States are copied to mark slots in passing. Convolution windows are written last: stage 1 reads the old ones.

namespace {

constexpr int kStrip = 32;
constexpr int kStripVecs = kStrip / W;
// Chains of k.S a column: enough, with kStripVecs columns of vectors, for 8 in flight (4-cycle FMA, two a cycle).
constexpr int kChains = W >= 4 && kStripVecs < 8 ? 8 / kStripVecs : 1;
// Tokens of a block: stage 2 reads what stage 1 wrote (3 MB at 6144 channels) from L3 and not from memory.
constexpr int64_t kTokenBlock = 128;
constexpr float kUnitEps = 1e-6f;

struct GdnJob {
  const GdnArgs& args;
  float *mixed, *gates, *zeros;  // [block][conv_dim]; [block][2][heads, padded]; [conv_dim] of zeros
  int64_t gate_stride;
  int64_t first, last;  // tokens of the current block

  float* slot(int32_t index) const {
    return reinterpret_cast<float*>(args.arena.slots + static_cast<size_t>(index) * args.arena.slot_stride) +
           args.slot_offset;
  }
  float* window(int32_t index) const { return slot(index) + args.value_heads * args.key_dim * args.value_dim; }
};

// The raw projections of the token `back` positions before flat token t of sequence s: from the batch, or the window.
inline const float* raw_row(const GdnJob& job, int64_t s, int64_t t, int64_t back) {
  const GdnArgs& args = job.args;
  const int64_t local = t - args.batch.seq_start[s] - back;
  if (local >= 0) return args.proj + (t - back) * args.proj_stride;
  const int32_t in = args.batch.state_in[s];
  return in < 0 ? job.zeros : job.window(in) + (args.conv_width - 1 + local) * args.conv_dim;
}

constexpr int kMaxConvWidth = 16;

// silu(sum over taps of weight * raw), oldest tap first, of `count` channels from `channel` on. kWidth 0: the width is
// only known at run time.
template <int kWidth>
void convolve(const GdnJob& job, int64_t s, int64_t t, int64_t channel, int64_t count, float* out) {
  const GdnArgs& args = job.args;
  const int64_t width = kWidth ? kWidth : args.conv_width;
  const float* rows[kMaxConvWidth];
  for (int64_t j = 0; j < width; ++j) rows[j] = raw_row(job, s, t, width - 1 - j) + channel;
  const float* weight = args.conv_weight + channel;
  each_vector(count, [&](int64_t c, int lanes) INLINE_LAMBDA {
    F acc = Vec::mul(load_some(rows[0] + c, lanes), load_some(weight + c, lanes));
    for (int64_t j = 1; j < width; ++j)
      acc = Vec::fma(load_some(rows[j] + c, lanes), load_some(weight + j * args.conv_dim + c, lanes), acc);
    store_some(out + channel + c, silu(acc), lanes);
  });
}

inline void scale_row(float* x, int64_t n, float by) {
  each_vector(
      n, [&](int64_t i, int lanes) { store_some(x + i, Vec::mul(load_some(x + i, lanes), Vec::set1(by)), lanes); });
}

inline void unit_heads(float* x, int64_t heads, int64_t dim, float scale) {
  for (int64_t h = 0; h < heads; ++h, x += dim)
    scale_row(x, dim, 1.0f / __builtin_sqrtf(sum_squares(x, dim) + kUnitEps) * scale);
}

// Stage 1, for the key heads [head, head + heads) and the value heads that they serve.
void prepare_token(const GdnJob& job, int64_t t, int64_t head, int64_t heads) {
  const GdnArgs& args = job.args;
  const int64_t keys = args.key_heads * args.key_dim, group = args.value_heads / args.key_heads,
                s = args.batch.token_seq[t];
  const int64_t q = head * args.key_dim, v = 2 * keys + head * group * args.value_dim;
  float* mixed = job.mixed + (t - job.first) * args.conv_dim;
  const auto run = args.conv_width == 4 ? convolve<4> : convolve<0>;  // 4 is what models use
  run(job, s, t, q, heads * args.key_dim, mixed);
  run(job, s, t, keys + q, heads * args.key_dim, mixed);
  run(job, s, t, v, heads * group * args.value_dim, mixed);
  unit_heads(mixed + q, heads, args.key_dim, 1.0f / __builtin_sqrtf(static_cast<float>(args.key_dim)));
  unit_heads(mixed + keys + q, heads, args.key_dim, 1.0f);
  const float* b = args.proj + t * args.proj_stride + args.conv_dim + args.value_heads * args.value_dim + head * group;
  const float* a = b + args.value_heads;
  float* beta = job.gates + (t - job.first) * 2 * job.gate_stride + head * group;
  each_vector(heads * group, [&](int64_t h, int lanes) {
    store_some(beta + h, sigmoid(load_some(b + h, lanes)), lanes);
    const F rate = exp(load_some(args.a_log + head * group + h, lanes));
    const F dt = softplus(Vec::add(load_some(a + h, lanes), load_some(args.dt_bias + head * group + h, lanes)));
    store_some(beta + job.gate_stride + h, exp(Vec::sub(Vec::zero(), Vec::mul(rate, dt))), lanes);
  });
}

// One token over a strip: kv = g k.S; d = (v - kv) beta; S = g S + k (x) d; o = q.S. State [key_dim][kStrip].
// noinline: alone it keeps its 16 registers; inlined into the task it spills.
__attribute__((noinline)) void step_strip(float* state, int64_t key_dim, const float* q, const float* k, const float* v,
                                          float decay, float beta, float* out) {
  F acc[kChains * kStripVecs];  // chain c of vector n at c * kStripVecs + n
  unroll<kChains * kStripVecs>([&](auto j) INLINE_LAMBDA { acc[j] = Vec::zero(); });
  const float* s = state;
  for (int64_t i = 0; i < key_dim; i += kChains, s += kChains * kStrip)
    unroll<kChains>([&](auto c) INLINE_LAMBDA {
      const F key = Vec::set1(k[i + c]);
      unroll<kStripVecs>([&](auto n) INLINE_LAMBDA {
        F& a = acc[c * kStripVecs + n];
        a = Vec::fma(key, Vec::load(s + c * kStrip + n * W), a);
      });
    });
  const F g = Vec::set1(decay);
  F d[kStripVecs], o[kStripVecs];
  unroll<kStripVecs>([&](auto n) INLINE_LAMBDA {
    F kv = acc[n];
    if constexpr (kChains == 2) kv = Vec::add(acc[n], acc[n + kStripVecs]);
    if constexpr (kChains == 4)
      kv = Vec::add(Vec::add(acc[n], acc[n + 2 * kStripVecs]), Vec::add(acc[n + kStripVecs], acc[n + 3 * kStripVecs]));
    d[n] = Vec::mul(Vec::sub(Vec::load(v + n * W), Vec::mul(g, kv)), Vec::set1(beta));
    o[n] = Vec::zero();
  });
  float* p = state;
  for (int64_t i = 0; i < key_dim; ++i, p += kStrip) {
    const F key = Vec::set1(k[i]), query = Vec::set1(q[i]);
    unroll<kStripVecs>([&](auto n) INLINE_LAMBDA {
      const F s = Vec::fma(key, d[n], Vec::mul(Vec::load(p + n * W), g));
      Vec::store(p + n * W, s);
      o[n] = Vec::fma(query, s, o[n]);
    });
  }
  unroll<kStripVecs>([&](auto n) INLINE_LAMBDA { Vec::store(out + n * W, o[n]); });
}

struct Strip {
  int64_t head, col;
  int cols;
};

inline void copy_cols(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows, int cols) {
  for (int64_t i = 0; i < rows; ++i)
    each_vector(cols, [&](int64_t n, int lanes) {
      store_some(to + i * to_stride + n, load_some(from + i * from_stride + n, lanes), lanes);
    });
}

inline float* strip_in_slot(const GdnJob& job, int32_t slot, const Strip& strip) {
  return job.slot(slot) + strip.head * job.args.key_dim * job.args.value_dim + strip.col;
}

inline void save_strip(const GdnJob& job, int32_t slot, const Strip& strip, const float* state) {
  copy_cols(state, kStrip, strip_in_slot(job, slot, strip), job.args.value_dim, job.args.key_dim, strip.cols);
}

// Stage 2: tokens [from, to) of sequence s.
void run_strip(const GdnJob& job, int64_t s, int64_t from, int64_t to, const Strip& strip, float* state) {
  const GdnArgs& args = job.args;
  const BatchView& batch = args.batch;
  const bool begins = from == batch.seq_start[s];
  const int32_t source = begins ? batch.state_in[s] : batch.state_out[s];
  if (source < 0 || strip.cols < kStrip)
    for (int64_t i = 0; i < args.key_dim * kStrip; i += W) Vec::store(state + i, Vec::zero());
  if (source >= 0)
    copy_cols(strip_in_slot(job, source, strip), args.value_dim, state, kStrip, args.key_dim, strip.cols);
  int32_t mark = batch.mark_begin[s];
  const int32_t mark_end = batch.mark_begin[s + 1];
  while (mark < mark_end && batch.marks[3 * mark + 1] <= from - batch.seq_start[s]) ++mark;
  const int64_t key_head = strip.head / (args.value_heads / args.key_heads);
  const int64_t value_at = 2 * args.key_heads * args.key_dim + strip.head * args.value_dim + strip.col;
  alignas(64) float row[kStrip], padded[kStrip] = {};
  for (int64_t t = from; t < to; ++t) {
    const float* mixed = job.mixed + (t - job.first) * args.conv_dim;
    const float* gates = job.gates + (t - job.first) * 2 * job.gate_stride + strip.head;
    // The rows of the next token lie 4 conv_dim bytes away, which no hardware prefetcher follows (measured: a third).
    for (int64_t i = 0; i < args.key_dim; i += 16) {
      __builtin_prefetch(mixed + args.conv_dim + key_head * args.key_dim + i);
      __builtin_prefetch(mixed + args.conv_dim + (args.key_heads + key_head) * args.key_dim + i);
    }
    for (int i = 0; i < strip.cols; i += 16) __builtin_prefetch(mixed + args.conv_dim + value_at + i);
    const bool whole = strip.cols == kStrip;
    if (!whole) copy_cols(mixed + value_at, 0, padded, 0, 1, strip.cols);
    float* out = args.out + t * args.out_stride + strip.head * args.value_dim + strip.col;
    step_strip(state, args.key_dim, mixed + key_head * args.key_dim, mixed + (args.key_heads + key_head) * args.key_dim,
               whole ? mixed + value_at : padded, gates[job.gate_stride], gates[0], whole ? out : row);
    if (!whole) copy_cols(row, 0, out, 0, 1, strip.cols);
    for (; mark < mark_end && batch.marks[3 * mark + 1] == t - batch.seq_start[s] + 1; ++mark)
      save_strip(job, batch.marks[3 * mark + 2], strip, state);
  }
  save_strip(job, batch.state_out[s], strip, state);
}

// Stage 3, for the value heads [head, head + heads).
void finish_token(const GdnJob& job, int64_t t, int64_t head, int64_t heads) {
  const GdnArgs& args = job.args;
  const float* z = args.proj + t * args.proj_stride + args.conv_dim;
  for (int64_t h = head; h < head + heads; ++h) {
    float* o = args.out + t * args.out_stride + h * args.value_dim;
    rms_norm_row(o, args.norm_weight, args.value_dim, args.eps, o);
    each_vector(args.value_dim, [&](int64_t i, int lanes) {
      const F gate = silu(load_some(z + h * args.value_dim + i, lanes));
      store_some(o + i, Vec::mul(load_some(o + i, lanes), gate), lanes);
    });
  }
}

// The raw projections of the conv_width - 1 tokens that end with token `count` of the chunk, oldest first. Rows go in
// ascending order, so a window may be built in place: row j comes from itself or from a later row.
void save_window(const GdnJob& job, int64_t s, int64_t count, int32_t slot) {
  const GdnArgs& args = job.args;
  const int64_t t = args.batch.seq_start[s] + count - 1;
  float* to = job.window(slot);
  for (int64_t j = 0; j < args.conv_width - 1; ++j, to += args.conv_dim) {
    const float* from = raw_row(job, s, t, args.conv_width - 2 - j);
    if (from != to) __builtin_memmove(to, from, static_cast<size_t>(args.conv_dim) * sizeof(float));
  }
}

void save_windows(const GdnJob& job, int64_t s) {
  const BatchView& batch = job.args.batch;
  for (int32_t m = batch.mark_begin[s]; m < batch.mark_begin[s + 1]; ++m)
    save_window(job, s, batch.marks[3 * m + 1], batch.marks[3 * m + 2]);
  save_window(job, s, batch.seq_start[s + 1] - batch.seq_start[s], batch.state_out[s]);
}

void gated_delta_net(Context& context, const GdnArgs& args) {
  const BatchView& batch = args.batch;
  const int64_t block = at_most(kTokenBlock, batch.tokens), gate_stride = round_up(args.value_heads, W);
  float* mixed = shared_scratch(context, 0, static_cast<size_t>(block * args.conv_dim));
  float* gates = shared_scratch(context, 1, static_cast<size_t>(block * 2 * gate_stride));
  float* zeros = shared_scratch(context, 2, static_cast<size_t>(args.conv_dim));
  for (int64_t c = 0; c < args.conv_dim; ++c) zeros[c] = 0.0f;
  const int64_t strips = ceil_div(args.value_dim, kStrip), units = args.value_heads * strips;
  const int64_t group = args.value_heads / args.key_heads;
  for (int64_t first = 0; first < batch.tokens; first += block) {
    const GdnJob job{args, mixed, gates, zeros, gate_stride, first, at_most(first + block, batch.tokens)};
    const int64_t tokens = job.last - first;
    // A token is a task, or each of its key heads where there are too few tokens to share.
    const int64_t parts = tokens < 4 * worker_count(context) ? args.key_heads : 1, heads = args.key_heads / parts;
    parallel(context, tokens * parts,
             [&](int64_t task, int) { prepare_token(job, first + task / parts, task % parts * heads, heads); });
    const int64_t seq0 = batch.token_seq[first], seq1 = batch.token_seq[job.last - 1] + 1;
    parallel(context, (seq1 - seq0) * units, [&](int64_t task, int worker) {
      const int64_t s = seq0 + task / units, head = task % units / strips, col = task % strips * kStrip;
      const Strip strip{head, col, static_cast<int>(at_most(kStrip, args.value_dim - col))};
      float* state = worker_scratch(context, worker, static_cast<size_t>(args.key_dim * kStrip));
      run_strip(job, s, at_least(first, batch.seq_start[s]), at_most(job.last, batch.seq_start[s + 1]), strip, state);
    });
    parallel(context, tokens * parts, [&](int64_t task, int) {
      finish_token(job, first + task / parts, task % parts * heads * group, heads * group);
    });
  }
  const GdnJob job{args, mixed, gates, zeros, gate_stride, 0, 0};
  parallel(context, batch.seqs, [&](int64_t s, int) { save_windows(job, s); });
}

}  // namespace
