// Causal attention over paged keys and values: what happens to each query before and after the walk over keys.
//
// Stage 1, per token: normalise and rotate k, write k and v to the page; normalise, rotate and scale q.
// Stage 2, per (sequence, KV head, block of queries): walk the keys (attend.inl), divide, gate, write.
// A query's result depends on its own q and on keys 0..p only; see attend.inl for the order.

namespace {

struct AttentionJob {
  const AttentionArgs& args;
  int64_t group;   // query heads that share a KV head
  float* queries;  // [kv_heads][tokens][group][head_dim], scaled by head_dim^-1/2
  int64_t elem;    // bytes of a key or value

  const uint8_t* layer_block(int64_t s, int64_t page, int64_t kv_head) const {
    const int64_t index = args.batch.page_table[s * args.batch.page_stride + page];
    return args.arena.pages + static_cast<size_t>(index) * args.arena.page_stride +
           static_cast<size_t>((args.page_offset + kv_head * 2 * kPage * args.head_dim) * elem);
  }
  float* query(int64_t kv_head, int64_t token) const {
    return queries + (kv_head * args.batch.tokens + token) * group * args.head_dim;
  }
};

// RMSNorm and rotate-half rope on the first rotary_dim of one head; `scale` multiplies the result.
inline void prepare_head(const AttentionArgs& args, const float* x, const float* weight, int64_t token, float scale,
                         float* out) {
  rms_norm_row(x, weight, args.head_dim, args.eps, out);
  const int64_t half = args.rotary_dim / 2;
  const float *cos = args.cos + token * args.rope_stride, *sin = args.sin + token * args.rope_stride;
  each_vector(half, [&](int64_t i, int lanes) {
    const F a = load_some(out + i, lanes), b = load_some(out + half + i, lanes);
    const F c = load_some(cos + i, lanes), s = load_some(sin + i, lanes);
    store_some(out + i, Vec::sub(Vec::mul(a, c), Vec::mul(b, s)), lanes);
    store_some(out + half + i, Vec::add(Vec::mul(b, c), Vec::mul(a, s)), lanes);
  });
  if (scale != 1.0f) scale_row(out, args.head_dim, scale);
}

inline void write_page(const AttentionJob& job, int64_t s, int64_t position, int64_t kv_head, const float* k,
                       const float* v) {
  const int64_t d = job.args.head_dim, column = position % kPage;
  uint8_t* block = const_cast<uint8_t*>(job.layer_block(s, position / kPage, kv_head));
  if (job.args.arena.kv_bf16) {
    auto *keys = reinterpret_cast<uint16_t*>(block), *values = keys + kPage * d;
    for (int64_t i = 0; i < d; ++i) keys[i * kPage + column] = static_cast<uint16_t>(to_bf16(k[i]));
    for (int64_t i = 0; i < d; ++i) values[column * d + i] = static_cast<uint16_t>(to_bf16(v[i]));
    return;
  }
  auto *keys = reinterpret_cast<float*>(block), *values = keys + kPage * d;
  for (int64_t i = 0; i < d; ++i) keys[i * kPage + column] = k[i];
  for (int64_t i = 0; i < d; ++i) values[column * d + i] = v[i];
}

// Stage 1.
void prepare_attention_token(const AttentionJob& job, int64_t t, float* scratch) {
  const AttentionArgs& args = job.args;
  const int64_t d = args.head_dim, s = args.batch.token_seq[t];
  const float* row = args.proj + t * args.proj_stride;
  const float* keys = row + 2 * args.heads * d;
  const float scale = 1.0f / __builtin_sqrtf(static_cast<float>(d));
  for (int64_t h = 0; h < args.heads; ++h)
    prepare_head(args, row + 2 * h * d, args.q_norm, t, scale, job.query(h / job.group, t) + h % job.group * d);
  const int64_t position = args.batch.seq_position[s] + (t - args.batch.seq_start[s]);
  for (int64_t h = 0; h < args.kv_heads; ++h) {
    prepare_head(args, keys + h * d, args.k_norm, t, 1.0f, scratch);
    write_page(job, s, position, h, scratch, keys + (args.kv_heads + h) * d);
  }
}

// Rows of queries that walk the keys of one KV head together: `tokens` tokens of one sequence, `group` heads each.
struct QueryBlock {
  int64_t seq, kv_head, token, tokens, position;  // position of its first token
};

inline NextTile next_tile(const AttentionJob& job, const QueryBlock& block, int64_t key) {
  NextTile next{{}, kPage * job.args.head_dim * job.elem};
  for (int p = 0; p < kTilePages && key + p * kPage < block.position + block.tokens; ++p)
    next.pages[p] = reinterpret_cast<const char*>(job.layer_block(block.seq, key / kPage + p, block.kv_head));
  return next;
}

#ifdef STATEMARK_AMX
// Like attend_segment, for pages of bfloat16.
void attend_segment_on_tiles(const AttentionJob& job, const QueryBlock& block, int64_t segment, const AttendScratch& s,
                             float* scratch) {
  const int64_t d = job.args.head_dim, rows = block.tokens * job.group;
  const TileScratch t(scratch, rows, d);
  round_queries(job.query(block.kv_head, block.token), rows, d, t);
  __builtin_memset(t.weights, 0, static_cast<size_t>(round_up(rows, kAmxRows) * kPairRows) * sizeof(uint32_t));
  for (int64_t r = 0; r < rows; ++r) {
    s.m[r] = -__builtin_inff();
    Vec::store(t.sums + r * W, Vec::zero());
  }
  Tiles tiles(static_cast<int>(at_most(rows, kAmxRows)));
  const int64_t end = at_most((segment + 1) * kSegment, block.position + block.tokens);
  for (int64_t key = segment * kSegment; key < end; key += kKeyTile) {
    KeyTile k{{}, static_cast<int>(at_most(kKeyTile, end - key)), key == segment * kSegment, rows, job.group, d};
    for (int p = 0; p * kPage < k.count; ++p) k.blocks[p] = job.layer_block(block.seq, key / kPage + p, block.kv_head);
    for (int64_t n = 0, r = 0; n < block.tokens; ++n)
      for (const int64_t end_row = r + job.group; r < end_row; ++r)
        s.seen[r] = static_cast<int32_t>(at_least(0, at_most(kKeyTile, block.position + n + 1 - key)));
    attend_key_tile(tiles, k, next_tile(job, block, key + kKeyTile), t, s);
  }
  for (int64_t r = 0; r < rows; ++r) s.l[r] = Vec::sum(Vec::load(t.sums + r * W));
}
#endif

// One segment of keys for all rows of a block, from nothing. Rows that see none of it keep l = 0.
void attend_segment(const AttentionJob& job, const QueryBlock& block, int64_t segment, const AttendScratch& s,
                    [[maybe_unused]] float* more) {
#ifdef STATEMARK_AMX
  if (job.args.arena.kv_bf16) return attend_segment_on_tiles(job, block, segment, s, more);
#endif
  const AttentionArgs& args = job.args;
  const int64_t d = args.head_dim;
  TileRows rows{job.query(block.kv_head, block.token), 0, block.tokens * job.group, d};
  for (int64_t r = 0; r < rows.rows; ++r) {
    s.m[r] = -__builtin_inff();
    s.l[r] = 0.0f;
    for (int64_t i = 0; i < s.o_stride; i += W) Vec::store(s.o + r * s.o_stride + i, Vec::zero());
  }
  const int64_t end = at_most((segment + 1) * kSegment, block.position + block.tokens);
  for (int64_t key = segment * kSegment; key < end; key += kKeyTile) {
    const int columns = static_cast<int>(at_most(kKeyTile, end - key));
    const float* pages[kTilePages];
    for (int p = 0; p * kPage < columns; ++p) {
      const uint8_t* from = job.layer_block(block.seq, key / kPage + p, block.kv_head);
      pages[p] = unpack_keys(from, args.arena.kv_bf16, d, s.keys + p * kPage * d);
      const int count = static_cast<int>(at_most(kPage, columns - p * kPage));
      (args.arena.kv_bf16 ? unpack_values<true> : unpack_values<false>)(from, d, count, p * kPage, s.values);
    }
    for (int64_t r = 0; r < rows.rows; ++r)
      s.seen[r] = static_cast<int32_t>(at_least(0, at_most(kKeyTile, block.position + r / job.group + 1 - key)));
    for (rows.first = 0; s.seen[rows.first] == 0;) ++rows.first;
    const NextTile next = next_tile(job, block, key + kKeyTile);
    score_tile(rows, pages, next, s);
    for (int64_t r = rows.first; r < rows.rows; ++r)
      s.rescale[r] = soften_row(s.weights + r * kKeyTile, s.seen[r], s.m[r], s.l[r]);
    mix_tile(rows, next, s);
  }
}

// Adds a segment to the total of those before it.
void merge_segment(const AttentionJob& job, const QueryBlock& block, int64_t segment, const float* o, const float* m,
                   const float* l, const AttendScratch& s) {
  for (int64_t r = 0; r < block.tokens * job.group; ++r) {
    if (block.position + r / job.group < segment * kSegment) continue;
    float *to = s.total_o + r * s.o_stride, old_scale[W], new_scale[W];
    if (segment == 0) {
      s.total_m[r] = m[r];
      s.total_l[r] = l[r];
      for (int64_t i = 0; i < s.o_stride; i += W) Vec::store(to + i, Vec::load(o + r * s.o_stride + i));
      continue;
    }
    const float top = m[r] > s.total_m[r] ? m[r] : s.total_m[r];
    Vec::store(old_scale, exp(Vec::sub(Vec::set1(s.total_m[r]), Vec::set1(top))));
    Vec::store(new_scale, exp(Vec::sub(Vec::set1(m[r]), Vec::set1(top))));
    s.total_m[r] = top;
    s.total_l[r] = s.total_l[r] * old_scale[0] + l[r] * new_scale[0];
    for (int64_t i = 0; i < s.o_stride; i += W) {
      const F mine = Vec::mul(Vec::load(to + i), Vec::set1(old_scale[0]));
      Vec::store(to + i, Vec::fma(Vec::load(o + r * s.o_stride + i), Vec::set1(new_scale[0]), mine));
    }
  }
}

// out = o / l * sigmoid(gate). A zero loses its sign: with tiles it depends on values of later tokens (attend_amx.inl).
inline void write_rows(const AttentionJob& job, const QueryBlock& block, const float* o, int64_t o_stride,
                       const float* l) {
  const AttentionArgs& args = job.args;
  const int64_t d = args.head_dim;
  for (int64_t r = 0; r < block.tokens * job.group; ++r) {
    const int64_t t = block.token + r / job.group, h = block.kv_head * job.group + r % job.group;
    const float* gate = args.proj + t * args.proj_stride + (2 * h + 1) * d;
    float* out = args.out + t * args.out_stride + h * d;
    const F scale = Vec::div(Vec::set1(1.0f), Vec::set1(l[r]));
    each_vector(d, [&](int64_t i, int lanes) {
      const F y = Vec::mul(Vec::add(load_some(o + r * o_stride + i, lanes), Vec::zero()), scale);
      store_some(out + i, Vec::mul(y, sigmoid(load_some(gate + i, lanes))), lanes);
    });
  }
}

// Up to 96 rows a block: unpacking a tile of keys and values then costs 4 % of the products that use it, and queries,
// outputs and the tile (344 KiB for a head of 256) stay in a 512 KiB L2.
constexpr int64_t kBlockQueries = 96;
#ifdef STATEMARK_AMX
// Products are faster there and L2 is bigger: more rows share a tile that was read and laid out as pairs (measured: 17 %
// faster than with 256 after 32k keys).
constexpr int64_t kTileQueries = 512;
#else
constexpr int64_t kTileQueries = kBlockQueries;
#endif

// Scratch of a worker: AttendScratch, and where tiles are used TileScratch behind it.
inline size_t attend_floats(int64_t rows, int64_t head_dim) {
  size_t n = AttendScratch::floats(rows, head_dim);
#ifdef STATEMARK_AMX
  n += TileScratch::floats(rows, head_dim);
#endif
  return n;
}

struct AttentionPlan {
  const BatchView& batch;
  int64_t kv_heads, tokens_per_block;

