// Attention through the block table (Kwon et al. 2023, arXiv:2309.06180), with grouped queries.
//
// Softmax is computed partition by partition (see kPartition), each with its own maximum, merged in ascending order.
// So a row's bits are the same whether one thread computes its partitions one after the other, or several threads
// compute some of them each.
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "ops/attention_kernels.h"
#include "ops/attention_plan.h"
#include "ops/kernels.h"
#include "ops/kv_cache.h"
#include "runtime/kernel.h"
#include "vec/vec.h"
#if defined(PELTON_LEVEL_AMX)
#include "ops/attention_matrices.h"
#endif

namespace pelton {
namespace {

// Scores are multiplied by this, so that powers of 2 are their weights.
constexpr float kLog2E = 1.44269504f;

// Of each row: the sum of weighted values, the highest score, and the total of the weights. A total of 0 means that
// the row has seen no key yet.
struct Sums {
  float* values;  // [num_rows][sums_stride]
  float* max_scores;
  float* totals;
};

Sums sums_at(float* memory, int64_t num_rows, int64_t stride) {
  return {memory, memory + num_rows * stride, memory + num_rows * (stride + 1)};
}

// Adds the later partition's sums of a row.
void merge_row(const Sums& sums, const Sums& later, int64_t row, int64_t stride) {
  if (later.totals[row] == 0.0f) return;
  float* values = sums.values + row * stride;
  const float* later_values = later.values + row * stride;
  if (sums.totals[row] == 0.0f) {
    std::memcpy(values, later_values, stride * sizeof(float));
    sums.max_scores[row] = later.max_scores[row];
    sums.totals[row] = later.totals[row];
    return;
  }
  const float highest = std::max(sums.max_scores[row], later.max_scores[row]);
  const float keep = exp2_scalar(sums.max_scores[row] - highest), add = exp2_scalar(later.max_scores[row] - highest);
  sums.max_scores[row] = highest;
  sums.totals[row] = sums.totals[row] * keep + later.totals[row] * add;
  for (int64_t i = 0; i < stride; i += kLanes) {
    store(values + i, fma(load(later_values + i), broadcast(add), load(values + i) * broadcast(keep)));
  }
}

// A partition of an item: what a thread computes at a time.
template <class Cache>
struct Step {
  const QueryBlock* block;
  int64_t head;  // of the keys
  int64_t partition;
  bool is_first;  // of the item
  bool is_last;
  // The positions of the partition that any row sees, and their tiles, if the cache has tiles.
  int low;
  int high;
  const typename Cache::Element* keys[kPartitionTiles];
  const typename Cache::Element* values[kPartitionTiles];

  int first_tile() const { return low / kTile; }
  int last_tile() const { return (high + kTile - 1) / kTile; }
};

// One thread's part of a launch.
template <class Cache>
class Attention {
  using Element = typename Cache::Element;
  using Operand = typename Cache::Operand;

 public:
  Attention(const AttentionArgs& op, Worker& worker)
      : op_(op), worker_(worker), plan_(op, worker.count()), stride_(sums_stride(op.cache.head_size)) {
    const int64_t rows = plan_.max_rows(), head_size = op.cache.head_size;
    const int64_t gathered = op.cache.is_tiled() ? 0 : kPartition * head_size;
    std::byte* memory = nullptr;
    size_t used = 0;
    const auto take = [&](auto** pointer, int64_t num) {
      *pointer = reinterpret_cast<std::decay_t<decltype(**pointer)>*>(memory + used);
      used += (num * sizeof(**pointer) + 63) / 64 * 64;
    };
    float *sums = nullptr, *partial = nullptr;
    const auto take_all = [&] {
      used = 0;
      take(&requests_, op.num_requests);
      take(&blocks_, plan_.max_blocks());
      take(&queries_, rows * head_size);
      take(&scores_, rows * kScoreStride);
      take(&weights_, std::is_same_v<Operand, float> ? 0 : rows * kScoreStride);
      take(&sums, partial_floats(rows, head_size));
      take(&partial, partial_floats(rows, head_size));
      take(&edge_, kTile * head_size);
      take(&gathered_keys_, gathered);
      take(&gathered_values_, gathered);
    };
    take_all();
    memory = worker.scratch(used);
    take_all();
    // A row's weights take the place of its scores, if they have their format.
    if constexpr (std::is_same_v<Operand, float>) weights_ = scores_;
    sums_ = sums_at(sums, rows, stride_);
    partial_ = sums_at(partial, rows, stride_);
    plan_.fill(requests_, blocks_);
  }

