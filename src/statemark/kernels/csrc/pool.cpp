// How a job is shared: the caller publishes it, workers join while it is open, everyone draws task numbers from one
// counter, and the caller closes it when the counter is used up and waits for those that joined. A worker that wakes
// late finds the job closed and touches nothing, so a busy machine never makes the caller wait for a thread that
// has nothing to do.

#include "pool.h"

#include <pthread.h>

#include <chrono>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace statemark {
namespace {

// Between kernels of one step there are a few microseconds of Python; between steps there may be seconds.
constexpr auto kSpin = std::chrono::microseconds(50);
// The state of the job slot: the low bit says that workers may join, 31 bits count those that did, 32 number the job.
constexpr uint64_t kOpen = 1, kJoin = 2, kJob = uint64_t(1) << 32;

std::atomic<unsigned> fork_generation{0};

void watch_forks() {
  static const int once = pthread_atfork(nullptr, nullptr, [] { fork_generation.fetch_add(1); });
  (void)once;
}

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

FloatMode::FloatMode() {
#if defined(__x86_64__)
  saved_ = _mm_getcsr();
  _mm_setcsr(0x9fc0);  // flush to zero, denormals are zero, exceptions masked, round to nearest
#endif
}

FloatMode::~FloatMode() {
#if defined(__x86_64__)
  _mm_setcsr(saved_);
#endif
}

struct Pool::Shared {
  std::atomic<uint64_t> state{0};
  std::atomic<int> left{0};  // joined workers that are done
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  int64_t tasks = 0;
  TaskFn fn = nullptr;
  void* env = nullptr;
  std::mutex lock;  // guards error and the wait
  std::condition_variable wake;
  std::exception_ptr error;
  std::vector<std::thread> threads;

  void work(int worker) {
    for (;;) {
      const int64_t task = next.fetch_add(1, std::memory_order_relaxed);
      if (task >= tasks) return;
      if (failed.load(std::memory_order_relaxed)) continue;
      try {
        fn(env, task, worker);
      } catch (...) {
        const std::lock_guard<std::mutex> hold(lock);
        if (!failed.exchange(true)) error = std::current_exception();
      }
    }
  }

  // An open job that this worker has not joined yet.
  static bool fresh(uint64_t s, uint64_t joined_job) { return (s & kOpen) && s / kJob != joined_job; }

  bool join(uint64_t& joined_job) {
    uint64_t s = state.load(std::memory_order_acquire);
    while (fresh(s, joined_job))
      if (state.compare_exchange_weak(s, s + kJoin, std::memory_order_acq_rel)) {
        joined_job = s / kJob;
        return true;
      }
    return false;
  }

  // False when the pool is going away.
  bool wait_for_job(uint64_t joined_job) {
    const auto until = std::chrono::steady_clock::now() + kSpin;
    for (int i = 1;; ++i) {
      if (fresh(state.load(std::memory_order_acquire), joined_job)) return true;
      if (stop.load(std::memory_order_relaxed)) return false;
      relax();
      if (i % 64 == 0 && std::chrono::steady_clock::now() > until) break;
    }
    std::unique_lock<std::mutex> hold(lock);
    sleepers.fetch_add(1);  // before looking at the state again: the caller publishes first and looks here second
    wake.wait(hold, [&] { return fresh(state.load(), joined_job) || stop.load(); });
    sleepers.fetch_sub(1);
    return !stop.load();
  }

  void loop(int worker) {
    const FloatMode mode;
    uint64_t joined_job = 0;
    while (wait_for_job(joined_job)) {
      if (!join(joined_job)) continue;
      work(worker);
      left.fetch_add(1, std::memory_order_release);
    }
  }
};

Pool::Pool(int threads) : threads_(threads) {
  watch_forks();
  start();
}

void Pool::start() {
  fork_generation_ = fork_generation.load();
  shared_ = new Shared;
  for (int worker = 1; worker < threads_; ++worker)
    shared_->threads.emplace_back([shared = shared_, worker] { shared->loop(worker); });
}

Pool::~Pool() {
  if (fork_generation_ != fork_generation.load()) return;  // in a child: the threads never existed here
  {
    const std::lock_guard<std::mutex> hold(shared_->lock);
    shared_->stop.store(true);
  }
  shared_->wake.notify_all();
  for (auto& thread : shared_->threads) thread.join();
  delete shared_;
}

void Pool::run(int64_t tasks, TaskFn fn, void* env) {
  if (tasks <= 1 || threads_ == 1) {
    for (int64_t task = 0; task < tasks; ++task) fn(env, task, 0);
    return;
  }
  if (fork_generation_ != fork_generation.load()) start();
  Shared& job = *shared_;
  job.tasks = tasks;
  job.fn = fn;
  job.env = env;
  job.left.store(0, std::memory_order_relaxed);
  job.next.store(0, std::memory_order_relaxed);
  job.failed.store(false, std::memory_order_relaxed);
  const uint64_t number = job.state.load(std::memory_order_relaxed) / kJob % 0xffffffffu + 1;  // never 0
  job.state.store(number * kJob + kOpen);
  if (job.sleepers.load() > 0) {
    {
      const std::lock_guard<std::mutex> hold(job.lock);
    }  // a worker between its look and its wait holds this
    job.wake.notify_all();
  }
  job.work(0);
  const uint64_t closed = job.state.exchange(number * kJob, std::memory_order_acq_rel);
  const int joined = static_cast<int>(closed % kJob / kJoin);
  for (int i = 0; job.left.load(std::memory_order_acquire) < joined; ++i)
    if (i < 4096)
      relax();
    else
      std::this_thread::yield();
  if (job.failed.load()) std::rethrow_exception(std::exchange(job.error, nullptr));
}

}  // namespace statemark
