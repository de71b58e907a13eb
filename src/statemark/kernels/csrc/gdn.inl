// Gated DeltaNet: the same arithmetic for one token and for thousands, in any cut (the recurrence: delta.inl).
//
// A task is a sequence and a key head with the value heads that it serves: nothing passes between heads. It goes through
// its tokens in runs that stay in L2: causal convolution, silu, unit q and k, gates; then strip by strip of 32 value
// columns the recurrence, with a strip of the state in L1 while the run passes; then norm and gate. States are copied to
// mark slots in passing. Tokens that wait (delta.inl) and convolution windows are written at the end.

namespace {

// Tokens of a run: queries, keys, values and outputs of a head of 128 are 160 KiB then.
constexpr int kRun = 64;
// Up to so many tokens a state is changed where it lies; more pay for a copy whose rows lie together.
constexpr int64_t kInPlaceTokens = kFold;
constexpr int64_t kAskTokens = 4;  // between reading a token's projections and asking for them
constexpr float kUnitEps = 1e-6f;
constexpr int kMaxConvWidth = 16;

struct GdnJob {
  const GdnArgs& args;
  const float* zeros;   // [conv_dim]
  int64_t group, cols;  // value heads of a key head; value_dim padded to strips

  float* slot(int32_t index) const {
    return reinterpret_cast<float*>(args.arena.slots + static_cast<size_t>(index) * args.arena.slot_stride) +
           args.slot_offset;
  }
  float* state(int32_t index, int64_t head) const { return slot(index) + head * args.key_dim * args.value_dim; }
  float* window(int32_t index) const { return state(index, args.value_heads); }
  // Tokens that wait: [kWaiting] rows of keys, of deltas, of decays.
  float* keys(int32_t index) const { return window(index) + (args.conv_width - 1) * args.conv_dim; }
  float* deltas(int32_t index) const { return keys(index) + kWaiting * args.key_heads * args.key_dim; }
  float* decays(int32_t index) const { return deltas(index) + kWaiting * args.value_heads * args.value_dim; }
};

// A head's part of a run, row i for token position begin + i; `begin` is the start of a fold, so that the first rows may
// be tokens that wait in the slot.
struct HeadRun {
  float* queries_keys;           // [kRun][2][key_dim]
  float* decayed_keys;           // [kRun][key_dim], of one value head at a time
  float *key_dots, *query_dots;  // [kRun][kFold]
  float *to_delta, *to_out;      // [kRun][kFold], of one value head at a time
  float* from_state;             // [kRun], the same
  float *decay, *beta;           // [group][kRun]
  float* values;                 // [group][kRun][cols]: become deltas
  float* out;                    // [kRun][cols], of one value head at a time
  float* strip;                  // [key_dim][kStrip]

