// Checks the vectors of one level and their exp, exp2, log and tanh. Prints what is wrong, or the errors found; the
// exit status is the number of failed checks, 100 at most.
//
// Arrays for partial loads and stores end or begin where a page without access does.
#include "vec/vec.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "vec/half.h"

namespace pelton {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int num_failures = 0;

void check(bool holds, const char* what, double detail = 0.0) {
  if (holds) return;
  if (++num_failures <= 20) std::printf("wrong: %s (%.9g)\n", what, detail);
}

uint32_t word_of(float x) {
  uint32_t word;
  std::memcpy(&word, &x, 4);
  return word;
}
float float_of(uint32_t word) {
  float x;
  std::memcpy(&x, &word, 4);
  return x;
}
bool same(float a, float b) { return word_of(a) == word_of(b) || (std::isnan(a) && std::isnan(b)); }

struct Lanes {
  float at[kLanes];
  explicit Lanes(F32 x) { store(at, x); }
  float operator[](int i) const { return at[i]; }
};
F32 counting(float first, float step) {
  float lanes[kLanes];
  for (int i = 0; i < kLanes; ++i) lanes[i] = first + step * float(i);
  return load(lanes);
}

// A page of memory between two pages without access.
class GuardedPage {
 public:
  GuardedPage() : size_(size_t(sysconf(_SC_PAGESIZE))) {
    all_ = mmap(nullptr, 3 * size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all_ == MAP_FAILED || mprotect(begin(), size_, PROT_READ | PROT_WRITE) != 0) {
      std::perror("mmap");
      std::exit(101);
    }
  }
  ~GuardedPage() { munmap(all_, 3 * size_); }
  GuardedPage(const GuardedPage&) = delete;
  GuardedPage& operator=(const GuardedPage&) = delete;
  char* begin() const { return static_cast<char*>(all_) + size_; }
  char* end() const { return begin() + size_; }

