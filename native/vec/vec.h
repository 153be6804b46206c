// The vectors of the level that is being compiled. Algorithms are written once, over these.
#pragma once

#if defined(PELTON_LEVEL_AMX)
#include "vec/amx.h"
#elif defined(PELTON_LEVEL_AVX512)
#include "vec/avx512.h"
#elif defined(PELTON_LEVEL_AVX2)
#include "vec/avx2.h"
#else
#include "vec/portable.h"
#endif

#include "vec/math.h"

namespace pelton {

#if !defined(PELTON_LEVEL_AMX)
class MatrixShapes {};  // no matrix instructions
#endif

// Stores as the element type says; with a mask, those lanes.
template <class... Masks>
inline void store_as(float* to, F32 x, Masks... mask) {
  store(to, x, mask...);
}
template <class... Masks>
inline void store_as(uint16_t* to, F32 x, Masks... mask) {
  store_bf16(to, x, mask...);
}

}  // namespace pelton
