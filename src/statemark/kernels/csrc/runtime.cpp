#include "runtime.h"

#include <sched.h>

#if defined(STATEMARK_HAVE_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cmath>
#include <cstdlib>
#include <thread>

namespace statemark {
namespace {

using TableFn = const KernelTable* (*)();

#if defined(STATEMARK_HAVE_X86)
bool runs_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#endif

#if defined(STATEMARK_HAVE_AVX512)
bool runs_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
}
#endif

#if defined(STATEMARK_HAVE_AMX)
// Linux lets a process use tiles once it has asked (5.16 and later; sandboxes may refuse); threads and children inherit it.
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

bool runs_amx() {
  constexpr unsigned kBfloat16 = 1u << 22, kTile = 1u << 24;
  unsigned a, b, c, d;
  if (!runs_avx512() || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  return (d & kBfloat16) && (d & kTile) && may_use_tiles();
}
#endif

std::vector<const KernelTable*> usable_tables() {
  std::vector<const KernelTable*> tables;
#if defined(STATEMARK_HAVE_AMX)
  if (runs_amx()) tables.push_back(amx_kernels());
#endif
#if defined(STATEMARK_HAVE_AVX512)
  if (runs_avx512()) tables.push_back(avx512_kernels());
#endif
#if defined(STATEMARK_HAVE_X86)
  if (runs_avx2()) tables.push_back(avx2_kernels());
#endif
  tables.push_back(portable_kernels());
#if defined(STATEMARK_HAVE_EMULATION)
  if (runs_avx2()) {  // last: only ever chosen by name
    tables.push_back(avx512_emulated_kernels());
    tables.push_back(amx_emulated_kernels());
  }
#endif
  return tables;
}

const KernelTable* find_table(const std::string& isa) {
  std::string known;
  for (const KernelTable* table : usable_tables()) {
    if (isa.empty() || isa == table->isa) return table;
    known += (known.empty() ? "" : ", ") + std::string(table->isa);
  }
  refuse("instruction set '", isa, "' is not available; this build and machine offer: ", known);
}

int usable_cores() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  const unsigned n = std::thread::hardware_concurrency();
  return n ? static_cast<int>(n) : 1;
}

int checked_threads(int threads) {
  require(threads >= 0 && threads <= 1024, "threads must be 0 (all cores) to 1024, got ", threads);
  return threads ? threads : usable_cores();
}

std::string chosen_isa(const std::string& isa) {
  if (!isa.empty()) return isa;
  const char* wanted = std::getenv("STATEMARK_ISA");
  return wanted ? wanted : "";
}

}  // namespace

void run_tasks(Context& context, int64_t tasks, TaskFn fn, void* env) { context.pool.run(tasks, fn, env); }
int worker_count(const Context& context) { return context.pool.threads(); }
float* shared_scratch(Context& context, int slot, size_t floats) { return context.shared[slot].floats(floats); }
float* worker_scratch(Context& context, int worker, size_t floats) {
  return context.workers[static_cast<size_t>(worker)].floats(floats);
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const KernelTable* table : usable_tables()) names.emplace_back(table->isa);
  return names;
}

class Runtime::Turn {
 public:
  explicit Turn(Runtime& runtime) : hold_(runtime.lock_) {}

 private:
  std::lock_guard<std::mutex> hold_;
  FloatMode mode_;
};

Runtime::Runtime(int threads, const std::string& isa)
    : kernels_(find_table(chosen_isa(isa))), context_(checked_threads(threads)) {}

void Runtime::linear(const LinearArgs& args) {
  const Turn turn(*this);
  kernels_->linear(context_, args);
}

void Runtime::embed(const int32_t* ids, int64_t count, const Matrix& m, float* out, int64_t out_stride) {
  const Turn turn(*this);
  const auto copy = [&](int64_t t) { m.copy_row(ids[t], out + t * out_stride); };
  run_tasks(
      context_, count, [](void* env, int64_t t, int) { (*static_cast<decltype(copy)*>(env))(t); },
      const_cast<void*>(static_cast<const void*>(&copy)));
}

void Runtime::rms_norm(const RowsArgs& args) {
  const Turn turn(*this);
  kernels_->rms_norm(context_, args);
}

void Runtime::swiglu(const RowsArgs& args) {
  const Turn turn(*this);
  kernels_->swiglu(context_, args);
}