 private:
  size_t size_;
  void* all_;
};

void check_masks() {
  for (int n = 0; n <= kLanes + 3; ++n) {
    const uint32_t expected = (1u << std::min(n, kLanes)) - 1u;
    check(bits(first_lanes(n)) == expected, "first_lanes", n);
  }
  check(bits(first_lanes(int64_t(1) << 40)) == (1u << kLanes) - 1u, "first_lanes of a large number");
  const uint32_t all = (1u << kLanes) - 1u, step = kLanes > 8 ? 37 : 1;
  for (uint32_t word = 0; word <= all; word += step) {
    const Mask mask = from_bits(word);
    check(bits(mask) == word && count(mask) == __builtin_popcount(word) && any(mask) == (word != 0), "from_bits", word);
    check(bits(~mask) == (all & ~word), "complement", word);
    check(bits(mask & first_lanes(3)) == (word & 7u) && bits(mask | first_lanes(3)) == (word | 7u), "and, or", word);
    const Lanes chosen(select(mask, broadcast(1.0f), broadcast(2.0f)));
    for (int i = 0; i < kLanes; ++i) check(chosen[i] == ((word >> i & 1) != 0 ? 1.0f : 2.0f), "select", word);
  }
}

// Reads and writes the lanes of `mask` around the address `p`, whose other lanes may have no memory.
template <class Element, class Store, class Load>
void check_partial(Element* p, uint32_t lanes, Store store_part, Load load_part, const char* what) {
  const Mask mask = from_bits(lanes);
  store_part(p, counting(1.0f, 1.0f), mask);
  const Lanes back(load_part(p, mask));
  for (int i = 0; i < kLanes; ++i) check(back[i] == ((lanes >> i & 1) != 0 ? 1.0f + float(i) : 0.0f), what, lanes);
}

void check_partial_memory() {
  const GuardedPage page;
  const auto store_float = [](float* p, F32 x, Mask mask) { store(p, x, mask); };
  const auto load_float = [](const float* p, Mask mask) { return load(p, mask); };
  const auto store_half = [](uint16_t* p, F32 x, Mask mask) { store_bf16(p, x, mask); };
  const auto load_half = [](const uint16_t* p, Mask mask) {
    float lanes[kLanes] = {};
    for (uint32_t rest = bits(mask); rest != 0; rest &= rest - 1) {
      const int lane = __builtin_ctz(rest);
      lanes[lane] = float_of(uint32_t(p[lane]) << 16);
    }
    return load(lanes);
  };
  for (int n = 0; n <= kLanes; ++n) {
    const uint32_t head = (1u << n) - 1u, tail = ((1u << kLanes) - 1u) & ~((1u << (kLanes - n)) - 1u);
    check_partial(reinterpret_cast<float*>(page.end()) - n, head, store_float, load_float, "end, float");
    check_partial(reinterpret_cast<float*>(page.begin()) - (kLanes - n), tail, store_float, load_float, "begin, float");
    check_partial(reinterpret_cast<uint16_t*>(page.end()) - n, head, store_half, load_half, "end, bf16");
    check_partial(reinterpret_cast<uint16_t*>(page.begin()) - (kLanes - n), tail, store_half, load_half, "begin, bf16");
    auto* pairs = reinterpret_cast<uint16_t*>(page.end()) - 2 * n;
    for (int i = 0; i < 2 * n; ++i) pairs[i] = uint16_t(0x3f80 + i);
    const Pairs part = load_pairs(pairs, first_lanes(n));
    const Lanes low(low_elements(part)), high(high_elements(part));
    for (int i = 0; i < kLanes; ++i) {
      check(word_of(low[i]) == (i < n ? uint32_t(0x3f80 + 2 * i) << 16 : 0), "load_pairs, low", n);
      check(word_of(high[i]) == (i < n ? uint32_t(0x3f80 + 2 * i + 1) << 16 : 0), "load_pairs, high", n);
    }
  }
  // Lanes that are left out keep their memory.
  float kept[kLanes];
  store(kept, broadcast(7.0f));
  store(kept, broadcast(1.0f), from_bits(0b0101));
  for (int i = 0; i < kLanes; ++i) check(kept[i] == (i == 0 || i == 2 ? 1.0f : 7.0f), "store keeps", i);
  uint16_t halves[kLanes];
  store_bf16(halves, broadcast(7.0f));
  store_bf16(halves, broadcast(1.0f), from_bits(0b0101));
  for (int i = 0; i < kLanes; ++i) check(halves[i] == (i == 0 || i == 2 ? 0x3f80 : 0x40e0), "store_bf16 keeps", i);
}

void check_arithmetic() {
  const F32 a = counting(1.5f, 1.0f), b = counting(-2.0f, 0.25f);
  const Lanes sum(a + b), difference(a - b), product(a * b), quotient(a / b), root(sqrt(a));
  for (int i = 0; i < kLanes; ++i) {
    const float x = 1.5f + float(i), y = -2.0f + 0.25f * float(i);
    check(sum[i] == x + y && difference[i] == x - y && product[i] == x * y && same(quotient[i], x / y), "+ - * /", i);
    check(root[i] == std::sqrt(x), "sqrt", i);
  }
  for (const float x : {0.5f, 1.5f, 2.5f, -0.5f, -0.25f, -3.5f, -7.0f, 8388607.5f, 8388609.0f, 1e9f, -2147483648.0f}) {
    int32_t whole[kLanes];
    const I32 nearest = to_int(broadcast(x));
    std::memcpy(whole, &nearest, sizeof(whole));
    check(whole[kLanes - 1] == int32_t(std::nearbyint(x)), "to_int", x);
  }
  const F32 one = broadcast(1.0f), nan = broadcast(kNan);
  check(Lanes(max(nan, one))[0] == 1.0f && std::isnan(Lanes(max(one, nan))[0]), "max of NaN");
  check(Lanes(min(nan, one))[0] == 1.0f && std::isnan(Lanes(min(one, nan))[0]), "min of NaN");
  check(Lanes(max(one, broadcast(2.0f)))[0] == 2.0f && Lanes(min(one, broadcast(2.0f)))[0] == 1.0f, "max, min");
  check(!any(nan < one) && !any(one < nan) && !any(nan <= nan) && !any(nan == nan), "comparison with NaN");
  check(count(is_nan(nan)) == kLanes && !any(is_nan(broadcast(kInfinity))), "is_nan");
  check(bits(counting(0.0f, 1.0f) < broadcast(2.0f)) == 3 && bits(counting(0.0f, 1.0f) <= broadcast(2.0f)) == 7,
        "<, <=");
  check(bits(counting(0.0f, 1.0f) == broadcast(2.0f)) == 4, "==");
  check(Lanes(fma(broadcast(3.0f), broadcast(4.0f), broadcast(5.0f)))[0] == 17.0f, "fma");
  check(reduce_add(counting(1.0f, 1.0f)) == float(kLanes * (kLanes + 1) / 2), "reduce_add");
  for (int i = 0; i < kLanes; ++i) {
    check(reduce_max(select(from_bits(1u << i), broadcast(-1.0f), broadcast(-kInfinity))) == -1.0f, "reduce_max", i);
  }
  const F32 denormal = scale_by_power(broadcast(1.5f), broadcast(-140.0f));
  check(Lanes(denormal)[0] == std::ldexp(1.5f, -140), "scale_by_power to a denormal number");
  check(Lanes(scale_by_power(broadcast(0.75f), broadcast(128.0f)))[0] == std::ldexp(0.75f, 128), "scale_by_power");
  int32_t whole[kLanes];
  const I32 shifted = shift_right<4>(broadcast_int(-256)) + shift_left<4>(broadcast_int(1)) - broadcast_int(3);
  std::memcpy(whole, &shifted, sizeof(whole));
  check(whole[0] == -3, "shifts", whole[0]);
}

uint16_t rounded_to_bf16(float x) {
  const uint32_t word = word_of(x);
  if (std::isnan(x)) return uint16_t(word >> 16 | 0x40);
  const uint32_t rest = word & 0xffff, upper = word >> 16;
  return uint16_t(upper + (rest > 0x8000 || (rest == 0x8000 && (upper & 1) != 0) ? 1 : 0));
}

void check_bf16() {
  std::vector<uint32_t> words = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7f7fffff,
                                 0x7f7f7fff, 0x7f7f8000, 0x3f808000, 0x3f818000, 0x3f808001,
                                 0x3f817fff, 0x7f800001, 0x7fc00000, 0xffffffff, 0x7fffffff};
  for (uint64_t word = 0; word < (uint64_t(1) << 32); word += 30011) words.push_back(uint32_t(word));
  for (const uint32_t word : words) {
    const float x = float_of(word);
    uint16_t halves[kLanes];
    store_bf16(halves, broadcast(x));
    // A level may make denormal numbers zero.
    const bool is_denormal = (word & 0x7f800000) == 0;
    for (int i = 0; i < kLanes; ++i) {
      check(halves[i] == rounded_to_bf16(x) || (is_denormal && halves[i] == (word >> 31) << 15), "store_bf16", word);
    }
  }
}

