// Products with int8 and int4 weights (layout: quantised.h), and the choice between all kinds of weights.
//
// A row's activations are rounded to 16 bits, group by group: x = step * integer, step = largest magnitude / 32767. Within
// a group everything is whole numbers, so exact in any order; a group's sum then enters one chain
//   acc = fma(float(sum), weight scale * step, acc)    over groups 0, 1, 2, ...
// Bits of an output depend on its row and its column alone. 16 bits cost no memory traffic, as activations stay in
// cache, and leave the weights' own rounding as the only one that matters.

namespace {

constexpr int64_t kPairStride = kBlockDepth / 2;  // between rows of a tile
// A total of a group (int4: 32 x 32767 fits 21 bits) is stored as a pair of 16-bit values, low bits and the rest.
constexpr int kTotalBits = 9;
constexpr int kAheadBytes = 2048;                 // between reading weights and asking for them

// How words of weights turn into pairs of 16-bit weights, two neighbouring columns in each 32-bit lane, and how R rows are
// multiplied with a group of two vectors of columns (`group`). Pairs are made in registers and used by all rows of a tile.
struct Int8Weights {
  static constexpr int kDepth = kInt8Depth, kGroupBytes = kInt8GroupBytes;
  static INLINE F scale(const uint16_t* head) { return Vec::load_bf16(head); }
  template <int i>
  static INLINE I pair(I word) {
    return i == 0 ? Vec::even_bytes(word) : Vec::odd_bytes(word);
  }
  template <int R>
  static INLINE void group(const uint32_t* words, const uint16_t*, const int32_t* x, const int32_t*, I (&sums)[R][2]) {
    unroll<R * 2>([&](auto i) INLINE_LAMBDA { sums[i / 2][i % 2] = Vec::set1_int(0); });
    for (int s = 0; s < kDepth / 4; ++s, x += 2, words += kPanel) {
      I word[2] = {Vec::load_words(words), Vec::load_words(words + W)};
      unroll<2>([&](auto i) INLINE_LAMBDA {
        const I pair0 = pair<i>(word[0]), pair1 = pair<i>(word[1]);
        unroll<R>([&](auto r) INLINE_LAMBDA {
          const I both = Vec::set1_int(x[r * kPairStride + i]);
          sums[r][0] = Vec::dot_pairs(sums[r][0], both, pair0);
          sums[r][1] = Vec::dot_pairs(sums[r][1], both, pair1);
        });
      });
    }
  }
};

struct Int4Weights {
  static constexpr int kDepth = kInt4Depth, kGroupBytes = kInt4GroupBytes;
  static INLINE F scale(const uint16_t* head) {
    const I code = Vec::and_int(Vec::load_u16(head), Vec::set1_int(kInt4ScaleMask));
    return Vec::floats(Vec::add_int(Vec::shift_left<12>(code), Vec::set1_int(kInt4ScaleBase)));
  }
  // Nibbles i and i + 4 of a word, times 4, each in its half.
  template <int i>
  static INLINE I four_q(I word) {
    if constexpr (i == 0)
      word = Vec::shift_left<2>(word);
    else
      word = Vec::shift_right<4 * i - 2>(word);
    return Vec::and_int(word, Vec::set1_int(0x003c003c));
  }
  static INLINE I zero(const uint16_t* head) { return Vec::and_int(Vec::load_u16(head), Vec::set1_int(kInt4ZeroMask)); }
  // Sums of x * (4 q - zero). The zero points' part needs the total of x only.
  template <int R>
  static INLINE void group(const uint32_t* words, const uint16_t* head, const int32_t* x, const int32_t* totals,
                           I (&sums)[R][2]) {
    if constexpr (R <= 2)
      dot_in_place<R>(words, head, x, totals, sums);
    else
      dot_pairs<R>(words, head, x, totals, sums);
  }
  // Two instructions make a pair of a word that all rows use. zero * total = (zero, 512 zero) . (total's low 9 bits, the rest).
  template <int R>
  static INLINE void dot_pairs(const uint32_t* words, const uint16_t* head, const int32_t* x, const int32_t* totals,
                               I (&sums)[R][2]) {
    unroll<2>([&](auto v) INLINE_LAMBDA {
      const I one = zero(head + v * W), both = Vec::add_int(one, Vec::shift_left<kTotalBits + 16>(one));
      const I minus = Vec::sub_pairs(Vec::set1_int(0), both);
      unroll<R>([&](auto r) INLINE_LAMBDA {
        sums[r][v] = Vec::dot_pairs(Vec::set1_int(0), Vec::set1_int(totals[r]), minus);
      });
    });
    for (int s = 0; s < kDepth / 8; ++s, x += 4, words += kPanel) {
      const I word0 = Vec::load_words(words), word1 = Vec::load_words(words + W);
      unroll<4>([&](auto i) INLINE_LAMBDA {
        const I pair0 = four_q<i>(word0), pair1 = four_q<i>(word1);
        unroll<R>([&](auto r) INLINE_LAMBDA {
          const I both = Vec::set1_int(x[r * kPairStride + i]);
          sums[r][0] = Vec::dot_pairs(sums[r][0], both, pair0);
          sums[r][1] = Vec::dot_pairs(sums[r][1], both, pair1);
        });
      });
    }
  }
  // One instruction takes a pair of q out of a word: nibbles 1 and 2 stay where they are, times 16 and times 256, in sums
  // of their own. 4 words x 2 x 15 * 256 * 32767 fits 31 bits.
  template <int R>
  static INLINE void dot_in_place(const uint32_t* words, const uint16_t* head, const int32_t* x, const int32_t* totals,
                                  I (&sums)[R][2]) {
    I at16[R][2], at256[R][2];
    unroll<R * 2>([&](auto i) INLINE_LAMBDA {
      sums[i / 2][i % 2] = at16[i / 2][i % 2] = at256[i / 2][i % 2] = Vec::set1_int(0);
    });
    for (int s = 0; s < kDepth / 8; ++s, x += 4, words += kPanel)
      unroll<R>([&](auto r) INLINE_LAMBDA {
        const int32_t* mine = x + r * kPairStride;
        const I x0 = Vec::set1_int(mine[0]), x1 = Vec::set1_int(mine[1]);
        const I x2 = Vec::set1_int(mine[2]), x3 = Vec::set1_int(mine[3]);
        unroll<2>([&](auto v) INLINE_LAMBDA {
          const I word = Vec::load_words(words + v * W);
          sums[r][v] = Vec::dot_pairs(sums[r][v], x0, Vec::and_int(word, Vec::set1_int(0x000f000f)));
          at16[r][v] = Vec::dot_pairs(at16[r][v], x1, Vec::and_int(word, Vec::set1_int(0x00f000f0)));
          at256[r][v] = Vec::dot_pairs(at256[r][v], x2, Vec::and_int(word, Vec::set1_int(0x0f000f00)));
          sums[r][v] = Vec::dot_pairs(sums[r][v], x3, Vec::shift_right_pairs<12>(word));
        });
      });
    unroll<R * 2>([&](auto i) INLINE_LAMBDA {
      constexpr int r = i / 2, v = i % 2;
      const I q = Vec::add_int(sums[r][v], Vec::add_int(Vec::shift_right_signed<4>(at16[r][v]),
                                                        Vec::shift_right_signed<8>(at256[r][v])));
      const int32_t total = (totals[r] & ((1 << kTotalBits) - 1)) + (totals[r] >> 16) * (1 << kTotalBits);
      sums[r][v] = Vec::sub_int(Vec::shift_left<2>(q), Vec::mul_int(zero(head + v * W), Vec::set1_int(total)));
    });
  }
};

// Activations: [block of k][row][kBlockDepth] as int16, read as pairs; and [group][row] their steps and their totals.
struct IntActs {
  int32_t* pairs;
  float* steps;
  int32_t* totals;
  RowTiles tiles;
  const int32_t* at(int64_t row, int64_t k0) const { return pairs + (k0 * tiles.rows + row * kBlockDepth) / 2; }
  int64_t group_at(int64_t row, int64_t group) const { return group * tiles.rows + row; }
};

// Rounds `depth` values, `n` of which are there, gives the total of the integers and returns the step. A value that is not finite makes the step NaN, so
// that the whole output row is; magnitudes below 2^-100 count as zero.
INLINE float round_group(const float* x, int64_t n, int depth, int16_t* to, int32_t& total) {
  float padded[kInt8Depth];
  if (n < depth) {
    for (int i = 0; i < depth; ++i) padded[i] = i < n ? x[i] : 0.0f;
    x = padded;
  }
  int32_t top_bits = 0;
  for (int i = 0; i < depth; ++i) {
    int32_t b;
    __builtin_memcpy(&b, x + i, sizeof b);
    b &= 0x7fffffff;
    top_bits = b > top_bits ? b : top_bits;
  }
  const bool finite = top_bits < 0x7f800000, any = finite && top_bits > 0x0d800000;
  float top;
  __builtin_memcpy(&top, &top_bits, sizeof top);
  const float inverse = any ? 32767.0f / top : 0.0f;
  for (int i = 0; i < depth; ++i) {
    const float rounded = (any ? x[i] : 0.0f) * inverse + kRounder;
    int32_t b;
    __builtin_memcpy(&b, &rounded, sizeof b);
    to[i] = static_cast<int16_t>(b);
  }
  total = 0;
  for (int i = 0; i < depth; ++i) total += to[i];
  total = static_cast<int32_t>(static_cast<uint32_t>(total & ((1 << kTotalBits) - 1)) |
                               static_cast<uint32_t>(total >> kTotalBits) << 16);
  return any ? top * (1.0f / 32767.0f) : finite ? 0.0f : __builtin_nanf("");
}

template <class Q>
IntActs round_activations(Context& context, const LinearArgs& args) {
  const int64_t blocks = ceil_div(args.w.padded_cols, kBlockDepth), groups = args.w.padded_cols / Q::kDepth;
  const size_t pair_words = static_cast<size_t>(args.m * blocks * kBlockDepth / 2);
  const IntActs acts{reinterpret_cast<int32_t*>(shared_scratch(context, 0, pair_words)),
                     shared_scratch(context, 1, static_cast<size_t>(args.m * groups)),
                     reinterpret_cast<int32_t*>(shared_scratch(context, 2, static_cast<size_t>(args.m * groups))),
                     RowTiles(args.m, Vec::kIntRows)};
  const auto round_block = [&](int64_t block, int) {
    for (int64_t row = 0; row < args.m; ++row)
      for (int64_t k = block * kBlockDepth; k < at_most((block + 1) * kBlockDepth, args.w.padded_cols); k += Q::kDepth) {
        auto* to = reinterpret_cast<int16_t*>(acts.pairs) +
                   (block * kBlockDepth * acts.tiles.rows + row * kBlockDepth + k % kBlockDepth);
        const int64_t at = acts.group_at(row, k / Q::kDepth);
        acts.steps[at] = round_group(args.x + row * args.x_stride + k, at_most(Q::kDepth, args.w.cols - k), Q::kDepth, to,
                                     acts.totals[at]);
      }
  };
  if (args.m <= kMaxRows)
    for (int64_t b = 0; b < blocks; ++b) round_block(b, 0);
  else
    parallel(context, blocks, round_block);
  return acts;
}

template <class Q>
inline const uint8_t* group_at(const WeightView& w, int64_t panel, int64_t group) {
  return reinterpret_cast<const uint8_t*>(w.words) + (panel * (w.padded_cols / Q::kDepth) + group) * Q::kGroupBytes;
}

// R rows from `row` on: weights are read in the order in which they lie, and asked for `ahead`.
template <class Q, int R>
__attribute__((noinline)) void panel_times_tile(const LinearArgs& args, const IntActs& acts, int64_t row, int64_t panel,
                                                Ahead ahead) {
  constexpr int kParts = kPanel / kTileCols;  // vectors of columns go two by two, so that the sums stay in registers
  const int64_t groups = args.w.padded_cols / Q::kDepth;
  Chains<R, 2> sums[kParts];
  for (auto& part : sums) part.clear();
  const uint8_t* group = group_at<Q>(args.w, panel, 0);
  for (int64_t g = 0; g < groups; ++g, group += Q::kGroupBytes) {
    const int32_t* x = acts.at(row, g * Q::kDepth / kBlockDepth * kBlockDepth) + g * Q::kDepth % kBlockDepth / 2;
    const int64_t at = acts.group_at(row, g);
    for (int64_t i = 0; i < ahead.step; i += 64) __builtin_prefetch(ahead.at + i, 0, 3);
    ahead.at += ahead.step;
    unroll<kParts>([&](auto part) INLINE_LAMBDA {
      const auto* head = reinterpret_cast<const uint16_t*>(group) + part * kTileCols;
      const auto* words = reinterpret_cast<const uint32_t*>(group + kGroupHead) + part * kTileCols;
      I whole[R][2];
      Q::template group<R>(words, head, x, acts.totals + at, whole);
      const F scale[2] = {Q::scale(head), Q::scale(head + W)};
      unroll<R * 2>([&](auto i) INLINE_LAMBDA {
        constexpr int r = i / 2, v = i % 2;
        F& sum = sums[part].at[r][v];
        sum = Vec::fma(Vec::from_int(whole[r][v]), Vec::mul(scale[v], Vec::set1(acts.steps[at + r])), sum);
      });
    });
  }
  for (int64_t part = 0; part < kParts; ++part)
    if (const int64_t col = panel * kPanel + part * kTileCols; col < args.w.rows)
      finish_at(args, row, col).apply(sums[part]);
}

template <class Q, int R>
INLINE void panel_times_tile_of(int rows, const LinearArgs& args, const IntActs& acts, int64_t row, int64_t panel,
                                Ahead ahead) {
  if (rows == R) return panel_times_tile<Q, R>(args, acts, row, panel, ahead);
  if constexpr (R > 1) panel_times_tile_of<Q, R - 1>(rows, args, acts, row, panel, ahead);
}

template <class Q>
void linear_int(Context& context, const LinearArgs& args) {
  const IntActs acts = round_activations<Q>(context, args);
  const RowTiles& tiles = acts.tiles;
  const int64_t panels = ceil_div(args.w.rows, kPanel), panel_bytes = args.w.padded_cols / Q::kDepth * Q::kGroupBytes;
  // A block of rows stays in L2 (256 KiB of activations) while panels pass; each tile of it reads the panel anew, from
  // L2 at worst. Taking weights apart once for all tiles was slower: storing pairs costs more than making them.
  const int64_t per_block = at_least(1, (256 << 10) / (args.w.padded_cols * 2 * Vec::kIntRows));
  const int64_t blocks = ceil_div(tiles.tiles, per_block);
  // As with other weights: about 256 KiB a task, and each panel from its first to its last column.
  const int64_t share = ceil_div(panels * blocks, 4 * worker_count(context));
  const int64_t group = at_least(1, at_most(share, (256 << 10) / panel_bytes));
  parallel(context, ceil_div(panels, group) * blocks, [&](int64_t task, int) {
    const int64_t tile0 = task % blocks * per_block, panel0 = task / blocks * group;
    const int64_t passes = at_most(per_block, tiles.tiles - tile0);
    for (int64_t p = panel0; p < at_most(panel0 + group, panels); ++p) {
      const auto* at = reinterpret_cast<const char*>(group_at<Q>(args.w, p, 0));
      // One tile asks for what it reads itself; several share the next panel among them, so that all wait for memory.
      const Ahead ahead = passes == 1 ? Ahead{at + kAheadBytes, Q::kGroupBytes}
                                      : Ahead{at + panel_bytes, round_up(ceil_div(Q::kGroupBytes, passes), 64)};
      for (int64_t t = 0; t < passes; ++t) {
        const int64_t begin = t * ahead.step * (args.w.padded_cols / Q::kDepth);
        panel_times_tile_of<Q, Vec::kIntRows>(tiles.count(tile0 + t), args, acts, tiles.start(tile0 + t), p,
                                              {ahead.at + begin, ahead.step});
      }
    }
  });
}

void linear(Context& context, const LinearArgs& args) {
  for (int64_t row = 0; row < args.m; row += kMaxPackedRows) {
    LinearArgs part = args;
    part.x += row * args.x_stride;
    part.out += row * args.out_stride;
    part.m = at_most(kMaxPackedRows, args.m - row);
    switch (args.w.packing) {
      case Packing::kInt8:
        linear_int<Int8Weights>(context, part);
        break;
      case Packing::kInt4:
        linear_int<Int4Weights>(context, part);
        break;
#ifdef STATEMARK_AMX
      case Packing::kBfloat16:
        linear_amx(context, part);
        break;
#endif
      default:
        linear_some(context, part);
    }
  }
}

}  // namespace
