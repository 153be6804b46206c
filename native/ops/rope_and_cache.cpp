// Rotary position embedding (Su et al. 2021, arXiv:2104.09864), and this step's write to the KV cache.
#include <algorithm>
#include <cstring>

#include "ops/kernels.h"
#include "ops/kv_cache.h"
#include "runtime/kernel.h"
#include "vec/vec.h"

namespace pelton {
namespace {

struct RopeArgs {
  explicit RopeArgs(const Arg* args)
      : qkv(args[0]),
        cos(args[1]),
        sin(args[2]),
        slots(args[3].as<int64_t>()),
        cache(kv_cache(args + 4)),
        q_norm(args[8].as<float>()),
        k_norm(args[9].as<float>()),
        eps(float(args[10].real)),
        q(args[11]),
        num_heads(args[0].cols / cache.head_size - 2 * cache.num_kv_heads) {}

  const Arg& qkv;
  const Arg& cos;
  const Arg& sin;
  const int64_t* slots;
  KVCache cache;
  const float* q_norm;  // null: none
  const float* k_norm;
  float eps;
  const Arg& q;
  int64_t num_heads;
};

// Calls f(i) for each whole vector of `size` elements, and f(i, mask) for what remains. (Masked stores are slow on some
// processors.)
template <class F>
[[gnu::always_inline]] inline void for_vectors(int64_t size, F&& f) {
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) f(i);
  if (i < size) f(i, first_lanes(size - i));
}

// The factor that gives x [size] a mean square of 1.
float inverse_root(const float* x, int64_t size, float eps) {
  F32 sum = zero();
  for_vectors(size, [&](int64_t i, auto... mask) {
    const F32 part = load(x + i, mask...);
    sum = fma(part, part, sum);
  });
  return 1.0f / first_lane(sqrt(broadcast(reduce_add(sum) / float(size) + eps)));
}

// Rotates a head x [size], which is normalised first if there is a norm.
template <class Element>
void rotate(const RopeArgs& op, const float* x, const float* norm, int64_t token, Element* out) {
  const int64_t half = op.cache.head_size / 2;
  const float *cosines = op.cos.row<float>(token), *sines = op.sin.row<float>(token);
  const F32 factor = broadcast(norm == nullptr ? 1.0f : inverse_root(x, op.cache.head_size, op.eps));
  for_vectors(half, [=](int64_t i, auto... mask) __attribute__((always_inline)) {
    F32 first = load(x + i, mask...), second = load(x + half + i, mask...);
    if (norm != nullptr) {
      first = first * factor * load(norm + i, mask...);
      second = second * factor * load(norm + half + i, mask...);
    }
    const F32 cos = load(cosines + i, mask...), sin = load(sines + i, mask...);
    store_as(out + i, first * cos - second * sin, mask...);
    store_as(out + half + i, second * cos + first * sin, mask...);
  });
}

// Elements of bfloat16 lie in pairs in tiles: see KVCache.
template <class Element>
constexpr int kPair = sizeof(Element) == 2 ? 2 : 1;

template <class Element>
void write_key(const KVCache& cache, const Element* key, Element* part, int64_t offset) {
  if (!cache.is_tiled()) {
    std::memcpy(part + offset * cache.head_size, key, cache.head_size * sizeof(Element));
    return;
  }
  Element* to = part + offset / kTile * kTile * cache.head_size + offset % kTile * kPair<Element>;
  for (int64_t i = 0; i < cache.head_size; i += kPair<Element>) {
    std::memcpy(to + i * kTile, key + i, sizeof(Element) * kPair<Element>);
  }
}

template <class Element>
void write_value(const KVCache& cache, const Element* value, Element* part, int64_t offset) {
  if (!cache.is_tiled() || kPair<Element> == 1) {
    std::memcpy(part + offset * cache.head_size, value, cache.head_size * sizeof(Element));
    return;
  }
  Element* to = part + offset / 2 * 2 * cache.head_size + offset % 2;
  for (int64_t i = 0; i < cache.head_size; ++i) to[2 * i] = value[i];
}

// Two values that lie in one pair.
void write_values(const KVCache& cache, const uint16_t* first, const uint16_t* second, uint16_t* part, int64_t offset) {
  uint16_t* to = part + offset * cache.head_size;
  for (int64_t i = 0; i < cache.head_size; ++i) {
    const uint32_t pair = first[i] | uint32_t(second[i]) << 16;
    std::memcpy(to + 2 * i, &pair, sizeof(pair));
  }
}

// An item has at least this many elements: 1 us or so, at 0.2 ns an element.
constexpr int64_t kMinElements = 4096;

template <class Element>
class Rope {
 public:
  Rope(const RopeArgs& op, Worker& worker) : op_(op), cache_(op.cache), size_(op.cache.head_size) {
    const int64_t values = cache_.num_kv_heads * size_;
    key_ = reinterpret_cast<Element*>(worker.scratch((size_ + 2 * values) * sizeof(Element)));
    values_[0] = key_ + size_;
    values_[1] = values_[0] + values;
  }

