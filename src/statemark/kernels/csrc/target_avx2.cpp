// The avx2 kernels. Only plain headers here: an inline library function compiled with these flags must not be
// shared with code that runs on other machines (see context.h).
#include <utility>

#include "kernel_args.h"
#include "quantised.h"
#include "vec_avx2.h"

namespace statemark {
#include "kernels.inl"

namespace {
const KernelTable kTable = {
    "avx2", linear, rms_norm, swiglu, top_logprobs, argmax, gated_delta_net, attention, peak_products, read_memory,
};
}

const KernelTable* avx2_kernels() { return &kTable; }
}  // namespace statemark
