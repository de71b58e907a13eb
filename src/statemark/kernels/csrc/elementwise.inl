// rms_norm and swiglu over rows. A row's result depends on that row alone; tails use the same lanes, padded with zeros.

namespace {

// Rows per task: at least 16k elements, below which waking a thread costs more than the work.
inline int64_t rows_per_task(int64_t cols) { return at_least(1, (16 << 10) / at_least(1, cols)); }

template <class Fn>
inline void each_row(Context& context, int64_t rows, int64_t cols, const Fn& f) {
  const int64_t group = rows_per_task(cols);
  parallel(context, ceil_div(rows, group), [&](int64_t task, int) {
    for (int64_t r = task * group; r < at_most((task + 1) * group, rows); ++r) f(r);
  });
}

// x / sqrt(mean(x^2) + eps) * weight
inline void rms_norm_row(const float* x, const float* weight, int64_t n, float eps, float* out) {
  const F scale = Vec::div(Vec::set1(1.0f), Vec::sqrt(Vec::set1(sum_squares(x, n) / static_cast<float>(n) + eps)));
  each_vector(n, [&](int64_t i, int lanes) {
    const F y = Vec::mul(load_some(x + i, lanes), scale);
    store_some(out + i, Vec::mul(y, load_some(weight + i, lanes)), lanes);
  });
}

void rms_norm(Context& context, const RowsArgs& args) {
  each_row(context, args.rows, args.cols, [&](int64_t r) {
    rms_norm_row(args.x + r * args.x_stride, args.weight, args.cols, args.eps, args.out + r * args.out_stride);
  });
}

// args.cols is the width of the output; a row of x holds the gate and then the factor that it gates.
void swiglu(Context& context, const RowsArgs& args) {
  each_row(context, args.rows, args.cols, [&](int64_t r) {
    const float* gate = args.x + r * args.x_stride;
    const float* up = gate + args.cols;
    float* out = args.out + r * args.out_stride;
    each_vector(args.cols, [&](int64_t i, int lanes) {
      store_some(out + i, Vec::mul(silu(load_some(gate + i, lanes)), load_some(up + i, lanes)), lanes);
    });
  });
}

}  // namespace
