// Matrices of AMX, beside the vectors of AVX-512: eight registers of up to 16 rows of 64 bytes. PELTON_EMULATED_AMX
// takes the instructions from amx_emulated.h, for tests.
#pragma once

#include <cstdint>

#include "vec/avx512.h"

namespace pelton {

struct MatrixLayout {  // of all registers, as the processor has it
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

}  // namespace pelton

#if defined(PELTON_EMULATED_AMX)
#include "vec/amx_emulated.h"
#else

namespace pelton {

inline void configure_matrices(const MatrixLayout& layout) { asm volatile("ldtilecfg %0" ::"m"(layout)); }
inline void release_matrices() { asm volatile("tilerelease"); }

// Rows are `stride` bytes apart in memory. Assembly, because the intrinsics of GCC 12 do not take template arguments,
// and do not tell the compiler that a load reads memory.
template <int kMatrix>
void clear_matrix() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kMatrix));
}
template <int kMatrix>
void load_matrix(const void* p, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(kMatrix) : "memory");
}
template <int kMatrix>
void store_matrix(void* p, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(kMatrix) : "memory");
}
// Adds the products of pairs of bfloat16: in each sum first those of all even elements, from 0, apart from those of all
// odd ones; then even + odd is added to the sum. Rounded to nearest every time; denormals count as 0.
template <int kSums, int kX, int kWeights>
void add_bf16_products() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kX), "i"(kWeights));
}
// Adds the products of four signed bytes of x with four unsigned ones.
template <int kSums, int kX, int kWeights>
void add_byte_products() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kX), "i"(kWeights));
}

}  // namespace pelton

#endif

namespace pelton {

// The shapes of this thread's matrix registers, from the first `set` on. Afterwards they are released: registers in use
// are 8 KiB for the system to save whenever it switches threads.
class MatrixShapes {
 public:
  MatrixShapes() = default;
  ~MatrixShapes() {
    if (rows_ != 0) release_matrices();
  }
  MatrixShapes(const MatrixShapes&) = delete;
  MatrixShapes& operator=(const MatrixShapes&) = delete;

  // For sums of up to 16 `rows`. Weights are `depth` rows of 64 bytes, up to 16; x has 4 * depth bytes in a row.
  // One half of rows: registers 0 to 2 are sums, 3 to 5 weights, 6 x. Two: 0 to 5 are sums, 6 x, 7 weights.
  void set(bool has_two_halves, int64_t rows, int depth) {
    if (rows == rows_ && depth == depth_ && has_two_halves == has_two_halves_) return;
    rows_ = rows;
    depth_ = depth;
    has_two_halves_ = has_two_halves;
    alignas(64) MatrixLayout layout = {};
    const int num_sums = has_two_halves ? 6 : 3;
    for (int i = 0; i < 8; ++i) {
      const bool is_weight = i >= num_sums && i != 6;
      layout.row_bytes[i] = static_cast<uint16_t>(i == 6 ? 4 * depth : 64);
      layout.rows[i] = static_cast<uint8_t>(is_weight ? depth : rows);
    }
    configure_matrices(layout);
  }

 private:
  int64_t rows_ = 0;
  int depth_ = 0;
  bool has_two_halves_ = false;
};

}  // namespace pelton