  static size_t floats(const GdnJob& job) {
    return static_cast<size_t>(kRun * (3 * job.args.key_dim + 4 * kFold + 1 + job.group * (2 + job.cols) + job.cols) +
                               kStrip * job.args.key_dim);
  }
  HeadRun(const GdnJob& job, float* p) {
    const auto take = [&p](int64_t n) {
      float* at = p;
      p += n;
      return at;
    };
    strip = take(kStrip * job.args.key_dim);
    queries_keys = take(kRun * 2 * job.args.key_dim);
    decayed_keys = take(kRun * job.args.key_dim);
    values = take(kRun * job.group * job.cols);
    out = take(kRun * job.cols);
    key_dots = take(kRun * kFold);
    query_dots = take(kRun * kFold);
    to_delta = take(kRun * kFold);
    to_out = take(kRun * kFold);
    decay = take(kRun * job.group);
    beta = take(kRun * job.group);
    from_state = take(kRun);
    for (int64_t i = 0; i < kRun * job.group * job.cols; ++i) values[i] = 0.0f;
  }
  Fold fold(int64_t row, int64_t key_dim, int64_t value_head) const {
    return {queries_keys + row * 2 * key_dim, decayed_keys + row * key_dim, from_state + row, to_delta + row * kFold,
            to_out + row * kFold, beta + value_head * kRun + row};
  }
};

// Tokens [first, last) of sequence s, by position; the batch's row of a position; and where this step began.
struct Span {
  int64_t seq, first, last, start, row0;
  int64_t row(int64_t position) const { return row0 + position - start; }
  int64_t begin() const { return first / kFold * kFold; }
};

// The raw projections of the token `back` positions before one: from the batch, or the window.
inline const float* raw_row(const GdnJob& job, const Span& span, int64_t position, int64_t back) {
  const GdnArgs& args = job.args;
  const int64_t local = position - span.start - back;
  if (local >= 0) return args.proj + (span.row0 + local) * args.proj_stride;
  const int32_t in = args.batch.state_in[span.seq];
  return in < 0 ? job.zeros : job.window(in) + (args.conv_width - 1 + local) * args.conv_dim;
}

// silu(sum over taps of weight * raw), oldest tap first, of `count` channels from `channel` on. kWidth 0: the width is
// only known at run time.
template <int kWidth>
void convolve(const GdnJob& job, const float* const* taps, int64_t channel, int64_t count, float* out) {
  const GdnArgs& args = job.args;
  const int64_t width = kWidth ? kWidth : args.conv_width;
  const float* weight = args.conv_weight + channel;
  each_vector(count, [&](int64_t c, int lanes) INLINE_LAMBDA {
    F acc = Vec::mul(load_some(taps[0] + channel + c, lanes), load_some(weight + c, lanes));
    for (int64_t j = 1; j < width; ++j)
      acc = Vec::fma(load_some(taps[j] + channel + c, lanes), load_some(weight + j * args.conv_dim + c, lanes), acc);
    store_some(out + c, silu(acc), lanes);
  });
}

inline void scale_row(float* x, int64_t n, float by) {
  each_vector(
      n, [&](int64_t i, int lanes) { store_some(x + i, Vec::mul(load_some(x + i, lanes), Vec::set1(by)), lanes); });
}

inline void unit_row(float* x, int64_t dim, float scale) {
  scale_row(x, dim, 1.0f / __builtin_sqrtf(sum_squares(x, dim) + kUnitEps) * scale);
}

// Two chains of vectors in turn, then a fixed tree.
inline float dot(const float* a, const float* b, int64_t n) {
  F sum[2] = {Vec::zero(), Vec::zero()};
  int64_t i = 0;
  for (; i + 2 * W <= n; i += 2 * W)
    for (int j = 0; j < 2; ++j) sum[j] = Vec::fma(Vec::load(a + i + j * W), Vec::load(b + i + j * W), sum[j]);
  for (int j = 0; i < n; ++j, i += W) {
    const int lanes = static_cast<int>(at_most(W, n - i));
    sum[j] = Vec::fma(load_some(a + i, lanes), load_some(b + i, lanes), sum[j]);
  }
  return Vec::sum(Vec::add(sum[0], sum[1]));
}

// Tokens of the run's first fold that came in an earlier step, or an earlier run of this one.
void load_waiting(const GdnJob& job, const Span& span, int64_t head, const HeadRun& run) {
  const GdnArgs& args = job.args;
  const int32_t slot = span.first == span.start ? args.batch.state_in[span.seq] : args.batch.state_out[span.seq];
  const int64_t d = args.key_dim, heads = args.value_heads;
  for (int64_t i = 0; i < span.first - span.begin(); ++i) {
    __builtin_memcpy(run.queries_keys + (2 * i + 1) * d, job.keys(slot) + (i * args.key_heads + head) * d,
                     static_cast<size_t>(d) * sizeof(float));
    for (int64_t g = 0; g < job.group; ++g) {
      const int64_t value_head = head * job.group + g;
      run.decay[g * kRun + i] = job.decays(slot)[i * heads + value_head];
      __builtin_memcpy(run.values + (g * kRun + i) * job.cols,
                       job.deltas(slot) + (i * heads + value_head) * args.value_dim,
                       static_cast<size_t>(args.value_dim) * sizeof(float));
    }
  }
}

// Asks for the piece of a later row that a head will read or write: rows lie further apart than any hardware prefetcher
// follows (measured: without, a run takes three times as long).
inline void ask_row(const float* row, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) __builtin_prefetch(row + i, 0, 2);
}

