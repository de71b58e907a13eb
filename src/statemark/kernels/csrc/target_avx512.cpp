// The avx512_bf16 kernels; with STATEMARK_AMX, those that use AMX beside them; with STATEMARK_EMULATE_AVX512, the same
// code on any x86 through SIMDe, for tests. Only plain headers here: an inline library function compiled with these flags
// must not be shared with code that runs on other machines (see context.h).
#include <utility>

#include "kernel_args.h"
#include "quantised.h"
#include "vec_avx512.h"

namespace statemark {
#include "kernels.inl"

namespace {
#if defined(STATEMARK_AMX) && defined(STATEMARK_EMULATE_AVX512)
constexpr const char* kIsa = "amx_bf16_emulated";
#define TABLE amx_emulated_kernels
#elif defined(STATEMARK_AMX)
constexpr const char* kIsa = "amx_bf16";
#define TABLE amx_kernels
#elif defined(STATEMARK_EMULATE_AVX512)
constexpr const char* kIsa = "avx512_bf16_emulated";
#define TABLE avx512_emulated_kernels
#else
constexpr const char* kIsa = "avx512_bf16";
#define TABLE avx512_kernels
#endif
const KernelTable kTable = {
    kIsa, linear, rms_norm, swiglu, top_logprobs, argmax, gated_delta_net, attention, peak_products, read_memory,
};
}  // namespace

const KernelTable* TABLE() { return &kTable; }
}  // namespace statemark
