// The instructions of amx.h by vectors, bit for bit, for tests on processors without them. Registers that are used
// otherwise than they were shaped end the program, as the processor would.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "vec/avx512.h"

namespace pelton {

struct EmulatedMatrix {
  int rows = 0;
  int row_bytes = 0;
  alignas(64) uint8_t row[16][64];
};

inline thread_local EmulatedMatrix emulated_matrices[8];

inline void configure_matrices(const MatrixLayout& layout) {
  for (int i = 0; i < 8; ++i) {
    EmulatedMatrix& matrix = emulated_matrices[i];
    matrix.rows = layout.rows[i];
    matrix.row_bytes = layout.row_bytes[i];
    if (layout.palette != 1 || matrix.rows > 16 || matrix.row_bytes > 64) std::abort();
    std::memset(matrix.row, 0, sizeof(matrix.row));
  }
}

inline void release_matrices() {
  for (EmulatedMatrix& matrix : emulated_matrices) matrix.rows = 0;
}

inline EmulatedMatrix& shaped_matrix(int index) {
  EmulatedMatrix& matrix = emulated_matrices[index];
  if (matrix.rows == 0) std::abort();
  return matrix;
}

template <int kMatrix>
void clear_matrix() {
  EmulatedMatrix& matrix = shaped_matrix(kMatrix);
  std::memset(matrix.row, 0, sizeof(matrix.row));
}

template <int kMatrix>
void load_matrix(const void* p, int64_t stride) {
  EmulatedMatrix& matrix = shaped_matrix(kMatrix);
  std::memset(matrix.row, 0, sizeof(matrix.row));
  for (int i = 0; i < matrix.rows; ++i) {
    std::memcpy(matrix.row[i], static_cast<const char*>(p) + i * stride, static_cast<size_t>(matrix.row_bytes));
  }
}

template <int kMatrix>
void store_matrix(void* p, int64_t stride) {
  const EmulatedMatrix& matrix = shaped_matrix(kMatrix);
  for (int i = 0; i < matrix.rows; ++i) {
    std::memcpy(static_cast<char*>(p) + i * stride, matrix.row[i], static_cast<size_t>(matrix.row_bytes));
  }
}

// Calls add(sums of a row, row of x, rows of weights, their number) for every row of `sums`.
template <class Add>
void multiply_matrices(int sums_index, int x_index, int weights_index, Add&& add) {
  EmulatedMatrix& sums = shaped_matrix(sums_index);
  const EmulatedMatrix &x = shaped_matrix(x_index), &weights = shaped_matrix(weights_index);
  if (x.rows != sums.rows || weights.row_bytes != sums.row_bytes || x.row_bytes != 4 * weights.rows) std::abort();
  for (int i = 0; i < sums.rows; ++i) add(sums.row[i], x.row[i], weights.row, weights.rows);
}

template <int kSums, int kX, int kWeights>
void add_bf16_products() {
  const FlushDenormals flushing;
  multiply_matrices(kSums, kX, kWeights, [](uint8_t* sums, const uint8_t* x, const uint8_t (*weights)[64], int depth) {
    F32 even = zero(), odd = zero();
    for (int k = 0; k < depth; ++k) {
      uint16_t pair[2];
      std::memcpy(pair, x + 4 * k, sizeof(pair));
      const Pairs x_pair = broadcast_pair(pair), weight = load_pairs(reinterpret_cast<const uint16_t*>(weights[k]));
      even = fma(low_elements(x_pair), low_elements(weight), even);
      odd = fma(high_elements(x_pair), high_elements(weight), odd);
    }
    auto* of_row = reinterpret_cast<float*>(sums);
    pelton::store(of_row, load(of_row) + (even + odd));
  });
}

template <int kSums, int kX, int kWeights>
void add_byte_products() {
  multiply_matrices(kSums, kX, kWeights, [](uint8_t* sums, const uint8_t* x, const uint8_t (*weights)[64], int depth) {
    for (int column = 0; column < 16; ++column) {
      int32_t sum;
      std::memcpy(&sum, sums + 4 * column, sizeof(sum));
      for (int k = 0; k < 4 * depth; ++k) sum += static_cast<int8_t>(x[k]) * weights[k / 4][4 * column + k % 4];
      std::memcpy(sums + 4 * column, &sum, sizeof(sum));
    }
  });
}

}  // namespace pelton
