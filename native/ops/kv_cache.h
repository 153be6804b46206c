// Where keys and values lie in the paged cache.
#pragma once

#include <cstdint>

#include "runtime/kernel.h"

namespace pelton {

inline constexpr int kTile = 16;  // positions of a key tile

// An array [num_blocks, 2, num_kv_heads, block_size, head_size] of float32 or bfloat16; second index: keys, values.
// With whole tiles in a block, each [block_size, head_size] part is reordered:
//   keys    float32 [block_size / 16][head_size][16], bfloat16 [block_size / 16][head_size / 2][16][2]
//   values  float32 [block_size][head_size],          bfloat16 [block_size / 2][head_size][2]
// Either way a tile of 16 positions is one run of 16 * head_size elements, and 64 bytes of keys are one step along the
// head. Other block sizes keep the plain order.
struct KVCache {
  enum Part { kKeys, kValues };

  void* data;
  int64_t num_kv_heads;
  int64_t block_size;
  int64_t head_size;
  bool is_bf16;

  bool is_tiled() const { return block_size % kTile == 0; }

  // The part of a block and head.
  template <class Element>
  Element* part(int64_t block, Part part, int64_t head) const {
    return static_cast<Element*>(data) + ((block * 2 + part) * num_kv_heads + head) * block_size * head_size;
  }
};

// Of the four arguments of a cache layer.
inline KVCache kv_cache(const Arg* args) {
  return {args[0].data, args[1].integer, args[2].integer, args[3].integer, args[0].is_bf16()};
}

}  // namespace pelton
