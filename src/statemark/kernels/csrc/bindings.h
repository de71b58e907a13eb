// Array arguments as the bindings take them: never copied, never converted, rows may have a stride.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "objects.h"

namespace statemark {

namespace nb = nanobind;

using Rows = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using OutRows = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class Array>
int64_t extent(const Array& a, size_t i) {
  return static_cast<int64_t>(a.shape(i));
}

// Row stride in elements. A single row has none that matters; one column has no inner stride that matters.
template <class Array>
int64_t row_stride(const char* name, const Array& a) {
  if (a.size() == 0) return extent(a, 1);
  require(a.shape(1) <= 1 || a.stride(1) == 1, name, " must have contiguous rows, its inner stride is ", a.stride(1));
  require(a.shape(0) <= 1 || a.stride(0) >= extent(a, 1), name,
          " must have rows that don't overlap, its row stride is ", a.stride(0), " for ", a.shape(1), " columns");
  return a.shape(0) <= 1 ? extent(a, 1) : a.stride(0);
}

template <class Array>
void require_shape(const char* name, const Array& a, int64_t rows, int64_t cols) {
  require(extent(a, 0) == rows && extent(a, 1) == cols, name, " must be ", rows, " x ", cols, ", is ", a.shape(0),
          " x ", a.shape(1));
}

template <class Array>
void require_length(const char* name, const Array& a, int64_t length) {
  require(extent(a, 0) == length, name, " must have ", length, " elements, has ", a.shape(0));
}

// A new NumPy array that owns its memory.
template <class T, class... Shape>
nb::ndarray<nb::numpy, T> new_array(T*& data, Shape... shape) {
  size_t size = 1;
  ((size *= static_cast<size_t>(shape)), ...);
  data = new T[size ? size : 1];
  const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return nb::ndarray<nb::numpy, T>(data, {static_cast<size_t>(shape)...}, owner);
}

void bind_memory(nb::module_& m);   // Matrix, Arena
void bind_layers(nb::module_& m);   // Batch, GatedDeltaNet, Attention
void bind_runtime(nb::module_& m);  // Runtime, available_isas

}  // namespace statemark
