// The C interface. Python's side of it is ops/cpu/library.py.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <new>
#include <thread>
#include <utility>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "ops/pack.h"
#include "ops/probes.h"
#include "runtime/clock.h"
#include "runtime/program.h"

#define PELTON_API extern "C" __attribute__((visibility("default")))

namespace {

void copy_message(const char* message, char* out, int64_t out_bytes) {
  std::strncpy(out, message, out_bytes - 1);
  out[out_bytes - 1] = '\0';
}

// For as long as one call lasts.
class Call {
 public:
  explicit Call(pelton::Replay* replay) : replay_(replay), is_first_(!replay->is_busy().exchange(true)) {}
  ~Call() {
    if (is_first_) replay_->is_busy() = false;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool is_first() const { return is_first_; }

 private:
  pelton::Replay* replay_;
  const bool is_first_;
};

struct Packing final : pelton::Work {
  pelton::DType format;
  const pelton::SourceRows* source;
  const pelton::PanelPlace* place;
  std::atomic<int64_t> next{0};
  std::atomic<bool> fits{true};

  void take_part(int, int64_t) noexcept override {
    constexpr int64_t kRows = 4 * pelton::kPanel;  // at a time
    for (int64_t row = next.fetch_add(kRows); row < source->n; row = next.fetch_add(kRows)) {
      if (!pelton::pack_panels(format, *source, *place, row, std::min(row + kRows, source->n))) fits = false;
    }
  }
  bool complete(int64_t) noexcept override { return true; }
};

// Steps that all threads enter before anyone leaves.
struct Meetings : pelton::Work {
  explicit Meetings(int num_threads) : num_threads(num_threads) {}
  const int num_threads;
  std::atomic<int64_t> num_arrived{0};

  void take_part(int, int64_t step) noexcept override {
    num_arrived.fetch_add(1);
    for (int64_t spins = 1; num_arrived.load() < num_threads * (step + 1); ++spins) {
      if (spins % 4096 == 0) std::this_thread::yield();  // more threads than processors
    }
  }
  bool complete(int64_t) noexcept override { return true; }
};

// A step in which every thread does its part, all at once.
template <class F>
struct Together final : Meetings {
  Together(int num_threads, F&& part) : Meetings(num_threads), part(std::forward<F>(part)) {}
  F part;

  void take_part(int thread, int64_t step) noexcept override {
    Meetings::take_part(thread, step);
    part(thread);
  }
};

template <class F>
void run_together(pelton::Replay* replay, F&& part) {
  Together<F> together(replay->pool().size(), std::forward<F>(part));
  replay->pool().run(1, together);
}

// All threads call `work(thread, number of the call)` for some time, which tells how much it has done. -> how much all
// of them did per second.
template <class F>
double measure_rate(pelton::Replay* replay, int64_t duration_ns, F&& work) {
  std::atomic<int64_t> amount{0};
  const int64_t start = pelton::now_ns();
  run_together(replay, [&](int thread) {
    int64_t done = 0, num_calls = 0;
    for (const int64_t end = pelton::now_ns() + duration_ns; pelton::now_ns() < end; ++num_calls) {
      done += work(thread, num_calls);
    }
    amount.fetch_add(done);
  });
  return static_cast<double>(amount) / static_cast<double>(pelton::now_ns() - start) * 1e9;
}

#if defined(__x86_64__)
// Whether the processor has AMX for bfloat16 and bytes, and the system lets this process use its registers from now on,
// in all threads. It refuses where a thread has a signal stack that could not hold them.
bool permits_amx() {
#if defined(PELTON_EMULATED_AMX)
  return true;
#elif defined(__linux__)
  constexpr unsigned int kBFloat16 = 1u << 22, kTiles = 1u << 24, kInt8 = 1u << 25, kAll = kBFloat16 | kTiles | kInt8;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned int a = 0, b = 0, c = 0, features = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &features) == 0 || (features & kAll) != kAll) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

}  // namespace

// Changes whenever Python has to know: with this interface, the layouts of weights and caches, the meaning of
// arguments.
PELTON_API int32_t pelton_interface() { return 3; }

// Whether this processor can run an instruction-set level, and the system lets it: asking for amx requests permission.
// Ask the portable library.
PELTON_API int32_t pelton_supports(const char* level) {
  if (std::strcmp(level, "portable") == 0) return 1;
#if defined(__x86_64__)
  __builtin_cpu_init();
  unsigned int a = 0, b = 0, features = 0, d = 0;
  const bool has_f16c = __get_cpuid(1, &a, &b, &features, &d) != 0 && (features & bit_F16C) != 0;
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && has_f16c;
  if (std::strcmp(level, "avx2") == 0) return has_avx2;
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512vnni") &&
                          __builtin_cpu_supports("avx512bf16");
  if (std::strcmp(level, "avx512") == 0) return has_avx512;
  if (std::strcmp(level, "amx") == 0) return has_avx512 && permits_amx();
#endif
  return 0;
}