void check_pairs() {
  uint16_t a[2 * kLanes], b[2 * kLanes];
  for (int i = 0; i < 2 * kLanes; ++i) {
    a[i] = rounded_to_bf16(float(i + 1));
    b[i] = rounded_to_bf16(0.5f * float(i) - 3.0f);
  }
  const Lanes sums(dot(broadcast(0.25f), load_pairs(a), load_pairs(b)));
  const Lanes spread(dot(zero(), broadcast_pair(a), load_pairs(b)));
  for (int i = 0; i < kLanes; ++i) {
    const float low = float(2 * i + 1), high = float(2 * i + 2), x = float(i) - 3.0f, y = float(i) - 2.5f;
    check(sums[i] == 0.25f + low * x + high * y, "dot", i);
    check(spread[i] == x + 2.0f * y, "broadcast_pair", i);
  }
}

// All lanes get the products of four weights, up to `most`, with the same four factors, one after another `times`
// times.
template <class Numbers>
void check_products(int most, int times, int32_t start, const char* what) {
  std::vector<std::array<uint8_t, 4>> weights;
  std::vector<std::array<int8_t, 4>> factors;
  for (const int a : {0, 1, 2, 15, 16, 127, 128, 254, 255}) {
    for (const int b : {0, 1, 15, 127, 128, 255}) {
      const auto x = uint8_t(std::min(a, most)), y = uint8_t(std::min(b, most));
      weights.push_back({x, y, y, x});
    }
  }
  for (const int a : {0, 1, -1, 127, -127, -128}) {
    for (const int b : {1, 100, 127, -128}) factors.push_back({int8_t(a), int8_t(b), int8_t(a), int8_t(b)});
  }
  for (uint32_t i = 0; i < 200; ++i) {  // four different numbers each
    const auto byte = [i](uint32_t j) { return (4 * i + j) * 2654435761u >> 13 & 255u; };
    const auto weight = [&](uint32_t j) { return uint8_t(byte(j) % uint32_t(most + 1)); };
    weights.push_back({weight(0), weight(1), weight(2), weight(3)});
    factors.push_back({int8_t(byte(3)), int8_t(byte(1) ^ 255u), int8_t(byte(0)), int8_t(byte(2) ^ 90u)});
  }
  for (const auto& x : factors) {
    for (size_t first = 0; first + kLanes <= weights.size(); ++first) {
      auto sums = Numbers::start(start);
      const auto split = Numbers::split(load_words(weights[first].data()));
      for (int i = 0; i < times; ++i) sums = Numbers::add(sums, split, Numbers::broadcast(x.data()));
      int32_t totals[kLanes];
      store_words(totals, Numbers::total(sums));
      for (size_t i = 0; i < kLanes; ++i) {
        int expected = 0;
        for (size_t j = 0; j < 4; ++j) expected += weights[first + i][j] * x[j];
        check(totals[i] == start + times * expected, what, totals[i]);
      }
    }
  }
}

