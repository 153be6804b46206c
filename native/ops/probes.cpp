#include "ops/probes.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "ops/formats.h"
#include "ops/panels.h"
#include "ops/quantize.h"
#include "vec/vec.h"
#if defined(PELTON_LEVEL_AMX)
#include "ops/matrix_sums.h"
#endif

namespace pelton {
namespace {

constexpr int64_t kSteps = 4096;

// Elements of x and of weights. Sums of their products are exact.
constexpr float kFloatX = 1.25f, kFloatWeight = 0.75f;
constexpr int8_t kIntegerX = 93;
constexpr uint8_t kByteWeight = 165, kNibbleWeight = 11;

template <class Element>
Element element_of(float x) {
  if constexpr (std::is_same_v<Element, float>) {
    return x;
  } else {
    uint32_t word;
    std::memcpy(&word, &x, sizeof(word));
    return static_cast<Element>(word >> 16);
  }
}

// From one step's or row's operands to the next: they are the same ones, but the compiler cannot know that.
int64_t no_stride() {
  volatile int64_t stride = 0;
  return stride;
}

template <int kRows, int kVectors>
double total(const F32 (&sums)[kRows][kVectors]) {
  double sum = 0.0;
  for (const auto& row : sums) {
    for (const F32& vector : row) sum += reduce_add(vector);
  }
  return sum;
}

template <class Format>
Products multiply_floats_repeatedly() {
  using Element = typename Format::Element;
  constexpr int kRows = Format::kRows, kVectors = Format::kVectors, kStep = Format::kStep;
  alignas(64) Element x[kStep], weights[kVectors * kLanes * kStep];
  std::fill(std::begin(x), std::end(x), element_of<Element>(kFloatX));
  std::fill(std::begin(weights), std::end(weights), element_of<Element>(kFloatWeight));
  const int64_t stride = no_stride();
  const Element *at_x = x, *at_weights = weights;
  F32 sums[kRows][kVectors];
  clear(sums);
#pragma GCC unroll 1
  for (int64_t step = 0; step < kSteps; ++step, at_x += stride, at_weights += stride) {
    typename Format::Vector vectors[kVectors];
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) vectors[i] = Format::load_weights(at_weights + i * kLanes * kStep);
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
      const auto x_row = Format::broadcast_x(at_x + row * stride);
#pragma GCC unroll 16
      for (int i = 0; i < kVectors; ++i) sums[row][i] = Format::multiply_add(sums[row][i], x_row, vectors[i]);
    }
  }
  return {2 * kSteps * kRows * kVectors * kLanes * kStep, total(sums)};
}

template <class Numbers>
Products multiply_integers_repeatedly(uint8_t weight) {
  constexpr int kRows = kIntegerRows, kVectors = kIntegerVectors;
  // Of a group. Nibbles may be no more, where their sums have 16 bits; bytes are more than in a kernel's group, so that
  // its end takes no time to speak of. With a single group, GCC 12 copies registers all the time.
  constexpr int64_t kGroupSteps = std::is_same_v<Numbers, Bytes> ? 256 : kInt4Group / 4;
  alignas(64) std::byte x[4], weights[4 * kVectors * kLanes], scale[sizeof(GroupScale)] = {};
  std::memset(x, kIntegerX, sizeof(x));
  std::memset(weights, weight, sizeof(weights));
  const int64_t stride = no_stride();
  const std::byte *at_x = x, *at_weights = weights;
  F32 sums[kRows][kVectors];
  clear(sums);
#pragma GCC unroll 1
  for (int64_t group = 0; group < kSteps / kGroupSteps; ++group) {
    Dots<Numbers, kRows, kVectors> dots;
    dots.begin(0, scale, stride);
#pragma GCC unroll 1
    for (int64_t step = 0; step < kGroupSteps; ++step, at_x += stride, at_weights += stride) {
      I32 words[kVectors];
      load_vectors(at_weights, words);
      dots.add(words, at_x, stride);
    }
#pragma GCC unroll 16
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 16
      for (int i = 0; i < kVectors; ++i) sums[row][i] = sums[row][i] + dots.total(row, i);
    }
  }
  return {2 * kSteps * kRows * kVectors * kLanes * 4, total(sums)};
}