  void run() {
    Step<Cache> steps[2];
    Step<Cache>*current = &steps[0], *next = &steps[1];
    bool has_current = advance(current);
    while (has_current) {
      const bool has_next = advance(next);
      compute(*current, has_next ? next : nullptr);
      std::swap(current, next);
      has_current = has_next;
    }
  }

  // Merges the partials of the split blocks.
  void merge() {
    const int64_t num_heads = op_.cache.num_kv_heads;
    const RequestItems& last_request = requests_[op_.num_requests - 1];
    const int64_t num_blocks = last_request.first_block + last_request.num_blocks;
    for_claimed(worker_, num_blocks * num_heads, 1, [&](int64_t item, int64_t) {
      const QueryBlock& block = blocks_[item / num_heads];
      if (!block.is_split()) return;
      const int64_t head = item % num_heads;
      const Sums sums = partial_of(block, head, block.first_partition);
      for (int64_t row = 0; row < num_rows(block); ++row) {
        for (int64_t i = 1; i < block.num_partitions; ++i) {
          merge_row(sums, partial_of(block, head, block.first_partition + i), row, stride_);
        }
      }
      finish(block, head, sums);
    });
  }

 private:
  int64_t num_rows(const QueryBlock& block) const { return block.num_positions * op_.group; }

  // The step after the one that this thread has taken last; false if there is none.
  bool advance(Step<Cache>* step) {
    if (++partition_ >= last_partition_) {
      const int64_t item = worker_.claim();
      if (item >= plan_.num_items()) return false;
      while (item >= requests_[request_].first_item + requests_[request_].num_items * op_.cache.num_kv_heads)
        ++request_;
      const RequestItems& request = requests_[request_];
      const int64_t of_head = (item - request.first_item) % request.num_items;
      head_ = (item - request.first_item) / request.num_items;
      block_ = blocks_ + request.first_block;
      while (of_head >= block_->first_item + block_->num_items()) ++block_;
      first_partition_ = block_->first_partition + (of_head - block_->first_item) * block_->chunk;
      last_partition_ = std::min(first_partition_ + block_->chunk, block_->first_partition + block_->num_partitions);
      partition_ = first_partition_;
    }
    step->block = block_;
    step->head = head_;
    step->partition = partition_;
    step->is_first = partition_ == first_partition_;
    step->is_last = partition_ + 1 == last_partition_;
    const int64_t start = partition_ * kPartition;
    step->low = int(std::max(op_.first_key(block_->position), start) - start);
    step->high = int(std::min(block_->position + block_->num_positions - start, int64_t(kPartition)));
    if (op_.cache.is_tiled()) find_tiles(step);
    return true;
  }

  void find_tiles(Step<Cache>* step) const {
    const int64_t block_tiles = op_.cache.block_size / kTile, tile_size = kTile * op_.cache.head_size;
    const int32_t* block_ids = op_.block_table.template row<int32_t>(step->block->request);
    const int64_t first = step->partition * kPartitionTiles;
    int64_t index = (first + step->first_tile()) / block_tiles, tile = (first + step->first_tile()) % block_tiles;
    for (int i = step->first_tile(); i < step->last_tile(); ++i) {
      step->keys[i] = op_.cache.template part<Element>(block_ids[index], KVCache::kKeys, step->head) + tile * tile_size;
      step->values[i] =
          op_.cache.template part<Element>(block_ids[index], KVCache::kValues, step->head) + tile * tile_size;
      if (++tile == block_tiles) {
        tile = 0;
        ++index;
      }
    }
  }

