// Threads that run the tasks of one kernel at a time. The caller works too. Which thread runs a task never matters:
// tasks share nothing, and no reduction crosses threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "context.h"

namespace statemark {

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }
  // Not reentrant, one caller at a time (Context's lock). Rethrows the first exception of a task.
  void run(int64_t tasks, TaskFn fn, void* env);

 private:
  struct Shared;  // what workers touch; left behind, not freed, in a forked child, where its threads do not exist
  void start();

  int threads_;
  unsigned fork_generation_ = 0;
  Shared* shared_ = nullptr;
};

// Rounding and denormals as every kernel expects them, for the time of a scope: round to nearest, denormals are zero
// (they cost up to 100 cycles each on some machines, and a decaying state makes many).
class FloatMode {
 public:
  FloatMode();
  ~FloatMode();
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  unsigned saved_ = 0;
};

}  // namespace statemark
