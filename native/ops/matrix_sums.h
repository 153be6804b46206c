// Sums of products of bfloat16 by matrix instructions (AMX), in the registers of MatrixShapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "vec/vec.h"

namespace pelton {

inline constexpr int64_t kRowBytes = 64;  // of a register

// Sums of one half of rows, or two, and of up to three columns of 16. The rows of `first` and `second`, and of what is
// multiplied with them, are `stride` bytes apart.
template <bool kHasTwoHalves, int kColumns>
struct MatrixSums {
  static_assert(1 <= kColumns && kColumns <= 3);

  static void clear() {
    each([](auto sums, int, bool) { clear_matrix<sums>(); });
  }

  static void load(const float* first, const float* second, int64_t stride) {
    each([&](auto sums, int column, bool is_second) {
      load_matrix<sums>((is_second ? second : first) + column * 16, stride);
    });
  }

  static void store(float* first, float* second, int64_t stride) {
    each([&](auto sums, int column, bool is_second) {
      store_matrix<sums>((is_second ? second : first) + column * 16, stride);
    });
  }

  // Adds a step's products. `weights(i)` are those of a column, rows `weights_stride` bytes apart; `between(i)` is
  // called after each column.
  template <class Weights, class Between>
  static void add(const std::byte* x, const std::byte* second, int64_t stride, Weights&& weights,
                  int64_t weights_stride, Between&& between) {
    load_matrix<6>(x, stride);
    if constexpr (kHasTwoHalves) {
      load_matrix<7>(weights(0), weights_stride);
      add_bf16_products<0, 6, 7>();
      load_matrix<6>(second, stride);
      add_bf16_products<3, 6, 7>();
      between(0);
      if constexpr (kColumns > 1) {  // in the order of halves that needs no more loads of x
        load_matrix<7>(weights(1), weights_stride);
        add_bf16_products<4, 6, 7>();
        load_matrix<6>(x, stride);
        add_bf16_products<1, 6, 7>();
        between(1);
      }
      if constexpr (kColumns > 2) {
        load_matrix<7>(weights(2), weights_stride);
        add_bf16_products<2, 6, 7>();
        load_matrix<6>(second, stride);
        add_bf16_products<5, 6, 7>();
        between(2);
      }
    } else {
      load_matrix<3>(weights(0), weights_stride);
      add_bf16_products<0, 6, 3>();
      between(0);
      if constexpr (kColumns > 1) {
        load_matrix<4>(weights(1), weights_stride);
        add_bf16_products<1, 6, 4>();
        between(1);
      }
      if constexpr (kColumns > 2) {
        load_matrix<5>(weights(2), weights_stride);
        add_bf16_products<2, 6, 5>();
        between(2);
      }
    }
  }

 private:
  // f(register, column, whether it is of the second half) of all sums.
  template <class F>
  static void each(F&& f) {
    f(Constant<0>(), 0, false);
    if constexpr (kColumns > 1) f(Constant<1>(), 1, false);
    if constexpr (kColumns > 2) f(Constant<2>(), 2, false);
    if constexpr (kHasTwoHalves) {
      f(Constant<3>(), 0, true);
      if constexpr (kColumns > 1) f(Constant<4>(), 1, true);
      if constexpr (kColumns > 2) f(Constant<5>(), 2, true);
    }
  }
  template <int kRegister>
  using Constant = std::integral_constant<int, kRegister>;
};

}  // namespace pelton