#if defined(PELTON_LEVEL_AMX)
// Into six registers of sums, for two halves of rows and three columns.
template <DType kFormat>
Products multiply_matrices_repeatedly(int64_t group, uint8_t weight) {
  constexpr bool kIsFloat = kFormat == DType::kBFloat16;
  using Sum = std::conditional_t<kIsFloat, float, int32_t>;
  constexpr int64_t kSize = 16, kMatrixSteps = 256, kNumSums = 6;
  const int64_t row_bytes = kIsFloat ? 2 * group : group;
  alignas(64) std::byte x[kSize * kRowBytes], weights[kSize * kRowBytes];
  alignas(64) Sum sums[2 * kSize * 3 * kSize];
  if constexpr (kIsFloat) {
    std::fill_n(reinterpret_cast<uint16_t*>(x), sizeof(x) / 2, element_of<uint16_t>(kFloatX));
    std::fill_n(reinterpret_cast<uint16_t*>(weights), sizeof(weights) / 2, element_of<uint16_t>(kFloatWeight));
  } else {
    std::memset(x, kIntegerX, sizeof(x));
    std::memset(weights, weight, sizeof(weights));
  }
  MatrixShapes shapes;
  shapes.set(true, kSize, static_cast<int>(row_bytes / 4));
  MatrixSums<true, 3>::clear();
  load_matrix<6>(x, kRowBytes);
  load_matrix<7>(weights, kRowBytes);
  const auto multiply = [](auto number) {
    if constexpr (kIsFloat) {
      add_bf16_products<number, 6, 7>();
    } else {
      add_byte_products<number, 6, 7>();
    }
  };
  for (int64_t step = 0; step < kMatrixSteps; ++step) {
    multiply(std::integral_constant<int, 0>());
    multiply(std::integral_constant<int, 1>());
    multiply(std::integral_constant<int, 2>());
    multiply(std::integral_constant<int, 3>());
    multiply(std::integral_constant<int, 4>());
    multiply(std::integral_constant<int, 5>());
  }
  const auto store_all = [&](auto... numbers) {
    (store_matrix<numbers>(sums + numbers * kSize * kSize, kRowBytes), ...);
  };
  store_all(std::integral_constant<int, 0>(), std::integral_constant<int, 1>(), std::integral_constant<int, 2>(),
            std::integral_constant<int, 3>(), std::integral_constant<int, 4>(), std::integral_constant<int, 5>());
  double sum = 0.0;
  for (const Sum each : sums) sum += each;
  return {2 * kMatrixSteps * kNumSums * kSize * kSize * group, sum};
}
#endif

}  // namespace

double repeated_product(DType format) {
  if (format == DType::kInt8) return double(kIntegerX) * kByteWeight;
  if (format == DType::kInt4) return double(kIntegerX) * kNibbleWeight;
  return double(kFloatX) * kFloatWeight;
}

Products multiply_repeatedly(DType format) {
  switch (format) {
#if defined(PELTON_LEVEL_AMX)
    case DType::kBFloat16:
      return multiply_matrices_repeatedly<DType::kBFloat16>(32, 0);
    case DType::kInt8:
      return multiply_matrices_repeatedly<DType::kInt8>(kInt8Group, kByteWeight);
    case DType::kInt4:
      return multiply_matrices_repeatedly<DType::kInt4>(kInt4Group, kNibbleWeight);
#else
    case DType::kBFloat16:
      return multiply_floats_repeatedly<BFloat16Format>();
    case DType::kInt8:
      return multiply_integers_repeatedly<Bytes>(kByteWeight);
    case DType::kInt4:
      return multiply_integers_repeatedly<Nibbles>(kNibbleWeight);
#endif
    default:
      return multiply_floats_repeatedly<Float32Format>();
  }
}

int32_t read_block(const std::byte* data) {
  constexpr int kVectors = 8;
  constexpr int64_t kStep = kVectors * kLanes * 4;
  static_assert(kReadBlock % kStep == 0);
  I32 seen[kVectors];
  for (I32& vector : seen) vector = broadcast_int(0);
  for (int64_t at = 0; at < kReadBlock; at += kStep) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) seen[i] = seen[i] | load_words(data + at + 4 * i * kLanes);
  }
  alignas(64) int32_t lanes[kLanes];
  int32_t bits = 0;
  for (const I32& vector : seen) {
    store_words(lanes, vector);
    for (const int32_t lane : lanes) bits |= lane;
  }
  return bits;
}

}  // namespace pelton