// Convolutions, unit queries and keys, and their products within folds.
void prepare_rows(const GdnJob& job, const Span& span, int64_t head, const HeadRun& run) {
  const GdnArgs& args = job.args;
  const int64_t d = args.key_dim, keys = args.key_heads * d, values = 2 * keys + head * job.group * args.value_dim;
  const auto convolution = args.conv_width == 4 ? convolve<4> : convolve<0>;  // 4 is what models use
  for (int64_t p = span.first; p < span.last; ++p) {
    const float* taps[kMaxConvWidth];
    for (int64_t j = 0; j < args.conv_width; ++j) taps[j] = raw_row(job, span, p, args.conv_width - 1 - j);
    if (p + kAskTokens < span.last) {
      const float* later = args.proj + span.row(p + kAskTokens) * args.proj_stride;
      ask_row(later + head * d, d);
      ask_row(later + keys + head * d, d);
      ask_row(later + values, job.group * args.value_dim);
    }
    const int64_t i = p - span.begin(), first = i / kFold * kFold;
    float *q = run.queries_keys + i * 2 * d, *k = q + d;
    convolution(job, taps, head * d, d, q);
    convolution(job, taps, keys + head * d, d, k);
    for (int64_t g = 0; g < job.group; ++g)
      convolution(job, taps, values + g * args.value_dim, args.value_dim, run.values + (g * kRun + i) * job.cols);
    unit_row(q, d, 1.0f / __builtin_sqrtf(static_cast<float>(d)));
    unit_row(k, d, 1.0f);
    for (int64_t j = first; j <= i; ++j) {
      const float* other = run.queries_keys + (2 * j + 1) * d;
      run.key_dots[i * kFold + j - first] = dot(k, other, d);
      run.query_dots[i * kFold + j - first] = dot(q, other, d);
    }
  }
}

void prepare_gates(const GdnJob& job, const Span& span, int64_t value_head, float* decay, float* beta) {
  const GdnArgs& args = job.args;
  const int64_t at = args.conv_dim + args.value_heads * args.value_dim + value_head;
  const F rate = exp(Vec::set1(args.a_log[value_head])), bias = Vec::set1(args.dt_bias[value_head]);
  each_vector(span.last - span.first, [&](int64_t i, int lanes) {
    float a[W] = {}, b[W] = {};
    for (int n = 0; n < lanes; ++n) {
      const float* row = args.proj + span.row(span.first + i + n) * args.proj_stride + at;
      b[n] = row[0];
      a[n] = row[args.value_heads];
    }
    store_some(beta + span.first - span.begin() + i, sigmoid(Vec::load(b)), lanes);
    const F dt = softplus(Vec::add(Vec::load(a), bias));
    store_some(decay + span.first - span.begin() + i, exp(Vec::sub(Vec::zero(), Vec::mul(rate, dt))), lanes);
  });
}

// What products of a value head's decays make of dots and keys, for rows [0, rows).
void weigh_rows(const GdnJob& job, int64_t rows, const float* decay, const HeadRun& run) {
  const int64_t d = job.args.key_dim;
  for (int64_t first = 0; first < rows; first += kFold) {
    float between[kFold], whole = 1.0f;  // R(i, .) and G(i)
    const int64_t count = at_most(kFold, rows - first);
    for (int64_t i = first; i < first + count; ++i) {
      for (int64_t j = 0; j < i - first; ++j) between[j] *= decay[i];
      between[i - first] = 1.0f;
      run.from_state[i] = whole *= decay[i];
      for (int64_t j = 0; j <= i - first; ++j) {
        run.to_delta[i * kFold + j] = between[j] * run.key_dots[i * kFold + j];
        run.to_out[i * kFold + j] = between[j] * run.query_dots[i * kFold + j];
      }
    }
    for (int64_t j = 0; count == kFold && j < kFold; ++j) {
      const float* key = run.queries_keys + (2 * (first + j) + 1) * d;
      each_vector(d, [&](int64_t i, int lanes) {
        store_some(run.decayed_keys + (first + j) * d + i,
                   Vec::mul(load_some(key + i, lanes), Vec::set1(between[j])), lanes);
      });
    }
  }
}