// The angle is rounded to float32 as the models were trained with it; its sine and cosine are computed in double.
void Runtime::rope_tables(const int32_t* positions, int64_t count, const float* inv_freq, int64_t half, float* cos,
                          float* sin) {
  for (int64_t t = 0; t < count; ++t)
    for (int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(positions[t]) * inv_freq[i];
      cos[t * half + i] = static_cast<float>(std::cos(static_cast<double>(angle)));
      sin[t * half + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
}

void Runtime::top_logprobs(const LogitsArgs& args) {
  const Turn turn(*this);
  kernels_->top_logprobs(context_, args);
}

void Runtime::argmax(const LogitsArgs& args) {
  const Turn turn(*this);
  kernels_->argmax(context_, args);
}

double Runtime::peak_products(int64_t rounds, Packing packing) {
  const Turn turn(*this);
  return kernels_->peak_products(context_, rounds, packing);
}

void Runtime::read_memory(const Matrix& m) {
  const Turn turn(*this);
  kernels_->read_memory(context_, reinterpret_cast<const uint8_t*>(m.view().words), m.nbytes() >> 20 << 20);
}

namespace {

void check_stamps(const GatedDeltaNet& gdn, const Batch& batch, Arena& arena) {
  for (size_t s = 0; s < static_cast<size_t>(batch.seqs()); ++s) {
    if (batch.state_in[s] < 0) continue;
    const uint64_t* stamp = arena.stamp(batch.state_in[s], gdn.index);
    const auto position = static_cast<uint64_t>(batch.seq_position[s]);
    if (stamp[0] == position && stamp[1] == batch.seq_hash[s]) continue;
    throw IntegrityError("sequence " + std::to_string(s) + ", recurrent layer " + std::to_string(gdn.index) +
                         ": slot " + std::to_string(batch.state_in[s]) + " holds the state after " +
                         std::to_string(stamp[0]) + " tokens with hash " + std::to_string(stamp[1]) +
                         ", but the sequence continues at " + std::to_string(position) + " with hash " +
                         std::to_string(batch.seq_hash[s]));
  }
}

// While a kernel writes to a slot its stamp is one that no sequence can ask for (positions fit 31 bits).
template <class Fn>
void each_destination(const Batch& batch, const Fn& f) {
  for (size_t m = 0; m < batch.mark_hash.size(); ++m) {
    const auto s = static_cast<size_t>(batch.marks[3 * m]);
    f(batch.marks[3 * m + 2], uint64_t(batch.seq_position[s]) + uint64_t(batch.marks[3 * m + 1]), batch.mark_hash[m]);
  }
  for (size_t s = 0; s < batch.end_hash.size(); ++s)
    f(batch.state_out[s], uint64_t(batch.seq_position[s]) + uint64_t(batch.seq_start[s + 1] - batch.seq_start[s]),
      batch.end_hash[s]);
}

}  // namespace

void Runtime::gated_delta_net(const GatedDeltaNet& gdn, const float* proj, int64_t proj_stride, const Batch& batch,
                              Arena& arena, float* out, int64_t out_stride) {
  batch.check_arena(arena);
  require(gdn.index < arena.num_stamps, "recurrent layer ", gdn.index, " has no stamp: the arena has ",
          arena.num_stamps);
  require(gdn.slot_offset + gdn.slot_floats() <= arena.slot_floats, "a state of ", gdn.slot_floats(), " floats at ",
          gdn.slot_offset, " doesn't fit a slot of ", arena.slot_floats);
  const Turn turn(*this);
  if (arena.check_stamps) check_stamps(gdn, batch, arena);
  each_destination(batch, [&](int32_t slot, uint64_t, uint64_t) { arena.stamp(slot, gdn.index)[0] = ~uint64_t(0); });
  kernels_->gated_delta_net(
      context_, {gdn.slot_offset, gdn.key_heads, gdn.value_heads, gdn.key_dim, gdn.value_dim, gdn.conv_width,
                 gdn.conv_dim, gdn.eps, gdn.conv_weight.data(), gdn.a_log.data(), gdn.dt_bias.data(),
                 gdn.norm_weight.data(), proj, proj_stride, out, out_stride, batch.view(), arena.view()});
  each_destination(batch, [&](int32_t slot, uint64_t count, uint64_t hash) {
    arena.stamp(slot, gdn.index)[0] = count;
    arena.stamp(slot, gdn.index)[1] = hash;
  });
}

void Runtime::attention(const Attention& att, const float* proj, int64_t proj_stride, const float* cos,
                        const float* sin, int64_t rope_stride, const Batch& batch, Arena& arena, float* out,
                        int64_t out_stride) {
  batch.check_arena(arena);
  require(att.page_offset + att.page_elems() <= arena.page_elems, "a layer of ", att.page_elems(), " elements at ",
          att.page_offset, " doesn't fit a page of ", arena.page_elems);
  const Turn turn(*this);
  kernels_->attention(context_, {att.page_offset, att.heads, att.kv_heads, att.head_dim, att.rotary_dim, att.eps,
                                 att.q_norm.data(), att.k_norm.data(), proj, proj_stride, cos, sin, rope_stride, out,
                                 out_stride, batch.view(), arena.view()});
}

}  // namespace statemark
