// Checks the matrix instructions of a level against their arithmetic, element by element. Prints what is wrong; the
// exit status is 0 if nothing is.
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

#include "vec/vec.h"

namespace pelton {
namespace {

constexpr int kColumns = 16, kPairs = 16;

float widened(uint16_t x) {
  const uint32_t word = uint32_t(x) << 16;
  float wide;
  std::memcpy(&wide, &word, 4);
  return wide;
}

// Numbers of all sizes, denormal ones among them, whose products are finite.
uint16_t some_bf16(std::mt19937& random) {
  const uint32_t exponent = random() % 4 == 0 ? random() % 190 : 110 + random() % 20;
  return uint16_t((random() & 0x807f) | exponent << 7);
}

bool check_bf16_products(int rows, bool has_two_halves) {
  std::mt19937 random(static_cast<uint32_t>(rows));
  alignas(64) uint16_t x[2][16][2 * kPairs], weights[3][kPairs][2 * kColumns];
  for (auto& half : x) {
    for (auto& row : half) {
      for (auto& element : row) element = some_bf16(random);
    }
  }
  for (auto& matrix : weights) {
    for (auto& row : matrix) {
      for (auto& element : row) element = some_bf16(random);
    }
  }
  float sums[2][3][16][kColumns] = {};
  {
    MatrixShapes shapes;
    shapes.set(has_two_halves, rows, kPairs);
    clear_matrix<0>();
    clear_matrix<1>();
    load_matrix<6>(x[0], 64);
    if (has_two_halves) {
      clear_matrix<5>();
      for (int i = 0; i < 2; ++i) {
        load_matrix<7>(weights[i], 64);
        add_bf16_products<0, 6, 7>();
      }
      load_matrix<6>(x[1], 64);
      load_matrix<7>(weights[2], 64);
      add_bf16_products<5, 6, 7>();
      store_matrix<5>(sums[1][2], 64);
    } else {
      load_matrix<3>(weights[0], 64);
      load_matrix<4>(weights[1], 64);
      add_bf16_products<0, 6, 3>();
      add_bf16_products<0, 6, 4>();
    }
    store_matrix<0>(sums[0][0], 64);
  }
  [[maybe_unused]] const FlushDenormals flushing;
  const auto added = [&](float sum, const uint16_t* row, const uint16_t (&matrix)[kPairs][2 * kColumns], int column) {
    F32 parts[2] = {zero(), zero()};
    for (int k = 0; k < 2 * kPairs; ++k) {
      const F32 weight = broadcast(widened(matrix[k / 2][2 * column + k % 2]));
      parts[k % 2] = fma(broadcast(widened(row[k])), weight, parts[k % 2]);
    }
    return first_lane(broadcast(sum) + (parts[0] + parts[1]));
  };
  int num_wrong = 0;
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      const float expected = added(added(0.0f, x[0][row], weights[0], column), x[0][row], weights[1], column);
      num_wrong += std::memcmp(&expected, &sums[0][0][row][column], 4) != 0;
      if (!has_two_halves) continue;
      const float other = added(0.0f, x[1][row], weights[2], column);
      num_wrong += std::memcmp(&other, &sums[1][2][row][column], 4) != 0;
    }
  }
  if (num_wrong != 0) std::printf("wrong: %d sums of bfloat16 in %d rows\n", num_wrong, rows);
  return num_wrong == 0;
}

bool check_byte_products(int rows, int depth) {
  std::mt19937 random(static_cast<uint32_t>(rows + depth));
  alignas(64) int8_t x[16][64];
  alignas(64) uint8_t weights[16][kColumns][4];
  for (auto& row : x) {
    for (auto& element : row) element = int8_t(random() % 4 == 0 ? -128 : int(random() % 256) - 128);
  }
  for (auto& row : weights) {
    for (auto& column : row) {
      for (auto& element : column) element = uint8_t(random() % 4 == 0 ? 255 : random() % 256);
    }
  }
  int32_t sums[16][kColumns] = {};
  {
    MatrixShapes shapes;
    shapes.set(false, rows, depth);
    clear_matrix<2>();
    load_matrix<6>(x, 64);
    load_matrix<5>(weights, 64);
    add_byte_products<2, 6, 5>();
    store_matrix<2>(sums, 64);
  }
  int num_wrong = 0;
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < kColumns; ++column) {
      int expected = 0;
      for (int k = 0; row < rows && k < 4 * depth; ++k) expected += x[row][k] * weights[k / 4][column][k % 4];
      num_wrong += sums[row][column] != expected;
    }
  }
  if (num_wrong != 0) std::printf("wrong: %d sums of bytes in %d rows of depth %d\n", num_wrong, rows, depth);
  return num_wrong == 0;
}

int run() {
#if !defined(PELTON_EMULATED_AMX)
  if (syscall(SYS_arch_prctl, 0x1023, 18) != 0) {
    std::printf("the system does not permit the registers\n");
    return 1;
  }
#endif
  bool is_right = true;
  for (int rows = 1; rows <= 16; ++rows) {
    is_right &= check_bf16_products(rows, false);
    is_right &= check_bf16_products(rows, true);
    is_right &= check_byte_products(rows, 16);
    is_right &= check_byte_products(rows, 8);
  }
  return is_right ? 0 : 1;
}

}  // namespace
}  // namespace pelton

int main() { return pelton::run(); }