inline void copy_cols(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows, int cols) {
  for (int64_t i = 0; i < rows; ++i)
    each_vector(cols, [&](int64_t n, int lanes) {
      store_some(to + i * to_stride + n, load_some(from + i * from_stride + n, lanes), lanes);
    });
}

// Calls f(tokens that the state has consumed, slot) for the marks in (first, last], in order.
template <class Fn>
inline void each_mark(const GdnJob& job, const Span& span, const Fn& f) {
  const BatchView& batch = job.args.batch;
  for (int32_t m = batch.mark_begin[span.seq]; m < batch.mark_begin[span.seq + 1]; ++m) {
    const int64_t position = span.start + batch.marks[3 * m + 1];
    if (position > span.first && position <= span.last) f(position, batch.marks[3 * m + 2]);
  }
}

// The recurrence of one value head over `cols` columns from `col` on.
void run_strip(const GdnJob& job, const Span& span, int64_t head, int64_t col, int cols, const HeadRun& run) {
  const GdnArgs& args = job.args;
  const int64_t d = args.key_dim, stride = args.value_dim;
  const bool begins = span.first == span.start;
  const int32_t target = args.batch.state_out[span.seq], source = begins ? args.batch.state_in[span.seq] : target;
  float* home = job.state(target, head) + col;
  const bool in_place = cols == kStrip && span.last - span.first <= kInPlaceTokens;
  const Strip strip{in_place ? home : run.strip, in_place ? stride : kStrip, d};
  if (source < 0 || cols < kStrip)
    for (int64_t k = 0; k < d; ++k)
      unroll<kStripVecs>([&](auto n) INLINE_LAMBDA { Vec::store(strip.state + k * strip.stride + n * W, Vec::zero()); });
  if (source >= 0 && !(in_place && source == target))
    copy_cols(job.state(source, head) + col, stride, strip.state, strip.stride, d, cols);
  const auto keep = [&](int64_t after, int64_t upto) {
    each_mark(job, {span.seq, after, upto, span.start, span.row0}, [&](int64_t, int32_t slot) {
      copy_cols(strip.state, strip.stride, job.state(slot, head) + col, stride, d, cols);
    });
  };
  const int64_t g = head % job.group;
  for (int64_t p = span.first; p < span.last;) {
    const int64_t first = p / kFold * kFold, row = first - span.begin();
    const int64_t end = at_most(span.last, first + kFold);
    keep(p, at_most(end, first + kWaiting));  // a state stands still until its fold is full
    step_fold(run.fold(row, d, g), static_cast<int>(p - first), static_cast<int>(end - first), strip,
              run.values + (g * kRun + row) * job.cols + col, run.out + row * job.cols + col, job.cols);
    keep(at_most(end, first + kWaiting), end);
    p = end;
  }
  if (!in_place) copy_cols(strip.state, strip.stride, home, stride, d, cols);
}

void finish_rows(const GdnJob& job, const Span& span, int64_t head, const HeadRun& run) {
  const GdnArgs& args = job.args;
  for (int64_t p = span.first; p < span.last; ++p) {
    float* o = run.out + (p - span.begin()) * job.cols;
    const float* z = args.proj + span.row(p) * args.proj_stride + args.conv_dim + head * args.value_dim;
    float* out = args.out + span.row(p) * args.out_stride + head * args.value_dim;
    if (p + kAskTokens < span.last) {
      ask_row(z + kAskTokens * args.proj_stride, args.value_dim);
      ask_row(out + kAskTokens * args.out_stride, args.value_dim);
    }
    rms_norm_row(o, args.norm_weight, args.value_dim, args.eps, o);
    each_vector(args.value_dim, [&](int64_t i, int lanes) {
      store_some(out + i, Vec::mul(load_some(o + i, lanes), silu(load_some(z + i, lanes))), lanes);
    });
  }
}

