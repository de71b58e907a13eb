// The arguments of every kernel as plain structs, and the table through which one instruction set offers its kernels.
// Bounds are checked by the bindings before a struct is filled in; kernels trust it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "context.h"

namespace statemark {

constexpr int kPanel = 32;  // output columns of a weight panel: two AVX-512 or four AVX2 vectors
constexpr int kPage = 16;   // tokens in a page of keys and values
// Tokens of a Gated DeltaNet that enter a state together (delta.inl), and how many of them may wait beside it. More would
// read the state less often, but every mark holds those that wait: 10 % of the state for heads of 128.
constexpr int kFold = 8, kWaiting = kFold - 1;

enum class Packing { kFloat32, kBfloat16, kInt8, kInt4 };

// bf16: words [rows/32][cols/2][32], a word holds column k in its low half and k+1 in its high half.
// f32:  floats [rows/32][cols][32].
// int8, int4: [rows/32][cols/group][a group as quantised.h describes it].
struct WeightView {
  const uint32_t* words;
  int64_t rows, cols, padded_cols;
  Packing packing;
};

struct LinearArgs {
  const float* x;
  int64_t x_stride, m;
  WeightView w;
  float* out;
  int64_t out_stride;
  const float* bias;
  bool accumulate;
};

struct RowsArgs {  // rms_norm, swiglu
  const float* x;
  int64_t x_stride, rows, cols;
  const float* weight;
  float eps;
  float* out;
  int64_t out_stride;
};

struct LogitsArgs {
  const float* logits;
  int64_t stride, rows, vocab;
  int64_t n;
  const int32_t* targets;
  int32_t* top_ids;
  float* top_logprobs;
  float* target_logprobs;
  int32_t* target_ranks;
};

struct BatchView {
  int64_t tokens, seqs;
  const int32_t *seq_start, *seq_position, *state_in, *state_out;
  const int32_t* page_table;
  int64_t page_stride;
  const int32_t* marks;       // [n][3]: sequence, offset, slot
  const int32_t* mark_begin;  // [seqs + 1]
  const int32_t* token_seq;   // [tokens]
};

struct ArenaView {
  uint8_t* pages;
  size_t page_stride;  // bytes
  bool kv_bf16;
  uint8_t* slots;
  size_t slot_stride;  // bytes
};

struct GdnArgs {
  int64_t slot_offset, key_heads, value_heads, key_dim, value_dim, conv_width, conv_dim;
  float eps;
  const float* conv_weight;  // [conv_width][conv_dim]
  const float *a_log, *dt_bias, *norm_weight;
  const float* proj;
  int64_t proj_stride;
  float* out;
  int64_t out_stride;
  BatchView batch;
  ArenaView arena;
};

struct AttentionArgs {
  int64_t page_offset, heads, kv_heads, head_dim, rotary_dim;
  float eps;
  const float *q_norm, *k_norm;
  const float* proj;
  int64_t proj_stride;
  const float *cos, *sin;
  int64_t rope_stride;
  float* out;
  int64_t out_stride;
  BatchView batch;
  ArenaView arena;
};

struct KernelTable {
  const char* isa;
  void (*linear)(Context&, const LinearArgs&);
  void (*rms_norm)(Context&, const RowsArgs&);
  void (*swiglu)(Context&, const RowsArgs&);
  void (*top_logprobs)(Context&, const LogitsArgs&);
  void (*argmax)(Context&, const LogitsArgs&);
  void (*gated_delta_net)(Context&, const GdnArgs&);
  void (*attention)(Context&, const AttentionArgs&);
  double (*peak_products)(Context&, int64_t rounds, Packing packing);  // for the benchmark: operations done
  void (*read_memory)(Context&, const uint8_t* data, int64_t bytes);
};

const KernelTable* portable_kernels();
const KernelTable* avx2_kernels();
const KernelTable* avx512_kernels();
const KernelTable* avx512_emulated_kernels();
const KernelTable* amx_kernels();
const KernelTable* amx_emulated_kernels();

}  // namespace statemark