  int64_t blocks(int64_t s) const { return ceil_div(batch.seq_start[s + 1] - batch.seq_start[s], tokens_per_block); }
  int64_t total() const {
    int64_t n = 0;
    for (int64_t s = 0; s < batch.seqs; ++s) n += blocks(s);
    return n * kv_heads;
  }
  int64_t most_tokens() const {  // of a block
    int64_t n = 0;
    for (int64_t s = 0; s < batch.seqs; ++s) n = at_least(n, batch.seq_start[s + 1] - batch.seq_start[s]);
    return at_most(n, tokens_per_block);
  }
  // Later blocks first: they have the most keys, and the short ones then fill the gaps between threads.
  QueryBlock at(int64_t task) const {
    int64_t index = task / kv_heads, s = 0;
    while (index >= blocks(s)) index -= blocks(s++);
    const int64_t first = (blocks(s) - 1 - index) * tokens_per_block, start = batch.seq_start[s];
    return {s, task % kv_heads, start + first, at_most(tokens_per_block, batch.seq_start[s + 1] - start - first),
            batch.seq_position[s] + first};
  }
  int64_t segments(const QueryBlock& block) const { return ceil_div(block.position + block.tokens, kSegment); }
};

void attend_whole(const AttentionJob& job, const QueryBlock& block, int64_t segments, float* scratch) {
  const int64_t rows = block.tokens * job.group;
  const AttendScratch parts(scratch, rows, job.args.head_dim);
  float* more = scratch + AttendScratch::floats(rows, job.args.head_dim);
  for (int64_t segment = 0; segment < segments; ++segment) {
    attend_segment(job, block, segment, parts, more);
    merge_segment(job, block, segment, parts.o, parts.m, parts.l, parts);
  }
  write_rows(job, block, parts.total_o, parts.o_stride, parts.total_l);
}

// Few queries and many keys: segments go to different threads, and are merged in the same order as attend_whole does.
void attend_split(Context& context, const AttentionJob& job, const AttentionPlan& plan, int64_t max_segments) {
  const int64_t units = plan.total(), rows = round_up(plan.most_tokens() * job.group, kRowStep);
  const int64_t stride = round_up(job.args.head_dim, kTileCols), part_size = rows * (stride + 2);
  float* parts = shared_scratch(context, 1, static_cast<size_t>(units * max_segments * part_size));
  const size_t scratch_size = attend_floats(rows, job.args.head_dim), own = AttendScratch::floats(rows, job.args.head_dim);
  parallel(context, units * max_segments, [&](int64_t task, int worker) {
    const int64_t unit = task / max_segments, segment = task % max_segments;
    const QueryBlock block = plan.at(unit);
    if (segment >= plan.segments(block)) return;
    float* scratch = worker_scratch(context, worker, scratch_size);
    AttendScratch mine(scratch, rows, job.args.head_dim);
    float* part = parts + task * part_size;
    mine.o = part;
    mine.m = part + rows * stride;
    mine.l = mine.m + rows;
    attend_segment(job, block, segment, mine, scratch + own);
  });
  parallel(context, units, [&](int64_t unit, int worker) {
    const QueryBlock block = plan.at(unit);
    const AttendScratch mine(worker_scratch(context, worker, scratch_size), rows, job.args.head_dim);
    for (int64_t segment = 0; segment < plan.segments(block); ++segment) {
      const float* part = parts + (unit * max_segments + segment) * part_size;
      merge_segment(job, block, segment, part, part + rows * stride, part + rows * stride + rows, mine);
    }
    write_rows(job, block, mine.total_o, mine.o_stride, mine.total_l);
  });
}

void attention(Context& context, const AttentionArgs& args) {
  const BatchView& batch = args.batch;
  float* queries = shared_scratch(context, 0, static_cast<size_t>(batch.tokens * args.heads * args.head_dim));
  const AttentionJob job{args, args.heads / args.kv_heads, queries, args.arena.kv_bf16 ? 2 : 4};
  parallel(context, batch.tokens, [&](int64_t t, int worker) {
    prepare_attention_token(job, t, worker_scratch(context, worker, static_cast<size_t>(args.head_dim)));
  });
  const int64_t block_rows = args.arena.kv_bf16 ? kTileQueries : kBlockQueries;
  const AttentionPlan plan{batch, args.kv_heads, at_least(1, block_rows / job.group)};
  const int64_t units = plan.total();
  int64_t max_segments = 1;
  for (int64_t s = 0; s < batch.seqs; ++s) {
    const int64_t keys = batch.seq_position[s] + batch.seq_start[s + 1] - batch.seq_start[s];
    max_segments = at_least(max_segments, ceil_div(keys, kSegment));
  }
  const int workers = worker_count(context);
  if (workers > 1 && units < 4 * workers && max_segments > 1) return attend_split(context, job, plan, max_segments);
  parallel(context, units, [&](int64_t task, int worker) {
    const QueryBlock block = plan.at(task);
    const size_t size = attend_floats(block.tokens * job.group, args.head_dim);
    attend_whole(job, block, plan.segments(block), worker_scratch(context, worker, size));
  });
}

}  // namespace
