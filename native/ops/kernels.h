// All kernels, one file each.
#pragma once

#include "runtime/kernel.h"

namespace pelton {

extern const Kernel kAttention;
extern const Kernel kEditLogits;
extern const Kernel kEmbed;
extern const Kernel kGatedLinear;
extern const Kernel kGatherRows;
extern const Kernel kLinear;
extern const Kernel kLogits;
extern const Kernel kLogprobs;
extern const Kernel kRmsNorm;
extern const Kernel kRopeAndCache;
extern const Kernel kRotary;
extern const Kernel kSample;
extern const Kernel kWarpLogits;

inline const Kernel* const kKernels[] = {
    &kAttention, &kEditLogits, &kEmbed,        &kGatedLinear, &kGatherRows, &kLinear,     &kLogits,
    &kLogprobs,  &kRmsNorm,    &kRopeAndCache, &kRotary,      &kSample,     &kWarpLogits,
};

}  // namespace pelton