void check_integers() {
  check_products<Bytes>(255, 1, -7, "products of bytes");
  check_products<Bytes>(255, 16, 2080768, "sums of products of bytes");
  check_products<Nibbles>(15, 1, 0, "products of half bytes");
  check_products<Nibbles>(15, 8, 0, "sums of products of half bytes");
  int32_t words[kLanes];
  for (int i = 0; i < kLanes; ++i) words[i] = (i * 7 % kLanes) * 0x01234567 - 0x100005;
  const I32 loaded = load_words(words);
  uint16_t halves[kLanes + 1];
  halves[kLanes] = 0xabcd;
  store_low_halves(halves, loaded);
  int32_t most = words[0], sum = 0;
  for (int i = 0; i < kLanes; ++i) {
    check(halves[i] == uint16_t(words[i]), "store_low_halves", i);
    most = std::max(most, words[i]);
    sum = int32_t(uint32_t(sum) + uint32_t(words[i]));
  }
  check(halves[kLanes] == 0xabcd, "store_low_halves, past the end");
  check(reduce_max(loaded) == most, "reduce_max of integers", reduce_max(loaded));
  check(reduce_add(loaded - broadcast_int(0x1000000)) == int32_t(uint32_t(sum) - kLanes * 0x1000000u), "reduce_add");
  int32_t larger[kLanes];
  store_words(larger, max(loaded, broadcast_int(-3)));
  for (int i = 0; i < kLanes; ++i) check(larger[i] == std::max(words[i], -3), "max of integers", i);
}

