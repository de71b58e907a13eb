// Python faces of Matrix and Arena.
#include "bindings.h"

namespace statemark {
namespace {

using Weights = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

Source source_of(const Weights& w) {
  const auto type = w.dtype();
  using Code = nb::dlpack::dtype_code;
  if (type.code == uint8_t(Code::Float) && type.bits == 32) return Source::kFloat32;
  if (type.code == uint8_t(Code::Float) && type.bits == 16) return Source::kFloat16;
  if (type.code == uint8_t(Code::UInt) && type.bits == 16) return Source::kBfloat16;
  refuse("weights must be float32, float16 or uint16 (the bits of bfloat16); got type code ", int(type.code), " of ",
         int(type.bits), " bits");
}

int64_t fill(Matrix& m, int64_t row, const Weights& w) {
  require(extent(w, 1) == m.cols(), "weights have ", w.shape(1), " columns, the matrix has ", m.cols());
  const Source source = source_of(w);
  const void* data = static_cast<const void*>(w.data());
  const int64_t count = extent(w, 0);
  const nb::gil_scoped_release release;
  return m.fill(row, count, data, source);
}

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void make_matrix(Matrix* self, int64_t rows, int64_t cols, const std::string& dtype, const std::optional<Bytes>& packed) {
  packed ? new (self) Matrix(rows, cols, dtype, packed->data(), extent(*packed, 0)) : new (self) Matrix(rows, cols, dtype);
}

auto packed_bytes(nb::handle_t<Matrix> self) {
  const auto& m = nb::cast<const Matrix&>(self);
  const size_t shape[1] = {static_cast<size_t>(m.nbytes())};
  return nb::ndarray<nb::numpy, const uint8_t>(m.view().words, 1, shape, self);
}

auto to_float32(const Matrix& m) {
  float* data;
  auto out = new_array(data, m.rows(), m.cols());
  for (int64_t r = 0; r < m.rows(); ++r) m.copy_row(r, data + r * m.cols());
  return out;
}

nb::object page_view(nb::handle_t<Arena> self, int64_t i) {
  const auto& arena = nb::cast<Arena&>(self);
  const size_t shape[1] = {static_cast<size_t>(arena.page_elems)};
  if (arena.kv_bf16) return nb::cast(nb::ndarray<nb::numpy, uint16_t>(arena.page(i), 1, shape, self));
  return nb::cast(nb::ndarray<nb::numpy, float>(arena.page(i), 1, shape, self));
}

nb::ndarray<nb::numpy, float> slot_view(nb::handle_t<Arena> self, int64_t i) {
  const auto& arena = nb::cast<Arena&>(self);
  const size_t shape[1] = {static_cast<size_t>(arena.slot_floats)};
  return {arena.slot(i), 1, shape, self};
}

nb::ndarray<nb::numpy, uint64_t> stamps_view(nb::handle_t<Arena> self) {
  auto& arena = nb::cast<Arena&>(self);
  const size_t shape[3] = {static_cast<size_t>(arena.num_slots), static_cast<size_t>(arena.num_stamps), 2};
  return {arena.stamps.data(), 3, shape, self};
}

}  // namespace

void bind_memory(nb::module_& m) {
  nb::class_<Matrix>(m, "Matrix")
      .def("__init__", &make_matrix, nb::arg("rows"), nb::arg("cols"), nb::arg("dtype") = "bfloat16",
           nb::arg("packed").noconvert() = nb::none(), nb::keep_alive<1, 5>())
      .def("fill", &fill, nb::arg("row"), nb::arg("w").noconvert())
      .def("to_float32", &to_float32)
      .def_prop_ro("rows", &Matrix::rows)
      .def_prop_ro("cols", &Matrix::cols)
      .def_prop_ro("dtype", [](const Matrix& self) { return name_of(self.packing()); })
      .def_prop_ro("packed", &packed_bytes)
      .def_prop_ro("nbytes", &Matrix::nbytes);

  nb::class_<Arena>(m, "Arena")
      .def(nb::init<int64_t, int64_t, const std::string&, int64_t, int64_t, int64_t>(), nb::arg("num_pages"),
           nb::arg("page_elems"), nb::arg("kv_dtype"), nb::arg("num_slots"), nb::arg("slot_floats"),
           nb::arg("num_stamps"))
      .def("release_page", &Arena::release_page, nb::arg("i"))
      .def("release_slot", &Arena::release_slot, nb::arg("i"))
      .def("copy_page", &Arena::copy_page, nb::arg("src"), nb::arg("dst"), nb::call_guard<nb::gil_scoped_release>())
      .def("copy_slot", &Arena::copy_slot, nb::arg("src"), nb::arg("dst"), nb::call_guard<nb::gil_scoped_release>())
      .def("page", &page_view, nb::arg("i"))
      .def("slot", &slot_view, nb::arg("i"))
      .def_prop_ro("stamps", &stamps_view)
      .def_rw("check_stamps", &Arena::check_stamps)
      .def_ro("num_pages", &Arena::num_pages)
      .def_ro("page_elems", &Arena::page_elems)
      .def_prop_ro("kv_dtype", [](const Arena& self) { return self.kv_bf16 ? "bfloat16" : "float32"; })
      .def_ro("num_slots", &Arena::num_slots)
      .def_ro("slot_floats", &Arena::slot_floats)
      .def_ro("num_stamps", &Arena::num_stamps);
}

}  // namespace statemark
