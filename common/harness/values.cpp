#include "common/harness/values.h"

#include <type_traits>
#include <variant>

#include "common/harness/tensor_descriptions.h"

namespace lnc {
namespace {

/// Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators": the output mix.
std::uint64_t splitmix64(std::uint64_t state) {
  state += 0x9e3779b97f4a7c15u;
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
  state = (state ^ (state >> 27)) * 0x94d049bb133111ebu;
  return state ^ (state >> 31);
}

/// Mean 0, variance 1: the sum of four uniform numbers (Irwin and Hall), within 3.5 deviations.
float nearly_normal(std::uint64_t bits) {
  float sum = 0.0f;
  for (int i = 0; i < 4; ++i) sum += static_cast<float>((bits >> (16 * i)) & 0xffff);
  constexpr float kSqrt3 = 1.7320508f;
  return (sum * (1.0f / 65536.0f) - 2.0f) * kSqrt3;
}

/// Random bits as a function of seed, stream and index.
class Bits {
 public:
  Bits(const Problem& problem, int stream)
      : key_(splitmix64(problem.seed * 16 + static_cast<std::uint64_t>(stream))) {}
  std::uint64_t at(std::int64_t index) const {
    return splitmix64(key_ ^ static_cast<std::uint64_t>(index));
  }

 private:
  std::uint64_t key_;
};

}  // namespace

void round_to(DType dtype, std::span<float> values) {
  if (dtype == DType::F32) return;
  with_element_type(dtype, [&]<typename T>() {
    if constexpr (!std::is_integral_v<T>)
      for (float& value : values) value = static_cast<float>(T(value));
  });
}

double (*rounding_to(DType dtype))(double) {
  return with_element_type(dtype, []<typename T>() -> double (*)(double) {
    return [](double value) -> double {
      return static_cast<float>(static_cast<T>(static_cast<float>(value)));
    };
  });
}

std::vector<float> random_elements(const Problem& problem, std::string_view name,
                                   std::int64_t begin, std::int64_t count) {
  const TensorDescription tensor = find_tensor(problem, name);
  if (!tensor.there) return {};
  const auto& random = std::get<Random>(tensor.source);
  const Bits bits(problem, random.stream);
  std::vector<float> values(count);
  for (std::int64_t i = 0; i < count; ++i)
    values[i] = random.centre + random.deviation * nearly_normal(bits.at(begin + i));
  const bool forward = tensor.forward.there;
  round_to(forward ? tensor.forward.dtype : tensor.backward.dtype, values);
  return values;
}

std::vector<double> reference_elements(const Problem& problem, std::string_view name,
                                       std::int64_t begin, std::int64_t count) {
  const auto values = random_elements(problem, name, begin, count);
  return {values.begin(), values.end()};
}

std::vector<double> reference_rows(const Problem& problem, std::string_view name, RowRange rows) {
  switch (find_tensor(problem, name).shape) {
    case Shape::Matrix:
      return reference_elements(problem, name, rows.begin * problem.cols,
                                rows.count * problem.cols);
    case Shape::Rows:
      return reference_elements(problem, name, rows.begin, rows.count);
    case Shape::Columns:
      break;
  }
  return reference_elements(problem, name, 0, problem.cols);
}

std::vector<std::uint32_t> dropout_seeds(const Problem& problem, std::string_view name,
                                         RowRange rows) {
  const TensorDescription tensor = find_tensor(problem, name);
  if (!tensor.there) return {};
  const Bits bits(problem, std::get<Seeds>(tensor.source).stream);
  std::vector<std::uint32_t> seeds(rows.count);
  for (std::int64_t row = 0; row < rows.count; ++row)
    seeds[row] = static_cast<std::uint32_t>(bits.at(rows.begin + row));
  return seeds;
}

}  // namespace lnc
