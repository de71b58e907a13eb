// What a kernel may ask of the runtime: to run tasks, and scratch memory. Kernels know no threads, no locks and no
// Python.
//
// Only declarations: the kernel files are compiled once per instruction set, and an inline function here could be
// merged by the linker into the copy that was compiled for a newer CPU than the one we run on.
#pragma once

#include <cstddef>
#include <cstdint>

namespace statemark {

struct Context;

using TaskFn = void (*)(void* env, int64_t task, int worker);

// Runs fn(env, 0..tasks-1, worker), each task once, in no particular order, worker in [0, worker_count).
void run_tasks(Context& context, int64_t tasks, TaskFn fn, void* env);
int worker_count(const Context& context);

// Uninitialised memory, aligned to 64 bytes, valid until the next request for the same (worker and) slot.
constexpr int kScratchSlots = 4;
float* shared_scratch(Context& context, int slot, size_t floats);
float* worker_scratch(Context& context, int worker, size_t floats);

}  // namespace statemark