  // Copies what the rows see to tiles.
  void gather(Step<Cache>* step) {
    constexpr int kStep = Cache::kStep;
    const int64_t size = op_.cache.head_size, block_size = op_.cache.block_size;
    const int32_t* block_ids = op_.block_table.template row<int32_t>(step->block->request);
    for (int i = step->first_tile(); i < step->last_tile(); ++i) {
      step->keys[i] = gathered_keys_ + i * kTile * size;
      step->values[i] = gathered_values_ + i * kTile * size;
    }
    const auto part = [&](int i, KVCache::Part which) {
      const int64_t position = step->partition * kPartition + i;
      return op_.cache.template part<Element>(block_ids[position / block_size], which, step->head) +
             position % block_size * size;
    };
    for (int i = step->low; i < step->high; ++i) {
      const Element* key = part(i, KVCache::kKeys);
      Element* key_tile = gathered_keys_ + i / kTile * kTile * size + i % kTile * kStep;
      for (int64_t d = 0; d < size; d += kStep) std::memcpy(key_tile + d * kTile, key + d, kStep * sizeof(Element));
      const Element* value = part(i, KVCache::kValues);
      Element* row = gathered_values_ + i / kStep * kStep * size;
      if (kStep == 1) {
        std::memcpy(row, value, size * sizeof(Element));
      } else if (i % kStep == 0 && i + 1 < step->high) {
        const Element* second = part(++i, KVCache::kValues);
        for (int64_t d = 0; d < size; ++d) {
          const uint32_t pair = uint32_t(value[d]) | uint32_t(second[d]) << 16;
          std::memcpy(row + d * kStep, &pair, sizeof(pair));
        }
        key = part(i, KVCache::kKeys);
        key_tile += kStep;
        for (int64_t d = 0; d < size; d += kStep) std::memcpy(key_tile + d * kTile, key + d, kStep * sizeof(Element));
      } else {
        for (int64_t d = 0; d < size; ++d) row[d * kStep + i % kStep] = value[d];
      }
    }
  }

  void compute(Step<Cache>& step, const Step<Cache>* next) {
    const QueryBlock& block = *step.block;
    const int64_t rows = num_rows(block);
    if (!op_.cache.is_tiled()) gather(&step);
    if (rows > kMaxFetchRows) num_fetched_ = 0;
    if (step.is_first) {
      const int64_t size = op_.group * op_.cache.head_size;
      for (int64_t i = 0; i < block.num_positions; ++i) {
        const Element* query = op_.q.template row<Element>(block.first_token + i) + step.head * size;
        for (int64_t d = 0; d < size; ++d) queries_[i * size + d] = Cache::widen(query[d]);
      }
    }
    if (block.is_split()) {
      weigh(step, next, partial_of(block, step.head, step.partition));
    } else if (step.is_first) {
      weigh(step, next, sums_);
    } else {
      weigh(step, next, partial_);
      for (int64_t row = 0; row < rows; ++row) merge_row(sums_, partial_, row, stride_);
    }
    if (step.is_last && !block.is_split()) finish(block, step.head, sums_);
  }

  // The sums of one partition.
  void weigh(const Step<Cache>& step, const Step<Cache>* next, const Sums& sums) {
    const QueryBlock& block = *step.block;
    const int64_t group = op_.group, size = op_.cache.head_size;
    const Sight block_sight = sight_of(block, step.partition * kPartition);
    const auto low = [&](int64_t i) { return block_sight.low(int(i * group)); };
    const auto high = [&](int64_t i) { return block_sight.high(int(i * group)); };
    std::memset(sums.totals, 0, num_rows(block) * sizeof(float));
    int64_t first = 0, last = block.num_positions;
    while (first < last && high(first) <= 0) ++first;
    while (first < last && low(last - 1) >= kPartition) --last;
    if (first == last) return;

    const bool is_fetching = num_rows(block) <= kMaxFetchRows && op_.cache.is_tiled();
    const int first_tile = step.first_tile(), num_tiles = step.last_tile() - first_tile;
    const float cap = op_.cap * kLog2E;
    const float scale = op_.cap > 0.0f ? op_.scale / op_.cap : op_.scale * kLog2E;
    const Element* const* ahead = is_fetching ? fetch(step, next) : nullptr;
    const Sight sight = block_sight.after(int(first * group));
    score_tiles<Cache>(queries_ + first * group * size, int((last - first) * group), size, step.keys, ahead, first_tile,
                       step.last_tile(), sight, scores_ + first * group * kScoreStride);
    for (int64_t i = first; i < last; ++i) {
      for (int64_t row = i * group; row < (i + 1) * group; ++row) {
        sums.max_scores[row] = prepare_scores(scores_ + row * kScoreStride, low(i), high(i), scale, cap);
      }
    }
    // Whole steps of what any row sees.
    constexpr int kStep = Cache::kValueStep;
    const int start = low(first) / kStep * kStep, stop = (high(last - 1) + kStep - 1) / kStep * kStep;
    for (int64_t i = first; i < last; ++i) {
      for (int64_t row = i * group; row < (i + 1) * group; ++row) {
        sums.totals[row] =
            soften<Cache>(scores_ + row * kScoreStride, low(i), high(i), start, stop, cap > 0.0f ? 1.0f : scale,
                          sums.max_scores[row], weights_ + row * kScoreStride);
      }
    }
    std::memset(sums.values + first * group * stride_, 0, (last - first) * group * stride_ * sizeof(float));

    // A value that only some of the rows see, or none, has weight 0 in the others, which changes nothing (`write_row`
    // takes care of zeros' signs) unless it is infinite or NaN: then each query is computed by itself.
    if (are_finite<Cache>(step.values, start, low(last - 1), size) &&
        are_finite<Cache>(step.values, high(first), stop, size)) {
      add_range(step, first, last - first, start, stop, is_fetching ? ahead + num_tiles : nullptr, sums);
    } else {
      for (int64_t i = first; i < last; ++i) add_range(step, i, 1, low(i), high(i), nullptr, sums);
    }
  }

