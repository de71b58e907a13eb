// Python faces of Batch, GatedDeltaNet and Attention: arrays are copied, so later changes to them change nothing.
#include "bindings.h"

namespace statemark {
namespace {

using Hashes = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class T, class Array>
std::vector<T> copied(const Array& a) {
  return std::vector<T>(a.data(), a.data() + a.size());
}

void make_batch(Batch* self, const Ints& token_ids, const Ints& seq_start, const Ints& seq_position,
                const Hashes& seq_hash, const Ints& state_in, const Ints& state_out, const Table& marks,
                const Table& page_table) {
  require(marks.size() == 0 || marks.shape(1) == 3, "marks must have 3 columns (sequence, offset, slot), has ",
          marks.shape(1));
  require(extent(page_table, 0) == extent(seq_position, 0), "page_table has ", page_table.shape(0), " rows for ",
          seq_position.shape(0), " sequences");
  require(extent(seq_start, 0) == extent(seq_position, 0) + 1, "seq_start has ", seq_start.shape(0), " elements for ",
          seq_position.shape(0), " sequences; it needs one more");
  new (self) Batch(copied<int32_t>(token_ids), copied<int32_t>(seq_start), copied<int32_t>(seq_position),
                   copied<uint64_t>(seq_hash), copied<int32_t>(state_in), copied<int32_t>(state_out),
                   copied<int32_t>(marks), copied<int32_t>(page_table), extent(page_table, 1));
}

void make_gdn(GatedDeltaNet* self, int64_t index, int64_t slot_offset, int64_t key_heads, int64_t value_heads,
              int64_t key_dim, int64_t value_dim, int64_t conv_width, float eps, const Rows& conv_weight,
              const Floats& a_log, const Floats& dt_bias, const Floats& norm_weight) {
  require(key_heads >= 1 && value_heads >= 1 && key_dim >= 1 && value_dim >= 1,
          "heads and dims must be at least 1, got ", key_heads, ", ", value_heads, ", ", key_dim, ", ", value_dim);
  require_shape("conv_weight", conv_weight, 2 * key_heads * key_dim + value_heads * value_dim, conv_width);
  require(row_stride("conv_weight", conv_weight) == conv_width, "conv_weight must be contiguous");
  require_length("a_log", a_log, value_heads);
  require_length("dt_bias", dt_bias, value_heads);
  require_length("norm_weight", norm_weight, value_dim);
  new (self) GatedDeltaNet(index, slot_offset, key_heads, value_heads, key_dim, value_dim, conv_width, eps,
                           conv_weight.data(), a_log.data(), dt_bias.data(), norm_weight.data());
}

void make_attention(Attention* self, int64_t index, int64_t page_offset, int64_t heads, int64_t kv_heads,
                    int64_t head_dim, int64_t rotary_dim, float eps, const Floats& q_norm, const Floats& k_norm) {
  require(heads >= 1 && kv_heads >= 1 && head_dim >= 1, "heads and dims must be at least 1, got ", heads, ", ",
          kv_heads, ", ", head_dim);
  require_length("q_norm", q_norm, head_dim);
  require_length("k_norm", k_norm, head_dim);
  new (self) Attention(index, page_offset, heads, kv_heads, head_dim, rotary_dim, eps, q_norm.data(), k_norm.data());
}

}  // namespace

void bind_layers(nb::module_& m) {
  nb::class_<Batch>(m, "Batch")
      .def("__init__", &make_batch, nb::arg("token_ids"), nb::arg("seq_start"), nb::arg("seq_position"),
           nb::arg("seq_hash"), nb::arg("state_in"), nb::arg("state_out"), nb::arg("marks"), nb::arg("page_table"))
      .def_prop_ro("num_tokens", &Batch::tokens)
      .def_prop_ro("num_seqs", &Batch::seqs)
      .def_prop_ro("end_hash", [](const Batch& self) { return self.end_hash; })
      .def_prop_ro("mark_hash", [](const Batch& self) { return self.mark_hash; });

  nb::class_<GatedDeltaNet>(m, "GatedDeltaNet")
      .def("__init__", &make_gdn, nb::arg("index"), nb::arg("slot_offset"), nb::arg("key_heads"),
           nb::arg("value_heads"), nb::arg("key_dim"), nb::arg("value_dim"), nb::arg("conv_width"), nb::arg("eps"),
           nb::arg("conv_weight"), nb::arg("a_log"), nb::arg("dt_bias"), nb::arg("norm_weight"))
      .def_ro("index", &GatedDeltaNet::index)
      .def_ro("conv_dim", &GatedDeltaNet::conv_dim)
      .def_prop_ro("slot_floats", &GatedDeltaNet::slot_floats);

  nb::class_<Attention>(m, "Attention")
      .def("__init__", &make_attention, nb::arg("index"), nb::arg("page_offset"), nb::arg("heads"), nb::arg("kv_heads"),
           nb::arg("head_dim"), nb::arg("rotary_dim"), nb::arg("eps"), nb::arg("q_norm"), nb::arg("k_norm"))
      .def_ro("index", &Attention::index)
      .def_prop_ro("page_elems", &Attention::page_elems);
}

}  // namespace statemark
