// Random numbers without state: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3",
// doi:10.1145/2063384.2063405).
#pragma once

#include <cstdint>

namespace pelton {

// What a random number is drawn for: draws of different purposes are independent.
enum class Purpose : uint32_t { kSample = 0 };

// A number in [0, 1) with 53 random bits, a pure function of its arguments.
inline double uniform(uint64_t seed, int32_t choice, int32_t position, Purpose purpose) {
  uint32_t c0 = uint32_t(position), c1 = uint32_t(choice), c2 = uint32_t(purpose), c3 = 0;
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0, p1 = uint64_t{0xCD9E8D57} * c2;
    c0 = uint32_t(p1 >> 32) ^ c1 ^ k0;
    c1 = uint32_t(p1);
    c2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
    c3 = uint32_t(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return double(uint64_t(c0 >> 5) << 26 | c1 >> 6) * 0x1p-53;
}

}  // namespace pelton