  Sight sight_of(const QueryBlock& block, int64_t start) const {
    constexpr int64_t kLowest = std::numeric_limits<int>::min() / 2;  // below all positions
    const int64_t first_high = block.position + 1 - start;
    const int64_t first_low = op_.window > 0 ? std::max(first_high - op_.window, kLowest) : kLowest;
    return {int(op_.group), int(first_low), int(first_high)};
  }

  // Adds the weighted values at the positions [low, high) to the sums of some queries, and touches no others.
  void add_range(const Step<Cache>& step, int64_t first, int64_t num, int low, int high, const Element* const* ahead,
                 const Sums& sums) {
    constexpr int kStep = Cache::kValueStep;
    const int64_t row = first * op_.group;
    const Sight sight = sight_of(*step.block, step.partition * kPartition).after(int(row));
    const auto add = [&](const Element* const* values, const Element* const* fetched, int first_step, int last_step) {
      add_values<Cache>(weights_ + row * kScoreStride, int(num * op_.group), values, fetched, first_step, last_step,
                        sight, op_.cache.head_size, sums.values + row * stride_, stride_);
    };
    const auto add_edge = [&](int edge) {
      const Element* values[kPartitionTiles];
      values[edge * kStep / kTile] = edge_step(step, edge, low, high);
      add(values, nullptr, edge, edge + 1);
    };
    int begin = low / kStep;
    if (low % kStep != 0) add_edge(begin++);
    if (begin < high / kStep) add(step.values, ahead, begin, high / kStep);
    if (high % kStep != 0 && high / kStep >= begin) add_edge(high / kStep);
  }

  // Lists what the scores and then the values of a step shall fetch, tile for tile: what is to come, some tiles ahead.
  const Element* const* fetch(const Step<Cache>& step, const Step<Cache>* next) {
    int size = 0;
    const auto append = [&](const Step<Cache>& from, const Element* const* tiles) {
      for (int i = from.first_tile(); i < from.last_tile(); ++i) stream_[size++] = tiles[i];
    };
    append(step, step.keys);
    append(step, step.values);
    const int num = size;
    if (next != nullptr) {
      append(*next, next->keys);
      append(*next, next->values);
    }
    const int64_t tile_size = kTile * op_.cache.head_size;
    const int lead = int(std::clamp<int64_t>(kLeadBytes / (tile_size * sizeof(Element)), 2, kPartitionTiles));
    for (; num_fetched_ < std::min(lead, size); ++num_fetched_) {
      for (int64_t i = 0; i < tile_size; i += 64 / sizeof(Element)) prefetch(stream_[num_fetched_] + i);
    }
    const int at = num_fetched_;
    for (int i = size; i < at + num; ++i) stream_[i] = stream_[size - 1];
    num_fetched_ = std::min(at + num, size) - num;
    return stream_ + at;
  }

  // A tile with the values of one step, of which those outside of [low, high) are hidden, and are 0 here.
  const Element* edge_step(const Step<Cache>& step, int edge, int low, int high) {
    constexpr int kStep = Cache::kStep;
    const int64_t row_size = op_.cache.head_size * kStep;
    const int first = edge * Cache::kValueStep, tile = first / kTile;
    for (int position = first; position < first + Cache::kValueStep; position += kStep) {
      const int64_t row = position % kTile / kStep * row_size;
      for (int i = 0; i < kStep; ++i) {
        const bool is_seen = position + i >= low && position + i < high;
        const Element* from = step.values[tile] + row + i;
        Element* to = edge_ + row + i;
        for (int64_t j = 0; j < row_size; j += kStep) to[j] = is_seen ? from[j] : Element(0);
      }
    }
    return edge_;
  }

