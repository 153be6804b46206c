// The vectors of the level that is being compiled. Algorithms are written once, over these.
#pragma once

#if defined(PELTON_LEVEL_AVX512)
#include "vec/avx512.h"
#elif defined(PELTON_LEVEL_AVX2)
#include "vec/avx2.h"
#else
#include "vec/portable.h"
#endif

#include "vec/math.h"
