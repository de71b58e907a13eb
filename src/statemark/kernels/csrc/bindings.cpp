// The module statemark.kernels._core: C++ errors become ValueError or statemark.errors.IntegrityError.
#include "bindings.h"

#include "kernel_args.h"

NB_MODULE(_core, m) {
  using namespace statemark;
  m.doc() = "Kernels of Statemark. The interpreter lock is released in each; see _core.pyi for signatures.";
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const IntegrityError& error) {
      const nb::object kind = nb::module_::import_("statemark.errors").attr("IntegrityError");
      PyErr_SetString(kind.ptr(), error.what());
    }
  });
  // A Runtime kept in a global or a cache lives until the process ends; that is no leak to report to a user.
  nb::set_leak_warnings(false);
  m.attr("PAGE") = kPage;
  m.attr("PANEL") = kPanel;
  bind_memory(m);
  bind_layers(m);
  bind_runtime(m);
}