void check_halves() {
  check(to_half(65519.0f) == 0x7bff && to_half(65520.0f) == 0x7c00 && to_half(-1e38f) == 0xfc00, "to_half, large");
  check(to_half(1e-40f) == 0 && to_half(-1e-9f) == 0x8000 && !is_finite_half(0x7c00), "to_half, small");
  for (uint32_t first = 0; first < (1u << 16); first += kLanes) {
    uint16_t halves[kLanes];
    for (int i = 0; i < kLanes; ++i) halves[i] = uint16_t(first + uint32_t(i));
    const Lanes wide(load_half(halves));
    for (int i = 0; i < kLanes; ++i) {
      const int exponent = halves[i] >> 10 & 31, mantissa = halves[i] & 1023;
      if (exponent == 31) continue;
      const float size =
          exponent == 0 ? std::ldexp(float(mantissa), -24) : std::ldexp(float(1024 + mantissa), exponent - 25);
      const float exact = (halves[i] >> 15) != 0 ? -size : size;
      check(word_of(wide[i]) == word_of(exact), "load_half", halves[i]);
      check(word_of(half_to_float(halves[i])) == word_of(exact), "half_to_float", halves[i]);
      check(to_half(exact) == halves[i], "to_half", halves[i]);
      if ((halves[i] & 0x7fff) == 0x7bff) continue;
      // Halfway to the next number: the even one of both; a little further or less far: the closer one.
      const float next = half_to_float(uint16_t(halves[i] + 1)), middle = 0.5f * (exact + next);
      check(to_half(middle) == halves[i] + (halves[i] & 1), "to_half of a tie", halves[i]);
      check(to_half(std::nextafter(middle, exact)) == halves[i], "to_half, rounded down", halves[i]);
      check(to_half(std::nextafter(middle, next)) == halves[i] + 1, "to_half, rounded up", halves[i]);
    }
  }
}