  Sums partial_of(const QueryBlock& block, int64_t head, int64_t partition) const {
    const int64_t index = head * block.num_partitions + partition - block.first_partition;
    float* memory = reinterpret_cast<float*>(worker_.shared()) + block.partials + index * plan_.block_floats(block);
    return sums_at(memory, num_rows(block), stride_);
  }

  void finish(const QueryBlock& block, int64_t head, const Sums& sums) const {
    const int64_t size = op_.cache.head_size, group_size = op_.group * size;
    for (int64_t i = 0, row = 0; i < block.num_positions; ++i) {
      const int64_t column = head * group_size;
      for (int64_t j = 0; j < op_.group; ++j, ++row) {
        if (op_.out.is_bf16()) {
          write_row(sums, row, op_.out.template row<uint16_t>(block.first_token + i) + column + j * size);
        } else {
          write_row(sums, row, op_.out.template row<float>(block.first_token + i) + column + j * size);
        }
      }
    }
  }

  template <class T>
  void write_row(const Sums& sums, int64_t row, T* out) const {
    const int64_t size = op_.cache.head_size, whole = size / kLanes * kLanes;
    const float* values = sums.values + row * stride_;
    const F32 factor = broadcast(1.0f / sums.totals[row]);
    // Adding 0 makes a zero positive: whether hidden values were added with weight 0 or not at all is not to be seen.
    for (int64_t i = 0; i < whole; i += kLanes) store_as(out + i, load(values + i) * factor + zero());
    if (whole < size) store_as(out + whole, load(values + whole) * factor + zero(), first_lanes(size - whole));
  }

  // Decoding waits for memory: a block of few rows fetches what it needs next, some bytes ahead. One thread, 64
  // sequences of 256 positions (30 layers, 3 key heads of 64): 39 ms without, 29 ms with the next partition fetched at
  // once, 22.5 ms 8 KiB ahead, 23.7 ms 16, 28 ms 32 and 64 KiB ahead.
  static constexpr int64_t kMaxFetchRows = 8;
  static constexpr int64_t kLeadBytes = 8 * 1024;

  const AttentionArgs& op_;
  Worker& worker_;
  AttentionPlan plan_;
  int64_t stride_;
  RequestItems* requests_ = nullptr;
  QueryBlock* blocks_ = nullptr;
  Operand* queries_ = nullptr;
  float* scores_ = nullptr;
  Operand* weights_ = nullptr;
  Sums sums_;
  Sums partial_;
  Element* edge_ = nullptr;
  Element* gathered_keys_ = nullptr;
  Element* gathered_values_ = nullptr;
  // The item that `advance` is in.
  int64_t request_ = 0;
  const QueryBlock* block_ = nullptr;
  int64_t head_ = 0;
  int64_t first_partition_ = 0;
  int64_t last_partition_ = 0;
  int64_t partition_ = -1;
  // Tiles to come, and how many of them are on their way.
  const Element* stream_[8 * kPartitionTiles];
  int num_fetched_ = 0;
};

template <class Cache>
void run_cache(const AttentionArgs& op, Worker& worker) {
  Attention<Cache> attention(op, worker);
  if (worker.pass() == 0) {
    attention.run();
  } else {
    attention.merge();
  }
}

void run(const Arg* args, Worker& worker) {
  const AttentionArgs op(args);
  if (op.cache.is_bf16) {
    const FlushDenormals flushing;
#if defined(PELTON_LEVEL_AMX)
    if (BFloat16MatrixCache::takes(op.cache.head_size)) return run_cache<BFloat16MatrixCache>(op, worker);
#endif
    if constexpr (kHasDot) {
      if (is_dot_fast()) return run_cache<BFloat16DotCache>(op, worker);
    }
    run_cache<BFloat16Cache>(op, worker);
  } else {
    run_cache<Float32Cache>(op, worker);
  }
}

Plan plan(const Arg* args, int num_threads) {
  const AttentionArgs op(args);
  AttentionPlan items(op, num_threads);
  std::vector<RequestItems> requests(op.num_requests);
  std::vector<QueryBlock> blocks(items.max_blocks());
  items.fill(requests.data(), blocks.data());
  return {items.shared_floats() * sizeof(float), items.shared_floats() == 0 ? 1 : 2};
}

}  // namespace

// q [T, H * D], cache, block_table [R, max_blocks], query_start [R + 1], seq_lens [R], scale, window, softcap,
// out_dtype
// -> attended [T, H * D]
const Kernel kAttention = {"attention", 13, run, plan};

}  // namespace pelton
