// The constants of one recurrent or attention layer, checked when the layer is made.
#include <type_traits>

#include "objects.h"

namespace statemark {
namespace {

void check_dim(const char* name, int64_t value) {
  require(value >= 1, name, " must be at least 1, got ", value);
  // Rows of a head are read in whole vectors of 8 and several chains at a time.
  require(value % 8 == 0, name, " must be a multiple of 8, got ", value);
}

}  // namespace

GatedDeltaNet::GatedDeltaNet(int64_t index_, int64_t slot_offset_, int64_t key_heads_, int64_t value_heads_,
                             int64_t key_dim_, int64_t value_dim_, int64_t conv_width_, float eps_, const float* conv,
                             const float* a_log_, const float* dt_bias_, const float* norm_weight_)
    : index(index_),
      slot_offset(slot_offset_),
      key_heads(key_heads_),
      value_heads(value_heads_),
      key_dim(key_dim_),
      value_dim(value_dim_),
      conv_width(conv_width_),
      conv_dim(2 * key_heads_ * key_dim_ + value_heads_ * value_dim_),
      eps(eps_),
      a_log(a_log_, a_log_ + value_heads_),
      dt_bias(dt_bias_, dt_bias_ + value_heads_),
      norm_weight(norm_weight_, norm_weight_ + value_dim_) {
  check_dim("key_dim", key_dim);
  check_dim("value_dim", value_dim);
  require(index >= 0 && slot_offset >= 0, "index ", index, " and slot_offset ", slot_offset, " can't be negative");
  require(key_heads >= 1 && value_heads % key_heads == 0, "value_heads ", value_heads, " is no multiple of key_heads ",
          key_heads);
  require(conv_width >= 1 && conv_width <= 16, "conv_width must be 1 to 16, got ", conv_width);
  conv_weight.resize(static_cast<size_t>(conv_width * conv_dim));
  for (int64_t c = 0; c < conv_dim; ++c)
    for (int64_t j = 0; j < conv_width; ++j)
      conv_weight[static_cast<size_t>(j * conv_dim + c)] = conv[c * conv_width + j];
}

Attention::Attention(int64_t index_, int64_t page_offset_, int64_t heads_, int64_t kv_heads_, int64_t head_dim_,
                     int64_t rotary_dim_, float eps_, const float* q_norm_, const float* k_norm_)
    : index(index_),
      page_offset(page_offset_),
      heads(heads_),
      kv_heads(kv_heads_),
      head_dim(head_dim_),
      rotary_dim(rotary_dim_),
      eps(eps_),
      q_norm(q_norm_, q_norm_ + head_dim_),
      k_norm(k_norm_, k_norm_ + head_dim_) {
  check_dim("head_dim", head_dim);
  require(index >= 0 && page_offset >= 0, "index ", index, " and page_offset ", page_offset, " can't be negative");
  require(kv_heads >= 1 && heads % kv_heads == 0, "heads ", heads, " is no multiple of kv_heads ", kv_heads);
  require(rotary_dim >= 0 && rotary_dim % 2 == 0 && rotary_dim <= head_dim,
          "rotary_dim must be even and at most head_dim ", head_dim, ", got ", rotary_dim);
}

}  // namespace statemark
