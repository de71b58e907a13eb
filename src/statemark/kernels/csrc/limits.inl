// What the machine can do at best, for the benchmark to stand beside: products from registers, reads from memory.

namespace {

// 12 x 2 (6 x 2) chains as in a tile, nothing loaded or stored.
template <class Step>
void spin_products(int64_t rounds, float* sink, const Step& step) {
  Chains<kMaxRows, 2> chains;
  chains.load(sink, 2 * W);  // unknown to the compiler: equal chains would be merged into one
  for (int64_t i = 0; i < rounds; ++i)
    unroll<kMaxRows * 2>([&](auto c) INLINE_LAMBDA { step(chains.at[c / 2][c % 2]); });
  F total = Vec::zero();
  unroll<kMaxRows * 2>([&](auto c) INLINE_LAMBDA { total = Vec::add(total, chains.at[c / 2][c % 2]); });
  *sink = Vec::sum(total);
}

// The like with pairs of 16-bit whole numbers, as products with int8 and int4 weights do them.
double peak_int_products(Context& context, int64_t rounds) {
  const int64_t threads = worker_count(context);
  constexpr int kChains = Vec::kIntRows * 2;
  auto* sink = reinterpret_cast<uint32_t*>(shared_scratch(context, 0, static_cast<size_t>(threads) * kChains * W));
  for (int64_t i = 0; i < threads * kChains * W; ++i) sink[i] = static_cast<uint32_t>(i);
  parallel(context, threads, [&](int64_t task, int) {
    uint32_t* mine = sink + task * kChains * W;
    const I w = Vec::load_words(mine + W);
    I whole[kChains];
    unroll<kChains>([&](auto c) INLINE_LAMBDA { whole[c] = Vec::load_words(mine + c * W); });
    for (int64_t i = 0; i < rounds; ++i)
      // Each chain times itself: equal products would be computed once.
      unroll<kChains>([&](auto c) INLINE_LAMBDA { whole[c] = Vec::dot_pairs(whole[c], whole[c], w); });
    unroll<kChains>([&](auto c) INLINE_LAMBDA { Vec::store_words(mine + c * W, whole[c]); });
  });
  return 4.0 * kChains * W * static_cast<double>(rounds * threads);
}

#ifdef STATEMARK_AMX
// Four tiles of sums, two of activations and two of weights, as in a strip.
double peak_tile_products(Context& context, int64_t rounds) {
  const int64_t threads = worker_count(context);
  alignas(64) static const uint32_t zeros[kAmxRows][W] = {};
  parallel(context, threads, [&](int64_t, int) {
    Tiles tiles;
    tiles.clear<0>(), tiles.clear<1>(), tiles.clear<2>(), tiles.clear<3>();
    tiles.load<4>(zeros, 64), tiles.load<5>(zeros, 64), tiles.load<6>(zeros, 64), tiles.load<7>(zeros, 64);
    for (int64_t i = 0; i < rounds; ++i) {
      tiles.dot_bf16<0, 4, 6>(), tiles.dot_bf16<1, 4, 7>();
      tiles.dot_bf16<2, 5, 6>(), tiles.dot_bf16<3, 5, 7>();
    }
  });
  return 4.0 * 2.0 * kAmxRows * W * kAmxDepth * static_cast<double>(rounds * threads);
}
#endif

// Returns the operations done: a multiply-add is two.
double peak_products(Context& context, int64_t rounds, Packing packing) {
  if (packing == Packing::kInt8 || packing == Packing::kInt4) return peak_int_products(context, rounds);
#ifdef STATEMARK_AMX
  if (packing == Packing::kBfloat16) return peak_tile_products(context, rounds);
#endif
  const int64_t threads = worker_count(context);
  float* sink = shared_scratch(context, 0, static_cast<size_t>(threads) * kMaxRows * 2 * W);
  for (int64_t i = 0; i < threads * kMaxRows * 2 * W; ++i) sink[i] = static_cast<float>(i);
  const bool dot = Vec::kDotBf16 && packing == Packing::kBfloat16;
  parallel(context, threads, [&](int64_t task, int) {
#ifdef STATEMARK_DOT_BF16
    if (dot) {
      const I w = Vec::bits(Vec::set1(1.0f));
      return spin_products(rounds, sink + task * kMaxRows * 2 * W,
                           [&](F& acc) INLINE_LAMBDA { acc = Vec::dot_bf16(acc, 0x3f803f80u, w); });
    }
#endif
    const F x = Vec::set1(1.0f), w = Vec::set1(0.5f);
    spin_products(rounds, sink + task * kMaxRows * 2 * W, [&](F& acc) INLINE_LAMBDA { acc = Vec::fma(x, w, acc); });
  });
  return 2.0 * kMaxRows * 2 * W * (dot ? 2 : 1) * static_cast<double>(rounds * threads);
}

// Reads `bytes` (a multiple of 1 MiB) once, each thread long runs of it.
void read_memory(Context& context, const uint8_t* data, int64_t bytes) {
  constexpr int64_t kRun = 1 << 20;
  float* sink = shared_scratch(context, 0, static_cast<size_t>(worker_count(context)) * 16);
  parallel(context, bytes / kRun, [&](int64_t task, int worker) {
    const auto* p = reinterpret_cast<const float*>(data + task * kRun);
    F acc[4] = {Vec::zero(), Vec::zero(), Vec::zero(), Vec::zero()};
    for (int64_t i = 0; i < kRun / 4; i += 4 * W)
      for (int j = 0; j < 4; ++j) acc[j] = Vec::max(Vec::load(p + i + j * W), acc[j]);
    sink[worker * 16] = Vec::largest(Vec::max(Vec::max(acc[0], acc[1]), Vec::max(acc[2], acc[3])));
  });
}

}  // namespace
