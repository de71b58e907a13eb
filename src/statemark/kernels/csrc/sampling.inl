// From a row of logits: the most likely ids, log-probabilities, the rank of a target. Greedy choice.
//
// NaN counts as minus infinity. If the largest logit is infinite, ids that reach it share the probability.
// The sum runs in float64 over eight interleaved chains, whatever the instruction set's width.

namespace {

inline bool below(float a, float b) { return a < b; }
inline float no_nan(float x) { return x == x ? x : -__builtin_inff(); }

// Largest value of a row, minus infinity if there is none.
inline float row_max(const float* x, int64_t n) {
  F best = Vec::set1(-__builtin_inff());
  int64_t i = 0;
  for (; i + W <= n; i += W) best = Vec::max(Vec::load(x + i), best);  // NaN loses: max gives its second operand
  float peak = Vec::largest(best);
  for (; i < n; ++i) peak = x[i] > peak ? x[i] : peak;
  return peak;
}

inline int64_t first_equal(const float* x, int64_t n, float value) {
  for (int64_t i = 0; i < n; ++i)
    if (no_nan(x[i]) == value) return i;
  return 0;
}

// log(sum(exp(x - peak))) for a finite peak.
double log_sum(const float* x, int64_t n, float peak) {
  constexpr int kChunk = 64;
  alignas(64) float e[kChunk];
  double acc[8] = {};
  for (int64_t i = 0; i < n; i += kChunk) {
    const int64_t count = at_most(kChunk, n - i);
    each_vector(count, [&](int64_t j, int lanes) {
      Vec::store(e + j, exp(Vec::sub(load_some(x + i + j, lanes), Vec::set1(peak))));
    });
    for (int64_t j = count; j < kChunk; ++j) e[j] = 0.0f;
    for (int j = 0; j < kChunk; j += 8)
      for (int lane = 0; lane < 8; ++lane) acc[lane] += e[j + lane] == e[j + lane] ? e[j + lane] : 0.0f;
  }
  return __builtin_log(((acc[0] + acc[1]) + (acc[2] + acc[3])) + ((acc[4] + acc[5]) + (acc[6] + acc[7])));
}

struct RowLogprobs {
  float peak;
  double log_total;
  float of(float x) const {
    x = no_nan(x);
    if (__builtin_isinf(peak)) return x == peak ? static_cast<float>(-log_total) : -__builtin_inff();
    return static_cast<float>(static_cast<double>(x) - static_cast<double>(peak) - log_total);
  }
};

RowLogprobs row_logprobs(const float* x, int64_t n) {
  const float peak = row_max(x, n);
  if (!__builtin_isinf(peak)) return {peak, log_sum(x, n, peak)};
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += no_nan(x[i]) == peak;
  return {peak, __builtin_log(static_cast<double>(count))};
}

// Keeps the n best of a scan over ascending ids: sorted, and a later equal value never displaces an earlier one.
struct Best {
  int64_t n, size = 0;
  int32_t* ids;
  float* values;
  void offer(int32_t id, float x) {
    if (size == n && !below(values[n - 1], x)) return;
    int64_t at = size < n ? size++ : n - 1;
    for (; at > 0 && below(values[at - 1], x); --at) {
      values[at] = values[at - 1];
      ids[at] = ids[at - 1];
    }
    values[at] = x;
    ids[at] = id;
  }
};

void best_of_row(const float* x, int64_t vocab, Best& best) {
  int64_t i = 0;
  for (; i < best.n; ++i) best.offer(static_cast<int32_t>(i), no_nan(x[i]));
  for (; i + W <= vocab; i += W) {
    if (!Vec::any(Vec::less(Vec::set1(best.values[best.n - 1]), Vec::load(x + i)))) continue;
    for (int64_t j = i; j < i + W; ++j) best.offer(static_cast<int32_t>(j), no_nan(x[j]));
  }
  for (; i < vocab; ++i) best.offer(static_cast<int32_t>(i), no_nan(x[i]));
}

int32_t rank_of(const float* x, int64_t vocab, int64_t target) {
  const float value = no_nan(x[target]);
  int32_t rank = 1;
  for (int64_t i = 0; i < vocab; ++i) rank += no_nan(x[i]) > value;
  for (int64_t i = 0; i < target; ++i) rank += no_nan(x[i]) == value;
  return rank;
}

void top_logprobs(Context& context, const LogitsArgs& args) {
  parallel(context, args.rows, [&](int64_t r, int) {
    const float* x = args.logits + r * args.stride;
    const RowLogprobs logprobs = row_logprobs(x, args.vocab);
    if (args.n > 0) {
      Best best{args.n, 0, args.top_ids + r * args.n, args.top_logprobs + r * args.n};
      best_of_row(x, args.vocab, best);
      for (int64_t i = 0; i < args.n; ++i) best.values[i] = logprobs.of(best.values[i]);
    }
    args.target_logprobs[r] = logprobs.of(x[args.targets[r]]);
    args.target_ranks[r] = rank_of(x, args.vocab, args.targets[r]);
  });
}

void argmax(Context& context, const LogitsArgs& args) {
  parallel(context, args.rows, [&](int64_t r, int) {
    const float* x = args.logits + r * args.stride;
    args.top_ids[r] = static_cast<int32_t>(first_equal(x, args.vocab, row_max(x, args.vocab)));
  });
}

}  // namespace
