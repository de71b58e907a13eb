// What the kernels work on, with the checks that kernels don't repeat: weights, the arena of pages and slots, a batch
// of tokens, and the constants of a layer. Knows neither Python nor instruction sets.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernel_args.h"
#include "memory.h"

namespace statemark {

// A contract would have been broken; becomes statemark.errors.IntegrityError.
struct IntegrityError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws std::invalid_argument (ValueError) with the parts joined.
template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts);
template <class... Parts>
void require(bool ok, const Parts&... parts);

bool is_bf16(const std::string& dtype);  // refuses what is neither "bfloat16" nor "float32"
Packing packing_of(const std::string& dtype);
const char* name_of(Packing packing);

enum class Source { kFloat32, kFloat16, kBfloat16 };

class Matrix {
 public:
  // `packed`: the `nbytes` of another matrix of this shape and type, which stay where they are and are only read.
  Matrix(int64_t rows, int64_t cols, const std::string& dtype, const uint8_t* packed = nullptr, int64_t nbytes = 0);
  int64_t rows() const { return view_.rows; }
  int64_t cols() const { return view_.cols; }
  Packing packing() const { return view_.packing; }
  int64_t nbytes() const { return nbytes_; }
  const WeightView& view() const { return view_; }

  // Packs `count` rows of `cols` values; returns how many are not finite once stored.
  int64_t fill(int64_t row, int64_t count, const void* values, Source source);
  void copy_row(int64_t row, float* out) const;

 private:
  int64_t fill_words(int64_t row, int64_t count, const void* values, Source source);
  int64_t fill_groups(int64_t row, int64_t count, const void* values, Source source);
  Region region_;
  WeightView view_{};
  int64_t nbytes_;
};

class Arena {
 public:
  Arena(int64_t num_pages, int64_t page_elems, const std::string& kv_dtype, int64_t num_slots, int64_t slot_floats,
        int64_t num_stamps);
  void release_page(int64_t i);
  void release_slot(int64_t i);
  void copy_page(int64_t src, int64_t dst);
  void copy_slot(int64_t src, int64_t dst);
  uint8_t* page(int64_t i) const;
  float* slot(int64_t i) const;
  uint64_t* stamp(int64_t slot, int64_t index) { return stamps.data() + 2 * (slot * num_stamps + index); }
  ArenaView view() const;

  const int64_t num_pages, page_elems, num_slots, slot_floats, num_stamps;
  const bool kv_bf16;
  const size_t page_bytes, page_stride, slot_bytes, slot_stride;
  bool check_stamps = true;
  std::vector<uint64_t> stamps;  // [slot][index][tokens consumed, rolling hash]

 private:
  Region pages_, slots_;
};

uint64_t next_hash(uint64_t hash, int32_t token);

class Batch {
 public:
  // Bounds that need no arena are checked here, those that do by check_arena.
  Batch(std::vector<int32_t> token_ids, std::vector<int32_t> seq_start, std::vector<int32_t> seq_position,
        std::vector<uint64_t> seq_hash, std::vector<int32_t> state_in, std::vector<int32_t> state_out,
        std::vector<int32_t> marks, std::vector<int32_t> page_table, int64_t page_columns);
  void check_arena(const Arena& arena) const;
  BatchView view() const;
  int64_t tokens() const { return static_cast<int64_t>(token_ids.size()); }
  int64_t seqs() const { return static_cast<int64_t>(seq_position.size()); }

  const std::vector<int32_t> token_ids, seq_start, seq_position;
  const std::vector<uint64_t> seq_hash;
  const std::vector<int32_t> state_in, state_out, marks, page_table;
  const int64_t page_columns;
  std::vector<uint64_t> end_hash, mark_hash;

 private:
  void check_sequences() const;
  void check_marks();
  void check_writers() const;
  void hash_tokens();
  std::vector<int32_t> token_seq_, mark_begin_;
  int32_t largest_slot_ = -1, largest_page_ = -1;
};

struct GatedDeltaNet {
  GatedDeltaNet(int64_t index, int64_t slot_offset, int64_t key_heads, int64_t value_heads, int64_t key_dim,
                int64_t value_dim, int64_t conv_width, float eps, const float* conv_weight, const float* a_log,
                const float* dt_bias, const float* norm_weight);
  int64_t proj_cols() const { return conv_dim + value_heads * value_dim + 2 * value_heads; }
  // States [value_heads][key_dim][value_dim]; the convolution's window [conv_width - 1][conv_dim]; tokens that wait:
  // keys [kWaiting][key_heads][key_dim], deltas [kWaiting][value_heads][value_dim], decays [kWaiting][value_heads].
  int64_t slot_floats() const {
    return value_heads * key_dim * value_dim + (conv_width - 1) * conv_dim +
           kWaiting * (key_heads * key_dim + value_heads * (value_dim + 1));
  }

  int64_t index, slot_offset, key_heads, value_heads, key_dim, value_dim, conv_width, conv_dim;
  float eps;
  std::vector<float> conv_weight;  // [conv_width][conv_dim]: transposed, so that channels are lanes
  std::vector<float> a_log, dt_bias, norm_weight;
};

struct Attention {
  Attention(int64_t index, int64_t page_offset, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t rotary_dim,
            float eps, const float* q_norm, const float* k_norm);
  int64_t proj_cols() const { return 2 * (heads + kv_heads) * head_dim; }
  int64_t page_elems() const { return 2 * kPage * kv_heads * head_dim; }

  int64_t index, page_offset, heads, kv_heads, head_dim, rotary_dim;
  float eps;
  std::vector<float> q_norm, k_norm;
};

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::string message;
  const auto add = [&message](const auto& part) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>)
      message += std::to_string(part);
    else
      message += part;
  };
  (add(parts), ...);
  throw std::invalid_argument(message);
}

template <class... Parts>
void require(bool ok, const Parts&... parts) {
  if (!ok) refuse(parts...);
}

}  // namespace statemark
