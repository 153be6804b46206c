// The head: logits with their soft cap (Gemma Team 2024, arXiv:2408.00118), and the best token of each row.
#include "ops/gemm.h"
#include "ops/kernels.h"
#include "ops/vocabulary.h"

namespace pelton {
namespace {

struct Operands {
  const Arg& x;
  const Arg& weight;
  const Arg& bias;
  float softcap;  // 0: none
  const Arg& is_wanted;
  const Arg& logits;
  const Arg& best_ids;
};

// The highest logit of those seen so far, and the lowest id that has it.
struct Best {
  float logit = -kInfinity;
  int32_t id = kNoCandidate;

  // Logits of the ids [first_id, first_id + num).
  void add(const float* logits, int64_t num, int64_t first_id) {
    if (id == kInvalidLogits) return;
    if (first_id < id) {  // a panel of another thread's range: of equals, the earlier id counts
      Best earlier;
      earlier.add(logits, num, first_id);
      return merge(earlier);
    }
    const F32 best = broadcast(logit);
    Mask none = from_bits(0);
    for (int64_t i = 0; i < num; i += kLanes) {
      none = none | (~(load(logits + i) <= best) & first_lanes(num - i));  // higher than the best, or NaN
    }
    if (!any(none)) return;
    for (int64_t i = 0; i < num; ++i) {
      if (!(logits[i] < kInfinity)) {
        id = kInvalidLogits;
        return;
      }
      if (logits[i] > logit) {
        logit = logits[i];
        id = static_cast<int32_t>(first_id + i);
      }
    }
  }

  // The logits that another thread has seen.
  void merge(const Best& other) {
    if (id == kInvalidLogits || other.id == kNoCandidate) return;
    if (other.id == kInvalidLogits || other.logit > logit || (other.logit == logit && other.id < id)) *this = other;
  }
};

// Bytes of one thread's bests, in cache lines of its own.
int64_t bests_bytes(int64_t num_rows) { return (num_rows * static_cast<int64_t>(sizeof(Best)) + 127) / 128 * 128; }

template <class Format>
void compute(const Operands& op, Worker& worker, Best* bests) {
  const int32_t* is_wanted = op.is_wanted.as<int32_t>();
  Product<Format, 1>(op.x, op.weight, worker).run([&](Tiles<Format, 1>& tiles) {
    for (int64_t i = 0; i < tiles.num_rows; ++i) {
      float* sums = tiles.row(0, i);
      const int64_t row = tiles.first_row + i;
      if (!op.bias.is_none() || op.softcap != 0.0f) {
        for (int64_t column = 0; column < tiles.num_columns; column += kLanes) {
          F32 y = load(sums + column);
          if (!op.bias.is_none()) {
            const Mask mask = first_lanes(tiles.num_columns - column);
            y = y + load(op.bias.as<float>() + tiles.first_column + column, mask);
          }
          if (op.softcap != 0.0f) y = broadcast(op.softcap) * tanh(y / broadcast(op.softcap));
          store(sums + column, y);
        }
      }
      bests[row].add(sums, tiles.num_columns, tiles.first_column);
      if (is_wanted[row] == 0) continue;
      float* logits = op.logits.row<float>(row) + tiles.first_column;
      prefetch_next_panel(logits);
      for (int64_t column = 0; column < tiles.num_columns; column += kLanes) {
        store(logits + column, load(sums + column), first_lanes(tiles.num_columns - column));
      }
    }
  });
}

void run(const Arg* args, Worker& worker) {
  const Operands op = {args[0], args[1], args[2], static_cast<float>(args[3].real), args[4], args[5], args[6]};
  const int64_t num_rows = op.x.rows;
  const Plan product = plan_product(op.x, op.weight);
  const auto bests_of = [&](int thread) {
    return reinterpret_cast<Best*>(worker.shared() + product.shared_bytes + thread * bests_bytes(num_rows));
  };
  if (worker.pass() < product.num_passes) {
    Best* bests = bests_of(worker.index());
    if (worker.pass() + 1 == product.num_passes) std::fill_n(bests, num_rows, Best());
    with_format(op.weight.dtype, [&](auto format) { compute<decltype(format)>(op, worker, bests); });
    return;
  }
  if (worker.claim() != 0) return;
  for (int64_t row = 0; row < num_rows; ++row) {
    Best best;
    for (int thread = 0; thread < worker.count(); ++thread) {
      if (worker.took_part(thread)) best.merge(bests_of(thread)[row]);
    }
    op.best_ids.as<int32_t>()[row] = best.id;
  }
}

// The product, and a pass that merges what the threads found.
Plan plan(const Arg* args, int num_threads) {
  Plan plan = plan_product(args[0], args[1]);
  plan.shared_bytes += static_cast<size_t>(num_threads * bests_bytes(args[0].rows));
  ++plan.num_passes;
  return plan;
}

}  // namespace

// x [L, E], weight [V, E], bias [V] or none, softcap or none, is_wanted [L] -> logits [L, V], best_ids [L]
const Kernel kLogits = {"logits", 7, run, plan};

}  // namespace pelton