// Null and a message on failure.
PELTON_API pelton::Replay* pelton_replay_create(int32_t num_threads, char* message, int64_t message_bytes) try {
  return new pelton::Replay(num_threads);
} catch (const std::exception& error) {
  copy_message(error.what(), message, message_bytes);
  return nullptr;
}

PELTON_API int32_t pelton_is_busy(pelton::Replay* replay) { return replay->is_busy(); }

PELTON_API void pelton_replay_destroy(pelton::Replay* replay) { delete replay; }

PELTON_API pelton::Program* pelton_program_create(const pelton::LaunchSpec* launches, int32_t num_launches,
                                                  char* message, int64_t message_bytes) try {
  return new pelton::Program(launches, num_launches);
} catch (const std::exception& error) {
  copy_message(error.what(), message, message_bytes);
  return nullptr;
}

PELTON_API void pelton_program_destroy(pelton::Program* program) { delete program; }

// One step. -> 0, or 1 and a message.
PELTON_API int32_t pelton_run(pelton::Replay* replay, const pelton::Run* runs, int32_t num_runs, char* message,
                              int64_t message_bytes) try {
  const Call call(replay);
  const char* error = call.is_first() ? replay->run(runs, num_runs) : "busy: a backend takes one call at a time";
  if (error == nullptr) return 0;
  copy_message(error, message, message_bytes);
  return 1;
} catch (const std::exception& error) {
  copy_message(error.what(), message, message_bytes);
  return 1;
}

// Bytes of a packed weight, or of num_parts interleaved ones, with n output columns each.
PELTON_API int64_t pelton_packed_bytes(int32_t format, int64_t n, int64_t k, int64_t num_parts) {
  return pelton::num_panels(n) * num_parts * pelton::panel_bytes(pelton::DType(format), k);
}

// Packs rows as columns; see pack.h. -> 0; 1 if another call is under way; 2 if the format cannot hold a number.
PELTON_API int32_t pelton_pack(pelton::Replay* replay, int32_t format, const pelton::SourceRows* source,
                               const pelton::PanelPlace* place) {
  const Call call(replay);
  if (!call.is_first()) return 1;
  Packing packing;
  packing.format = pelton::DType(format);
  packing.source = source;
  packing.place = place;
  replay->pool().run(1, packing);
  return packing.fits ? 0 : 2;
}

// Nanoseconds that the threads take to wait for each other, the least of several tries: tells how far apart their cores
// are, which a virtual machine may change while it runs. Negative if another call is under way.
PELTON_API double pelton_barrier_ns(pelton::Replay* replay) {
  const Call call(replay);
  if (!call.is_first()) return -1.0;
  constexpr int kTries = 10;
  constexpr int kMeetings = 2000;
  double best = 1e9;
  for (int i = 0; i < kTries; ++i) {
    Meetings meetings(replay->pool().size());
    const int64_t start = pelton::now_ns();
    replay->pool().run(kMeetings, meetings);
    best = std::min(best, static_cast<double>(pelton::now_ns() - start) / kMeetings);
  }
  return best;
}

// Multiplications and additions per second of all threads, in the inner products of a format; see probes.h. Negative if
// another call is under way.
PELTON_API double pelton_multiply_rate(pelton::Replay* replay, int32_t format, int64_t duration_ns) {
  const Call call(replay);
  if (!call.is_first()) return -1.0;
  return measure_rate(replay, duration_ns,
                      [&](int, int64_t) { return pelton::multiply_repeatedly(pelton::DType(format)).num_operations; });
}

// Bytes per second that all threads read, each its own part of the memory, over and over. Before that each thread
// writes its part, which then lies near it. Of the memory, whole blocks of pelton::kReadBlock bytes are used. Negative
// if another call is under way.
PELTON_API double pelton_read_rate(pelton::Replay* replay, std::byte* data, int64_t num_bytes, int64_t duration_ns) {
  constexpr int64_t kBlocksPerCall = 8;  // a look at the clock takes a twentieth of the time of one
  const Call call(replay);
  if (!call.is_first()) return -1.0;
  const auto first_block = [&](int thread) { return num_bytes / pelton::kReadBlock * thread / replay->pool().size(); };
  run_together(replay, [&](int thread) {
    const int64_t first = first_block(thread), last = first_block(thread + 1);
    std::memset(data + first * pelton::kReadBlock, 1, static_cast<size_t>((last - first) * pelton::kReadBlock));
  });
  return measure_rate(replay, duration_ns, [&](int thread, int64_t num_calls) -> int64_t {
    const int64_t first = first_block(thread), num_blocks = first_block(thread + 1) - first;
    if (num_blocks == 0) return 0;
    for (int64_t block = 0; block < kBlocksPerCall; ++block) {
      pelton::read_block(data + (first + (num_calls * kBlocksPerCall + block) % num_blocks) * pelton::kReadBlock);
    }
    return kBlocksPerCall * pelton::kReadBlock;
  });
}