// The distance of `x` from `exact`, in units of the last place of a float32 of that size.
double units(float x, double exact) {
  if (std::isinf(x) && std::fabs(exact) > 3.4028235e38) return 0.0;
  if (std::fabs(exact) < 1.17549435e-38 && std::fabs(x) < 1.17549435e-38) return 0.0;  // may be zero
  int exponent;
  std::frexp(exact, &exponent);
  return std::fabs(double(x) - exact) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

float tanh_scalar(float x) { return first_lane(tanh(broadcast(x))); }

struct Function {
  const char* name;
  F32 (*of_vector)(F32);
  float (*of_scalar)(float);
  double (*exact)(double);
};

void check_function(const Function& function, uint32_t step) {
  double worst = 0.0;
  float worst_at = 0.0f;
  for (uint64_t first = 0; first < (uint64_t(1) << 32); first += uint64_t(step) * kLanes) {
    float in[kLanes];
    for (int i = 0; i < kLanes; ++i) in[i] = float_of(uint32_t(first + uint64_t(step) * uint64_t(i)));
    const Lanes out(function.of_vector(load(in)));
    for (int i = 0; i < kLanes; ++i) {
      const double exact = function.exact(double(in[i]));
      if (std::isnan(exact) || std::isnan(out[i])) {
        check(std::isnan(exact) && std::isnan(out[i]), function.name, in[i]);
      } else if (std::isinf(exact)) {
        check(double(out[i]) == exact, function.name, in[i]);
      } else if (const double error = units(out[i], exact); error > worst) {
        worst = error;
        worst_at = in[i];
      }
    }
    check(same(out[kLanes - 1], function.of_scalar(in[kLanes - 1])), "the scalar's bits", in[kLanes - 1]);
  }
  std::printf("%s: error %.3f units at %.9g\n", function.name, worst, double(worst_at));
  check(worst <= 2.0, function.name, worst_at);
}

void check_special_values() {
  check(exp_scalar(0.0f) == 1.0f && exp_scalar(-0.0f) == 1.0f, "exp(0)");
  check(same(exp_scalar(-kInfinity), 0.0f) && same(exp_scalar(-200.0f), 0.0f), "exp of very negative numbers");
  check(exp_scalar(kInfinity) == kInfinity && exp_scalar(89.0f) == kInfinity, "exp of large numbers");
  check(exp_scalar(88.7228f) < kInfinity, "the largest exp");
  check(std::isnan(exp_scalar(kNan)), "exp(NaN)");
  check(log_scalar(0.0f) == -kInfinity && log_scalar(-0.0f) == -kInfinity, "log(0)");
  check(same(log_scalar(1.0f), 0.0f), "log(1)");
  check(log_scalar(kInfinity) == kInfinity, "log of infinity");
  check(std::isnan(log_scalar(-1.0f)) && std::isnan(log_scalar(-kInfinity)) && std::isnan(log_scalar(kNan)),
        "log, NaN");
  check(std::isnan(log_scalar(-1e-40f)), "log of a negative denormal number");
  check(same(tanh_scalar(0.0f), 0.0f) && same(tanh_scalar(-0.0f), -0.0f), "tanh(0)");
  check(tanh_scalar(kInfinity) == 1.0f && tanh_scalar(-kInfinity) == -1.0f, "tanh of infinity");
  check(tanh_scalar(1e-40f) == 1e-40f && tanh_scalar(-1e-4f) == -1e-4f, "tanh near 0");
  check(std::isnan(tanh_scalar(kNan)), "tanh(NaN)");
}

// Every result of exp2 for x <= 0, within 2 units with degree 6, and within 2^-18 with degree 4.
void check_exp2(uint32_t step) {
  for (uint64_t first = 0x80000000u; first < 0xff800000u; first += uint64_t(step) * kLanes) {
    float in[kLanes];
    for (int i = 0; i < kLanes; ++i) in[i] = float_of(uint32_t(first + uint64_t(step) * uint64_t(i)));
    const Lanes fine(exp2<6>(load(in))), rough(exp2<4>(load(in)));
    for (int i = 0; i < kLanes && in[i] <= 0.0f; ++i) {
      const double exact = std::exp2(double(in[i]));
      check(units(fine[i], exact) <= 2.0, "exp2 of degree 6", in[i]);
      check(units(rough[i], exact) <= 64.0, "exp2 of degree 4", in[i]);
    }
  }
  const auto check_special = [](float x, float expected) {
    check(same(first_lane(exp2<6>(broadcast(x))), expected), "exp2 of degree 6", x);
    check(same(first_lane(exp2<4>(broadcast(x))), expected), "exp2 of degree 4", x);
  };
  check_special(0.0f, 1.0f);
  check_special(-0.0f, 1.0f);
  check_special(-1.0f, 0.5f);
  check_special(-kInfinity, 0.0f);
  check_special(kNan, kNan);
}

int run(uint32_t step) {
  check_masks();
  check_partial_memory();
  check_arithmetic();
  check_bf16();
  check_pairs();
  check_integers();
  check_halves();
  check_special_values();
  check_exp2(step);
  const auto exact_exp = [](double x) { return std::exp(x); };
  const auto exact_log = [](double x) { return std::log(x); };
  const auto exact_tanh = [](double x) { return std::tanh(x); };
  check_function({"exp", [](F32 x) { return exp(x); }, exp_scalar, exact_exp}, step);
  check_function({"log", [](F32 x) { return log(x); }, log_scalar, exact_log}, step);
  check_function({"tanh", [](F32 x) { return tanh(x); }, tanh_scalar, exact_tanh}, step);
  return std::min(num_failures, 100);
}

}  // namespace
}  // namespace pelton

// The optional argument: the distance of the float32 numbers tried, in their order as integers.
int main(int argc, char** argv) { return pelton::run(argc > 1 ? uint32_t(std::atoi(argv[1])) : 4099); }
