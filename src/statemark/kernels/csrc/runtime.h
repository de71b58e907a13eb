// One set of threads, one set of scratch memory and one instruction set. Several may exist; each serves one call at a
// time.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "kernel_args.h"
#include "memory.h"
#include "objects.h"
#include "pool.h"

namespace statemark {

// What kernels see as an opaque Context (context.h).
struct Context {
  explicit Context(int threads) : pool(threads), workers(static_cast<size_t>(threads)) {}
  Pool pool;
  Scratch shared[kScratchSlots];
  std::vector<Scratch> workers;
};

std::vector<std::string> available_isas();  // those that were built and that this machine can run, best first

class Runtime {
 public:
  Runtime(int threads, const std::string& isa);
  int threads() const { return context_.pool.threads(); }
  const char* isa() const { return kernels_->isa; }

  void linear(const LinearArgs& args);
  void embed(const int32_t* ids, int64_t count, const Matrix& m, float* out, int64_t out_stride);
  void rms_norm(const RowsArgs& args);
  void swiglu(const RowsArgs& args);
  void rope_tables(const int32_t* positions, int64_t count, const float* inv_freq, int64_t half, float* cos,
                   float* sin);
  void top_logprobs(const LogitsArgs& args);
  void argmax(const LogitsArgs& args);
  // Checks stamps before anything is written, and stamps what it wrote.
  void gated_delta_net(const GatedDeltaNet& gdn, const float* proj, int64_t proj_stride, const Batch& batch,
                       Arena& arena, float* out, int64_t out_stride);
  void attention(const Attention& att, const float* proj, int64_t proj_stride, const float* cos, const float* sin,
                 int64_t rope_stride, const Batch& batch, Arena& arena, float* out, int64_t out_stride);
  double peak_products(int64_t rounds, Packing packing);
  void read_memory(const Matrix& m);

 private:
  class Turn;  // the lock and the float mode of one call
  const KernelTable* kernels_;
  Context context_;
  std::mutex lock_;
};

}  // namespace statemark
