// Functions of a vector of floats, the same for every lane: exp, log1p, sigmoid, and sums in a fixed order.
// Polynomials are the single-precision minimax ones of the Cephes library; errors (tested): exp 2 ulp, log1p 3 ulp.

namespace {

using F = Vec::F;
using I = Vec::I;
constexpr int W = Vec::kWidth;

inline int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

// Calls f(task, worker) for task in [0, n).
template <class Fn>
inline void parallel(Context& context, int64_t n, const Fn& f) {
  run_tasks(
      context, n, [](void* env, int64_t task, int worker) { (*static_cast<const Fn*>(env))(task, worker); },
      const_cast<Fn*>(&f));
}

// Adding 1.5 * 2^23 rounds to an integer (nearest even) and leaves it in the low bits of the sum.
constexpr float kRounder = 12582912.0f;
constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;

// Results below the smallest normal number are 0; above the largest, infinity; NaN stays NaN.
INLINE F exp(F x) {
  const F t = Vec::fma(x, Vec::set1(1.44269504088896341f), Vec::set1(kRounder));
  const F n = Vec::sub(t, Vec::set1(kRounder));
  F r = Vec::fma(n, Vec::set1(-kLn2High), x);
  r = Vec::fma(n, Vec::set1(-kLn2Low), r);
  F p = Vec::set1(1.9875691500e-4f);
  p = Vec::fma(p, r, Vec::set1(1.3981999507e-3f));
  p = Vec::fma(p, r, Vec::set1(8.3334519073e-3f));
  p = Vec::fma(p, r, Vec::set1(4.1665795894e-2f));
  p = Vec::fma(p, r, Vec::set1(1.6666665459e-1f));
  p = Vec::fma(p, r, Vec::set1(5.0000001201e-1f));
  p = Vec::add(Vec::fma(p, Vec::mul(r, r), r), Vec::set1(1.0f));
  F y = Vec::floats(Vec::add_int(Vec::bits(p), Vec::shift_left<23>(Vec::bits(t))));
  y = Vec::select(Vec::less(x, Vec::set1(-87.3365f)), Vec::zero(), y);
  y = Vec::select(Vec::less(Vec::set1(88.7228f), x), Vec::set1(__builtin_inff()), y);
  return Vec::select(Vec::is_nan(x), x, y);
}

// For x >= 1: the exponent below is not negative.
inline F log(F x) {
  const I half = Vec::set1_int(0x3f3504f3);  // sqrt(1/2): the mantissa is brought to [sqrt(1/2), sqrt(2))
  const I e = Vec::shift_right<23>(Vec::sub_int(Vec::bits(x), half));
  const F m = Vec::sub(Vec::floats(Vec::sub_int(Vec::bits(x), Vec::shift_left<23>(e))), Vec::set1(1.0f));
  const F n = Vec::sub(Vec::floats(Vec::add_int(e, Vec::bits(Vec::set1(kRounder)))), Vec::set1(kRounder));
  F p = Vec::set1(7.0376836292e-2f);
  p = Vec::fma(p, m, Vec::set1(-1.1514610310e-1f));
  p = Vec::fma(p, m, Vec::set1(1.1676998740e-1f));
  p = Vec::fma(p, m, Vec::set1(-1.2420140846e-1f));
  p = Vec::fma(p, m, Vec::set1(1.4249322787e-1f));
  p = Vec::fma(p, m, Vec::set1(-1.6668057665e-1f));
  p = Vec::fma(p, m, Vec::set1(2.0000714765e-1f));
  p = Vec::fma(p, m, Vec::set1(-2.4999993993e-1f));
  p = Vec::fma(p, m, Vec::set1(3.3333331174e-1f));
  const F z = Vec::mul(m, m);
  F y = Vec::mul(Vec::mul(p, m), z);
  y = Vec::fma(n, Vec::set1(kLn2Low), y);
  y = Vec::fma(z, Vec::set1(-0.5f), y);
  return Vec::fma(n, Vec::set1(kLn2High), Vec::add(m, y));
}

// For u >= 0. What rounding 1 + u lost is put back to first order.
inline F log1p(F u) {
  const F w = Vec::add(Vec::set1(1.0f), u);
  const F lost = Vec::sub(u, Vec::sub(w, Vec::set1(1.0f)));
  return Vec::add(log(w), Vec::div(lost, w));
}

// log(1 + exp(x)); above 20 the sum no longer differs from x in float32.
inline F softplus(F x) {
  const F small = log1p(exp(Vec::select(Vec::less(Vec::set1(20.0f), x), Vec::zero(), x)));
  return Vec::select(Vec::less(Vec::set1(20.0f), x), x, small);
}

INLINE F sigmoid(F x) {
  const F one = Vec::set1(1.0f);
  return Vec::div(one, Vec::add(one, exp(Vec::sub(Vec::zero(), x))));
}

INLINE F silu(F x) { return Vec::mul(x, sigmoid(x)); }

// Sum of squares of n floats: four accumulators, vectors dealt in turn; then a fixed tree.
inline float sum_squares(const float* x, int64_t n) {
  F acc[4] = {Vec::zero(), Vec::zero(), Vec::zero(), Vec::zero()};
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W)
    for (int j = 0; j < 4; ++j) {
      const F v = Vec::load(x + i + j * W);
      acc[j] = Vec::fma(v, v, acc[j]);
    }
  for (int j = 0; i < n; ++j, i += W) {
    const F v = n - i >= W ? Vec::load(x + i) : Vec::load_n(x + i, static_cast<int>(n - i));
    acc[j] = Vec::fma(v, v, acc[j]);
  }
  return Vec::sum(Vec::add(Vec::add(acc[0], acc[1]), Vec::add(acc[2], acc[3])));
}

// Calls f(index, lanes) for each vector of n floats; lanes < W only at the tail.
template <class Fn>
INLINE void each_vector(int64_t n, const Fn& f) {
  int64_t i = 0;
  for (; i + W <= n; i += W) f(i, W);
  if (i < n) f(i, static_cast<int>(n - i));
}

INLINE F load_some(const float* p, int lanes) { return lanes == W ? Vec::load(p) : Vec::load_n(p, lanes); }
INLINE void store_some(float* p, F v, int lanes) { lanes == W ? Vec::store(p, v) : Vec::store_n(p, v, lanes); }

// Round to nearest even; NaN keeps its sign and stays NaN. Without a branch, so that loops over it become vectors.
inline uint32_t to_bf16(float x) {
  uint32_t b;
  __builtin_memcpy(&b, &x, sizeof b);
  const uint32_t rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16, quiet = (b >> 16) | 0x40u;
  return (b & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
}

}  // namespace
