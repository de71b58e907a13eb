// Python face of Runtime: shapes are checked here, then the interpreter lock is released for the whole kernel.
#include "bindings.h"
#include "runtime.h"

namespace statemark {
namespace {

void linear(Runtime& rt, const Rows& x, const Matrix& m, const OutRows& out, const std::optional<Floats>& bias,
            bool accumulate) {
  require(extent(x, 1) == m.cols(), "x has ", x.shape(1), " columns, the matrix has ", m.cols());
  require_shape("out", out, extent(x, 0), m.rows());
  if (bias) require_length("bias", *bias, m.rows());
  const LinearArgs args{x.data(),
                        row_stride("x", x),
                        extent(x, 0),
                        m.view(),
                        out.data(),
                        row_stride("out", out),
                        bias ? bias->data() : nullptr,
                        accumulate};
  const nb::gil_scoped_release release;
  rt.linear(args);
}

void embed(Runtime& rt, const Ints& ids, const Matrix& m, const OutRows& out) {
  require_shape("out", out, extent(ids, 0), m.cols());
  const int64_t stride = row_stride("out", out);
  for (int64_t t = 0; t < extent(ids, 0); ++t)
    require(ids.data()[t] >= 0 && ids.data()[t] < m.rows(), "token id ", ids.data()[t], " at ", t, " is not in [0, ",
            m.rows(), ")");
  const nb::gil_scoped_release release;
  rt.embed(ids.data(), extent(ids, 0), m, out.data(), stride);
}

void rms_norm(Runtime& rt, const Rows& x, const Floats& weight, float eps, const OutRows& out) {
  require_length("weight", weight, extent(x, 1));
  require_shape("out", out, extent(x, 0), extent(x, 1));
  const RowsArgs args{x.data(), row_stride("x", x), extent(x, 0),          extent(x, 1), weight.data(),
                      eps,      out.data(),         row_stride("out", out)};
  const nb::gil_scoped_release release;
  rt.rms_norm(args);
}

void swiglu(Runtime& rt, const Rows& gate_up, const OutRows& out) {
  require(extent(gate_up, 0) == extent(out, 0) && extent(gate_up, 1) == 2 * extent(out, 1), "out must be ",
          gate_up.shape(0), " x half of ", gate_up.shape(1), ", is ", out.shape(0), " x ", out.shape(1));
  const RowsArgs args{gate_up.data(), row_stride("gate_up", gate_up), extent(out, 0), extent(out, 1), nullptr, 0.0f,
                      out.data(),     row_stride("out", out)};
  const nb::gil_scoped_release release;
  rt.swiglu(args);
}

nb::tuple rope_tables(Runtime& rt, const Ints& positions, const Floats& inv_freq) {
  const int64_t count = extent(positions, 0), half = extent(inv_freq, 0);
  float *cos, *sin;
  auto cos_array = new_array(cos, count, half), sin_array = new_array(sin, count, half);
  {
    const nb::gil_scoped_release release;
    rt.rope_tables(positions.data(), count, inv_freq.data(), half, cos, sin);
  }
  return nb::make_tuple(std::move(cos_array), std::move(sin_array));
}

LogitsArgs logits_args(const Rows& logits) {
  require(logits.shape(1) >= 1 && extent(logits, 1) < (int64_t(1) << 31), "logits have ", logits.shape(1), " columns");
  LogitsArgs args{};
  args.logits = logits.data();
  args.stride = row_stride("logits", logits);
  args.rows = extent(logits, 0);
  args.vocab = extent(logits, 1);
  return args;
}

nb::tuple top_logprobs(Runtime& rt, const Rows& logits, int64_t n, const Ints& targets) {
  LogitsArgs args = logits_args(logits);
  require(n >= 0 && n <= args.vocab, "n must be 0 to ", args.vocab, ", got ", n);
  require_length("targets", targets, args.rows);
  for (int64_t r = 0; r < args.rows; ++r)
    require(targets.data()[r] >= 0 && targets.data()[r] < args.vocab, "target ", targets.data()[r], " of row ", r,
            " is not in [0, ", args.vocab, ")");
  args.n = n;
  args.targets = targets.data();
  auto ids = new_array(args.top_ids, args.rows, n);
  auto values = new_array(args.top_logprobs, args.rows, n);
  auto chosen = new_array(args.target_logprobs, args.rows);
  auto ranks = new_array(args.target_ranks, args.rows);
  {
    const nb::gil_scoped_release release;
    rt.top_logprobs(args);
  }
  return nb::make_tuple(std::move(ids), std::move(values), std::move(chosen), std::move(ranks));
}

auto argmax(Runtime& rt, const Rows& logits) {
  LogitsArgs args = logits_args(logits);
  auto ids = new_array(args.top_ids, args.rows);
  const nb::gil_scoped_release release;
  rt.argmax(args);
  return ids;
}

void gated_delta_net(Runtime& rt, const GatedDeltaNet& gdn, const Rows& proj, const Batch& batch, Arena& arena,
                     const OutRows& out) {
  require(extent(proj, 0) == batch.tokens() && extent(proj, 1) >= gdn.proj_cols(), "proj must be ", batch.tokens(),
          " x ", gdn.proj_cols(), " or wider, is ", proj.shape(0), " x ", proj.shape(1));
  require_shape("out", out, batch.tokens(), gdn.value_heads * gdn.value_dim);
  const int64_t proj_stride = row_stride("proj", proj), out_stride = row_stride("out", out);
  const nb::gil_scoped_release release;
  rt.gated_delta_net(gdn, proj.data(), proj_stride, batch, arena, out.data(), out_stride);
}

void attention(Runtime& rt, const Attention& att, const Rows& proj, const Rows& cos, const Rows& sin,
               const Batch& batch, Arena& arena, const OutRows& out) {
  require(extent(proj, 0) == batch.tokens() && extent(proj, 1) >= att.proj_cols(), "proj must be ", batch.tokens(),
          " x ", att.proj_cols(), " or wider, is ", proj.shape(0), " x ", proj.shape(1));
  require_shape("cos", cos, batch.tokens(), att.rotary_dim / 2);
  require_shape("sin", sin, batch.tokens(), att.rotary_dim / 2);
  require_shape("out", out, batch.tokens(), att.heads * att.head_dim);
  const int64_t rope_stride = row_stride("cos", cos);
  require(row_stride("sin", sin) == rope_stride, "cos and sin must have the same row stride");
  const int64_t proj_stride = row_stride("proj", proj), out_stride = row_stride("out", out);
  const nb::gil_scoped_release release;
  rt.attention(att, proj.data(), proj_stride, cos.data(), sin.data(), rope_stride, batch, arena, out.data(),
               out_stride);
}

double peak_products(Runtime& rt, int64_t rounds, const std::string& dtype) {
  const Packing packing = packing_of(dtype);
  const nb::gil_scoped_release release;
  return rt.peak_products(rounds, packing);
}

void make_runtime(Runtime* self, int threads, const std::optional<std::string>& isa) {
  new (self) Runtime(threads, isa.value_or(""));
}

}  // namespace

void bind_runtime(nb::module_& m) {
  m.def("available_isas", &available_isas);
  nb::class_<Runtime>(m, "Runtime")
      .def("__init__", &make_runtime, nb::arg("threads") = 0, nb::arg("isa") = nb::none())
      .def_prop_ro("threads", &Runtime::threads)
      .def_prop_ro("isa", &Runtime::isa)
      .def("linear", &linear, nb::arg("x").noconvert(), nb::arg("m"), nb::arg("out").noconvert(),
           nb::arg("bias").noconvert() = nb::none(), nb::arg("accumulate") = false)
      .def("embed", &embed, nb::arg("ids").noconvert(), nb::arg("m"), nb::arg("out").noconvert())
      .def("rms_norm", &rms_norm, nb::arg("x").noconvert(), nb::arg("weight").noconvert(), nb::arg("eps"),
           nb::arg("out").noconvert())
      .def("swiglu", &swiglu, nb::arg("gate_up").noconvert(), nb::arg("out").noconvert())
      .def("rope_tables", &rope_tables, nb::arg("positions").noconvert(), nb::arg("inv_freq").noconvert())
      .def("top_logprobs", &top_logprobs, nb::arg("logits").noconvert(), nb::arg("n"), nb::arg("targets").noconvert())
      .def("argmax", &argmax, nb::arg("logits").noconvert())
      .def("gated_delta_net", &gated_delta_net, nb::arg("gdn"), nb::arg("proj").noconvert(), nb::arg("batch"),
           nb::arg("arena"), nb::arg("out").noconvert())
      .def("peak_products", &peak_products, nb::arg("rounds"), nb::arg("dtype"))
      .def("read_memory", &Runtime::read_memory, nb::arg("m"), nb::call_guard<nb::gil_scoped_release>())
      .def("attention", &attention, nb::arg("att"), nb::arg("proj").noconvert(), nb::arg("cos").noconvert(),
           nb::arg("sin").noconvert(), nb::arg("batch"), nb::arg("arena"), nb::arg("out").noconvert());
}

}  // namespace statemark
