// What the machine can do at best, to hold against what kernels do.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/kernel.h"

namespace pelton {

struct Products {
  int64_t num_operations = 0;  // multiplications and additions
  double sum = 0.0;            // of all products
};

// The inner products of a format by the instructions of its kernels, with the same few operands over and over, into as
// many sums as a kernel's tile has. It takes some microseconds and waits for no memory. For quantized weights, what is
// done once per group is left out, as far as sums can do without.
Products multiply_repeatedly(DType format);

// What each of its products is.
double repeated_product(DType format);

inline constexpr int64_t kReadBlock = 16384;  // bytes

// Reads a block of memory as vectors. -> the bits that are set in any word of it.
int32_t read_block(const std::byte* data);

}  // namespace pelton
