// How the work of an attention launch is cut into items.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/attention_kernels.h"
#include "ops/kv_cache.h"
#include "runtime/kernel.h"

namespace pelton {

// The arguments of a launch.
struct AttentionArgs {
  explicit AttentionArgs(const Arg* args)
      : q(args[0]),
        cache(kv_cache(args + 1)),
        block_table(args[5]),
        query_start(args[6].as<int32_t>()),
        seq_lens(args[7].as<int32_t>()),
        num_requests(args[7].rows),
        scale(float(args[8].real)),
        window(args[9].integer),
        cap(float(args[10].real)),
        out(args[12]),
        num_heads(args[0].cols / cache.head_size),
        group(num_heads / cache.num_kv_heads) {}

  const Arg& q;
  KVCache cache;
  const Arg& block_table;
  const int32_t* query_start;
  const int32_t* seq_lens;
  int64_t num_requests;
  float scale;
  int64_t window;  // 0: none
  float cap;       // 0: none
  const Arg& out;
  int64_t num_heads;
  int64_t group;  // query heads that share a key head

  // The query at a position sees the keys [first_key(position), position].
  int64_t first_key(int64_t position) const { return window > 0 ? std::max<int64_t>(0, position - window + 1) : 0; }
};

// Consecutive queries of a request, with all heads of a group: they share the keys.
struct QueryBlock {
  int64_t request;
  int64_t first_token;
  int64_t position;  // of the first query
  int64_t num_positions;
  int64_t first_partition;
  int64_t num_partitions;
  int64_t chunk;       // partitions of an item; all of them, if the block is not split
  int64_t first_item;  // within the items of this request and key head
  int64_t partials;    // where the partials of the first key head begin, in floats, if the block is split

  bool is_split() const { return chunk < num_partitions; }
  int64_t num_items() const { return (num_partitions + chunk - 1) / chunk; }
};

// A request's blocks and items. Items are ordered by key head, then block, then partition.
struct RequestItems {
  int64_t first_block;
  int64_t num_blocks;
  int64_t first_item;
  int64_t num_items;  // of one key head
};

// Rows whose scores are computed together: enough to use each key and value often. Between 24 and 64 rows, prefills of
// 64 to 2,048 tokens differ by less than 3 %, which is noise; 18 rows are 2 to 4 % slower.
inline constexpr int64_t kBlockRows = 32;
// A smaller launch than this many items per thread is cut finer, so that no thread waits long for another.
inline constexpr int64_t kItemsPerThread = 4;
inline constexpr int64_t kMinBlockRows = 8;

// Sums, maximum and total of the rows of a block in one partition.
inline int64_t sums_stride(int64_t head_size) { return (head_size + kLanes - 1) / kLanes * kLanes; }
inline int64_t partial_floats(int64_t num_rows, int64_t head_size) { return num_rows * (sums_stride(head_size) + 2); }

class AttentionPlan {
 public:
  AttentionPlan(const AttentionArgs& op, int num_threads) : op_(op), num_threads_(num_threads) {
    positions_ = std::max<int64_t>(1, kBlockRows / op.group);
    const int64_t wanted = kItemsPerThread * num_threads;
    while (positions_ > 1 && positions_ * op.group > kMinBlockRows &&
           op.q.rows / positions_ * op.cache.num_kv_heads < wanted) {
      positions_ = (positions_ + 1) / 2;
    }
  }

  int64_t max_rows() const { return positions_ * op_.group; }
  int64_t max_blocks() const { return op_.num_requests + op_.q.rows / positions_; }

  // Fills requests [num_requests] and blocks [max_blocks()].
  void fill(RequestItems* requests, QueryBlock* blocks) {
    int64_t cost = 0, num_blocks = 0;
    for (int64_t r = 0; r < op_.num_requests; ++r) {
      const int64_t start = op_.query_start[r], stop = op_.query_start[r + 1];
      requests[r].first_block = num_blocks;
      // The last block, which sees the most keys, comes first.
      for (int64_t i = (stop - start + positions_ - 1) / positions_ - 1; i >= 0; --i) {
        const int64_t first = start + i * positions_;
        QueryBlock& block = blocks[num_blocks++];
        block.request = r;
        block.first_token = first;
        block.num_positions = std::min(positions_, stop - first);
        block.position = op_.seq_lens[r] - stop + first;
        block.first_partition = op_.first_key(block.position) / kPartition;
        block.num_partitions = (block.position + block.num_positions - 1) / kPartition + 1 - block.first_partition;
        cost += block.num_partitions * partition_cost(block);
      }
      requests[r].num_blocks = num_blocks - requests[r].first_block;
    }
    const int64_t item_cost = cost * op_.cache.num_kv_heads / (kItemsPerThread * num_threads_);
    for (int64_t r = 0; r < op_.num_requests; ++r) {
      requests[r].num_items = 0;
      for (int64_t b = 0; b < requests[r].num_blocks; ++b) {
        QueryBlock& block = blocks[requests[r].first_block + b];
        block.chunk = block.num_partitions;
        if (num_threads_ > 1) block.chunk = std::clamp<int64_t>(item_cost / partition_cost(block), 1, block.chunk);
        block.first_item = requests[r].num_items;
        block.partials = shared_floats_;
        requests[r].num_items += block.num_items();
        if (block.is_split()) {
          shared_floats_ += op_.cache.num_kv_heads * block.num_partitions * block_floats(block);
        }
      }
      requests[r].first_item = num_items_;
      num_items_ += op_.cache.num_kv_heads * requests[r].num_items;
    }
  }

  int64_t num_items() const { return num_items_; }
  int64_t shared_floats() const { return shared_floats_; }
  int64_t block_floats(const QueryBlock& block) const {
    return partial_floats(block.num_positions * op_.group, op_.cache.head_size);
  }

 private:
  // In rows; reading the keys and values takes as long as computing some rows.
  int64_t partition_cost(const QueryBlock& block) const { return block.num_positions * op_.group + 4; }

  const AttentionArgs& op_;
  int64_t num_threads_;
  int64_t positions_;
  int64_t num_items_ = 0;
  int64_t shared_floats_ = 0;
};

}  // namespace pelton