  // Reads each token's row from start to end, as it lies in memory.
  void run_tokens(int64_t first, int64_t last) {
    bool has_first = false;  // of a pair of values
    for (int64_t token = first; token < last; ++token) {
      const float* x = op_.qkv.template row<float>(token);
      Element* q = op_.q.template row<Element>(token);
      for (int64_t head = 0; head < op_.num_heads; ++head, x += size_) {
        rotate(op_, x, op_.q_norm, token, q + head * size_);
      }
      for (int64_t head = 0; head < cache_.num_kv_heads; ++head, x += size_) {
        rotate(op_, x, op_.k_norm, token, key_);
        write_key(cache_, key_, part(token, KVCache::kKeys, head), offset(token));
      }
      Element* values = values_[has_first ? 1 : 0];
      for_vectors(cache_.num_kv_heads * size_,
                  [=](int64_t i, auto... mask) { store_as(values + i, load(x + i, mask...), mask...); });
      if (has_first) {
        write_pair(token - 1);
        has_first = false;
      } else if (starts_pair(token, last)) {
        has_first = true;
      } else {
        for (int64_t head = 0; head < cache_.num_kv_heads; ++head) {
          write_value(cache_, values + head * size_, part(token, KVCache::kValues, head), offset(token));
        }
      }
    }
  }

 private:
  int64_t offset(int64_t token) const { return op_.slots[token] % cache_.block_size; }
  Element* part(int64_t token, KVCache::Part part, int64_t head) const {
    return cache_.template part<Element>(op_.slots[token] / cache_.block_size, part, head);
  }

  // Whether this token's values and the next one's lie in one pair.
  bool starts_pair(int64_t token, int64_t last) const {
    if (kPair<Element> == 1 || !cache_.is_tiled() || token + 1 == last) return false;
    return op_.slots[token] % 2 == 0 && op_.slots[token + 1] == op_.slots[token] + 1;
  }

  void write_pair(int64_t token) {
    if constexpr (kPair<Element> == 2) {
      for (int64_t head = 0; head < cache_.num_kv_heads; ++head) {
        write_values(cache_, values_[0] + head * size_, values_[1] + head * size_, part(token, KVCache::kValues, head),
                     offset(token));
      }
    }
  }

  const RopeArgs& op_;
  const KVCache& cache_;
  int64_t size_;
  Element* key_;
  Element* values_[2];  // of all heads
};

template <class Element>
void run_cache(const RopeArgs& op, Worker& worker) {
  Rope<Element> rope(op, worker);
  const int64_t num_tokens = op.qkv.rows;
  // Neighbours in a tile share its cache lines, so a thread takes up to a tile of tokens at a time; and what takes less
  // than some 2 us is not worth sharing.
  const int64_t min_chunk = std::min<int64_t>(kMinElements / op.qkv.cols + 1, kTile);
  const int64_t chunk = std::clamp<int64_t>(num_tokens / (4 * worker.count()), min_chunk, kTile);
  for_own_first(worker, num_tokens, chunk, [&](int64_t first, int64_t last) { rope.run_tokens(first, last); });
}

void run(const Arg* args, Worker& worker) {
  const RopeArgs op(args);
  if (op.cache.is_bf16) {
    run_cache<uint16_t>(op, worker);
  } else {
    run_cache<float>(op, worker);
  }
}

}  // namespace

// qkv [T, (H + 2K) * D], cos [T, D / 2], sin [T, D / 2], slot_mapping [T], cache: array, num_kv_heads, block_size,
// head_size, norms: q weight [D] or none, k weight [D] or none, eps -> q [T, H * D]
const Kernel kRopeAndCache = {"rope_and_cache", 12, run};

}  // namespace pelton