// The last tokens of a fold that is not full at `position`; rows of others are zero, so that equal states are equal bytes.
void save_waiting(const GdnJob& job, const Span& span, int64_t position, int64_t head, const HeadRun& run,
                  int32_t slot) {
  const GdnArgs& args = job.args;
  const int64_t d = args.key_dim, heads = args.value_heads, count = position % kFold;
  const int64_t row = position - count - span.begin();
  const auto put = [&](const float* from, int64_t n, bool held, float* to) {
    held ? __builtin_memcpy(to, from, static_cast<size_t>(n) * sizeof(float))
         : __builtin_memset(to, 0, static_cast<size_t>(n) * sizeof(float));
  };
  for (int64_t i = 0; i < kWaiting; ++i) {
    put(run.queries_keys + (2 * (row + i) + 1) * d, d, i < count, job.keys(slot) + (i * args.key_heads + head) * d);
    for (int64_t g = 0; g < job.group; ++g) {
      const int64_t at = i * heads + head * job.group + g;
      put(run.values + (g * kRun + row + i) * job.cols, args.value_dim, i < count,
          job.deltas(slot) + at * args.value_dim);
      put(run.decay + g * kRun + row + i, 1, i < count, job.decays(slot) + at);
    }
  }
}

// The raw projections of the conv_width - 1 tokens before `position`, oldest first, in a head's channels. Rows go in
// ascending order, so a window may be built in place: row j comes from itself or from a later row.
void save_window(const GdnJob& job, const Span& span, int64_t position, int64_t head, int32_t slot) {
  const GdnArgs& args = job.args;
  const int64_t d = args.key_dim, keys = args.key_heads * d, values = job.group * args.value_dim;
  float* to = job.window(slot);
  for (int64_t j = 0; j < args.conv_width - 1; ++j, to += args.conv_dim) {
    const float* from = raw_row(job, span, position - 1, args.conv_width - 2 - j);
    if (from == to) continue;
    const auto copy = [&](int64_t channel, int64_t n) {
      __builtin_memcpy(to + channel, from + channel, static_cast<size_t>(n) * sizeof(float));
    };
    copy(head * d, d);
    copy(keys + head * d, d);
    copy(2 * keys + head * values, values);
  }
}

void run_head(const GdnJob& job, int64_t s, int64_t head, float* scratch) {
  const GdnArgs& args = job.args;
  const BatchView& batch = args.batch;
  const HeadRun run(job, scratch);
  const int64_t start = batch.seq_position[s], row0 = batch.seq_start[s], end = start + batch.seq_start[s + 1] - row0;
  for (Span span{s, start, start, start, row0}; span.first < end; span.first = span.last) {
    span.last = at_most(end, span.begin() + kRun);
    load_waiting(job, span, head, run);
    prepare_rows(job, span, head, run);
    for (int64_t g = 0; g < job.group; ++g) {
      const int64_t value_head = head * job.group + g;
      prepare_gates(job, span, value_head, run.decay + g * kRun, run.beta + g * kRun);
      weigh_rows(job, span.last - span.begin(), run.decay + g * kRun, run);
      for (int64_t col = 0; col < args.value_dim; col += kStrip)
        run_strip(job, span, value_head, col, static_cast<int>(at_most(kStrip, args.value_dim - col)), run);
      finish_rows(job, span, value_head, run);
    }
    each_mark(job, span, [&](int64_t position, int32_t slot) {
      save_waiting(job, span, position, head, run, slot);
      save_window(job, span, position, head, slot);
    });
    if (span.last < end) continue;
    save_waiting(job, span, end, head, run, batch.state_out[s]);
    save_window(job, span, end, head, batch.state_out[s]);
  }
}

void gated_delta_net(Context& context, const GdnArgs& args) {
  const BatchView& batch = args.batch;
  float* zeros = shared_scratch(context, 0, static_cast<size_t>(args.conv_dim));
  for (int64_t c = 0; c < args.conv_dim; ++c) zeros[c] = 0.0f;
  const GdnJob job{args, zeros, args.value_heads / args.key_heads, round_up(args.value_dim, kStrip)};
  parallel(context, batch.seqs * args.key_heads, [&](int64_t task, int worker) {
    run_head(job, task / args.key_heads, task % args.key_heads,
             worker_scratch(context, worker, HeadRun::floats(job)));
  });
}

}  // namespace
