// Checks that the probes of one level do what they say they have done. Prints what is wrong; the exit status is the
// number of failed checks.
#include "ops/probes.cpp"

#include <cstdio>
#include <vector>

namespace pelton {
namespace {

int num_failures = 0;

void check(bool holds, const char* what, double found, double expected) {
  if (holds) return;
  ++num_failures;
  std::printf("wrong: %s: %.17g instead of %.17g\n", what, found, expected);
}

void check_products(DType format, const char* name) {
  const Products products = multiply_repeatedly(format);
  const double expected = repeated_product(format) * static_cast<double>(products.num_operations / 2);
  check(products.num_operations > 0 && products.sum == expected, name, products.sum, expected);
}

// Every word is read, and none beyond the block.
void check_reading() {
  std::vector<std::byte> data(kReadBlock + 64);
  for (int64_t at = 0; at < static_cast<int64_t>(data.size()); at += 3) {
    data[at] = std::byte{1};
    const int32_t found = read_block(data.data()), expected = at < kReadBlock ? 1 << at % 4 * 8 : 0;
    check(found == expected, "bits that were read", found, expected);
    data[at] = std::byte{0};
  }
}

}  // namespace
}  // namespace pelton

int main() {
  pelton::check_products(pelton::DType::kFloat32, "fp32");
  pelton::check_products(pelton::DType::kBFloat16, "bf16");
  pelton::check_products(pelton::DType::kInt8, "int8");
  pelton::check_products(pelton::DType::kInt4, "int4");
  pelton::check_reading();
  return pelton::num_failures < 100 ? pelton::num_failures : 100;
}
