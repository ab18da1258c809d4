// Philox against its authors' vectors; every part of the fused forward against the same part
// written out here; the fused backward against finite differences of the fused forward.
#include "reference_cpu/fused_layer_norm.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

#include "reference_cpu/philox.h"
#include "reference_cpu/tests/threads.h"

namespace {

using reference::backward;
using reference::forward;
using reference::fused_backward;
using reference::fused_forward;
using reference::FusedBackward;
using reference::FusedBackwardInput;
using reference::FusedForward;
using reference::FusedForwardInput;
using reference::Norm;
using reference::philox4x32;
using reference::triton_uniform;
using reference::triton_uniform_of_word;
using Values = std::vector<double>;
using Seeds = std::vector<std::uint32_t>;
using Mask = std::vector<std::uint8_t>;

constexpr Norm kNorms[] = {Norm::Layer, Norm::Rms};

// What a problem has besides x, as the bits of a set.
constexpr unsigned kRowscale = 1, kDropout = 2, kX1 = 4, kRowscale1 = 8, kDropout1 = 16;
constexpr unsigned kResidual = 32, kWeight = 64, kBias = 128, kWeight1 = 256, kBias1 = 512;
constexpr unsigned kAll = 1023;

// All parts of a problem. Values are multiples of 1/8 and of size about 1, so that products and
// sums of them are exact: where p is 1/2, and dropout multiplies by 2, sums are compared with ==.
struct Parts {
  std::int64_t rows, cols;
  Values x, rowscale, x1, rowscale1, residual, weight, bias, weight1, bias1, dy, dy1, dsum;
  Seeds seeds, seeds1;

  Parts(std::int64_t rows, std::int64_t cols) : rows(rows), cols(cols) {
    std::mt19937_64 random(1);
    const auto eighths = [&](std::int64_t size) {
      std::uniform_int_distribution<int> draw(-12, 20);  // the mean is not 0, so that it matters
      Values values(size);
      std::generate(values.begin(), values.end(), [&] { return draw(random) / 8.0; });
      return values;
    };
    const auto words = [&](std::int64_t size) {
      Seeds seeds(size);
      std::generate(seeds.begin(), seeds.end(),
                    [&] { return static_cast<std::uint32_t>(random()); });
      return seeds;
    };
    x = eighths(rows * cols);
    rowscale = eighths(rows);
    x1 = eighths(rows * cols);
    rowscale1 = eighths(rows);
    residual = eighths(rows * cols);
    weight = eighths(cols);
    bias = eighths(cols);
    weight1 = eighths(cols);
    bias1 = eighths(cols);
    seeds = words(rows);
    seeds1 = words(rows);
    dy = eighths(rows * cols);
    dy1 = eighths(rows * cols);
    dsum = eighths(rows * cols);
  }

  FusedForwardInput with(unsigned parts, Norm norm = Norm::Layer, float p = 0.5f) const {
    const auto given = [&]<typename T>(unsigned part, const std::vector<T>& values) {
      return parts & part ? std::span<const T>(values) : std::span<const T>();
    };
    return {.norm = norm,
            .rows = rows,
            .cols = cols,
            .x = x,
            .rowscale = given(kRowscale, rowscale),
            .x1 = given(kX1, x1),
            .rowscale1 = given(kRowscale1, rowscale1),
            .residual = given(kResidual, residual),
            .weight = given(kWeight, weight),
            .bias = given(kBias, bias),
            .weight1 = given(kWeight1, weight1),
            .bias1 = given(kBias1, bias1),
            .dropout = p,
            .seeds = given(kDropout, seeds),
            .seeds1 = given(kDropout1, seeds1)};
  }

  // The backward pass of `in`, of which forward returned `saved`.
  FusedBackwardInput backward_of(const FusedForwardInput& in, const FusedForward& saved) const {
    return {.norm = in.norm,
            .rows = rows,
            .cols = cols,
            .dy = dy,
            .dy1 = saved.y1.empty() ? std::span<const double>() : dy1,
            .dsum = in.residual.empty() ? std::span<const double>() : dsum,
            .sum = saved.sum,
            .mean = saved.mean,
            .rstd = saved.rstd,
            .weight = in.weight,
            .weight1 = in.weight1,
            .rowscale = in.rowscale,
            .rowscale1 = in.rowscale1,
            .second_input = !in.x1.empty(),
            .dropout = in.dropout,
            .seeds = in.seeds,
            .seeds1 = in.seeds1};
  }
};

// One value for each element: body(row, column, index).
template <typename T = double, typename Body>
std::vector<T> each_element(const Parts& p, Body body) {
  std::vector<T> values;
  for (std::int64_t row = 0; row < p.rows; ++row) {
    for (std::int64_t j = 0; j < p.cols; ++j) values.push_back(body(row, j, row * p.cols + j));
  }
  return values;
}

// The mask of an input that has such a part; empty without one.
Mask mask_of(const Parts& p, std::span<const std::uint32_t> seeds, float dropout) {
  if (seeds.empty()) return {};
  return each_element<std::uint8_t>(p, [&](auto row, auto j, auto) {
    return triton_uniform(seeds[row], static_cast<std::uint32_t>(j)) > dropout;
  });
}

// The outputs of the norm are those of the plain forward of `sum`.
void check_norm_of(const Values& sum, const FusedForwardInput& in, const FusedForward& out) {
  CHECK(out.sum == sum);
  const auto plain = forward(in.norm, in.rows, in.cols, sum, in.weight, in.bias, in.eps);
  CHECK(out.y == plain.y);
  CHECK(out.mean == plain.mean);
  CHECK(out.rstd == plain.rstd);
}

double fraction_kept(std::span<const std::uint8_t> mask) {
  return std::accumulate(mask.begin(), mask.end(), 0.0) / static_cast<double>(mask.size());
}

double fraction_equal(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
  REQUIRE(a.size() == b.size());
  double equal = 0;
  for (std::size_t i = 0; i < a.size(); ++i) equal += a[i] == b[i];
  return equal / static_cast<double>(a.size());
}

// Five standard deviations of the fraction of n draws that come out true, each with probability q:
// a fair generator fails such a check about once in two million.
double five_deviations(double q, std::size_t n) {
  return 5 * std::sqrt(q * (1 - q) / static_cast<double>(n));
}

}  // namespace

// ----------------------------------------------------------------------------------- Philox

TEST_CASE("philox4x32 gives the known answers of Random123") {
  // DEShawResearch/random123, tests/kat_vectors, the lines "philox4x32 7" and "philox4x32 10".
  using Counter = std::array<std::uint32_t, 4>;
  using Key = std::array<std::uint32_t, 2>;
  const Counter zeros{};
  const Counter ones{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff};
  const Key key_ones{0xffffffff, 0xffffffff};
  const Counter pi{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};  // the digits of pi, and on
  const Key key_pi{0xa4093822, 0x299f31d0};

  CHECK(philox4x32(zeros, {}, 7) == Counter{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48});
  CHECK(philox4x32(ones, key_ones, 7) == Counter{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662});
  CHECK(philox4x32(pi, key_pi, 7) == Counter{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a});
  CHECK(philox4x32(zeros, {}, 10) == Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32(ones, key_ones, 10) == Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32(pi, key_pi, 10) == Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a word becomes a float in [0, 1) as in Triton") {
  CHECK(4.6566127342e-10f == 0x1.fffffep-32f);  // 2⁻³¹ (1 - 2⁻²⁴): one float below 2⁻³¹
  CHECK(triton_uniform_of_word(0) == 0);
  CHECK(triton_uniform_of_word(1) == 0x1.fffffep-32f);
  CHECK(triton_uniform_of_word(0x40000000) == 0x1.fffffep-2f);  // 2³⁰ · scale: just below 1/2
  CHECK(triton_uniform_of_word(0x7fffffff) == 0x1.fffffep-1f);  // the largest, and below 1
  // Negative words are folded: -1 to 0, and -2³¹ to the largest.
  CHECK(triton_uniform_of_word(0xffffffff) == 0);
  CHECK(triton_uniform_of_word(0xfffffffe) == 0x1.fffffep-32f);
  CHECK(triton_uniform_of_word(0x80000000) == 0x1.fffffep-1f);
  // 2²⁴ + 1 and 2²⁴ + 3 lie half way between floats: to the even one, 2²⁴ and 2²⁴ + 4.
  CHECK(triton_uniform_of_word(0x01000001) == triton_uniform_of_word(0x01000000));
  CHECK(triton_uniform_of_word(0x01000003) == triton_uniform_of_word(0x01000004));
}

TEST_CASE("triton_uniform takes the first word for key (seed, 0) and counter (offset, 0, 0, 0)") {
  // The known answers for zeros: 0x5f6fb709 = 1601156873, whose nearest float is 1601156864,
  // and 1601156864 / 2³¹ = 0.745596...
  CHECK(triton_uniform(0, 0) == 1601156864.0f * 4.6566127342e-10f);
  CHECK(triton_uniform(0, 0) == doctest::Approx(0.745596).epsilon(1e-6));
  CHECK(triton_uniform(0, 0, 10) == triton_uniform_of_word(0x6627e8d5));
  for (const std::uint32_t seed : {1u, 42u, 0xdeadbeefu}) {
    for (const std::uint32_t offset : {0u, 1u, 50256u, 0xffffffffu}) {
      const auto words = philox4x32({offset, 0, 0, 0}, {seed, 0}, 7);
      CHECK(triton_uniform(seed, offset) == triton_uniform_of_word(words[0]));
    }
  }
}

// ---------------------------------------------------------------------------------- by hand

TEST_CASE("all parts together give the numbers worked out by hand") {
  // u(seed, column): u(0, 0) = 0.746 follows from the known answer for zeros, as above.
  CHECK(triton_uniform(0, 1) == doctest::Approx(0.810719).epsilon(1e-6));
  CHECK(triton_uniform(1, 0) == doctest::Approx(0.092691).epsilon(1e-6));
  CHECK(triton_uniform(1, 1) == doctest::Approx(0.837474).epsilon(1e-6));
  // p = 1/2, so what is kept is doubled: both of x, under seed 0, and the second of x1, under
  // seed 1.
  //   x · rowscale    = [1 3] · 2   = [2 6]      dropout   -> [4 12]
  //   x1 · rowscale1  = [5 7] · 1/2 = [5/2 7/2]  dropout1  -> [0  7]
  //   sum             = [4 12] + [0 7] + [1 -1] = [5 18]
  const auto out = fused_forward({.rows = 1,
                                  .cols = 2,
                                  .x = Values{1, 3},
                                  .rowscale = Values{2},
                                  .x1 = Values{5, 7},
                                  .rowscale1 = Values{0.5},
                                  .residual = Values{1, -1},
                                  .dropout = 0.5f,
                                  .seeds = Seeds{0},
                                  .seeds1 = Seeds{1}});
  CHECK(out.mask == Mask{1, 1});
  CHECK(out.mask1 == Mask{0, 1});
  CHECK(out.sum == Values{5, 18});
  CHECK(out.mean == Values{11.5});
}

TEST_CASE("the norm is of the sum, with two affine outputs, by hand") {
  // sum = [1 1] · 2 + [3 1] · 1 + [-4 0] = [1 3]  mean 2  var 1  eps 3  rstd 1/2  xhat [-1/2 1/2]
  // y = xhat · [2 4] + [10 20] = [9 22],  y1 = xhat · [-2 6] + [0 1] = [1 4]
  const auto out = fused_forward({.rows = 1,
                                  .cols = 2,
                                  .x = Values{1, 1},
                                  .rowscale = Values{2},
                                  .x1 = Values{3, 1},
                                  .rowscale1 = Values{1},
                                  .residual = Values{-4, 0},
                                  .weight = Values{2, 4},
                                  .bias = Values{10, 20},
                                  .weight1 = Values{-2, 6},
                                  .bias1 = Values{0, 1},
                                  .eps = 3});
  CHECK(out == FusedForward{.y = {9, 22}, .y1 = {1, 4}, .sum = {1, 3}, .mean = {2}, .rstd = {0.5}});
}

// ------------------------------------------------------------------------- each part, and all

TEST_CASE("without any part the plain passes remain, bit for bit") {
  for (const Norm norm : kNorms) {
    for (const std::int64_t cols : {1, 2, 17, 64}) {
      const Parts p(5, cols);
      for (const unsigned parameters : {0u, kWeight, kBias, kWeight | kBias}) {
        for (const float dropout : {0.0f, 0.5f}) {  // without seeds, p is not used
          const FusedForwardInput in = p.with(parameters, norm, dropout);
          const auto out = fused_forward(in);
          check_norm_of(p.x, in, out);
          CHECK(out.y1.empty());
          CHECK(out.mask.empty());
          CHECK(out.mask1.empty());
          const auto plain = backward(norm, 5, cols, p.dy, p.x, in.weight, out.mean, out.rstd);
          CHECK(fused_backward(p.backward_of(in, out)) == FusedBackward{.dx = plain.dx,
                                                                        .dresidual = plain.dx,
                                                                        .dweight = plain.dweight,
                                                                        .dbias = plain.dbias});
        }
      }
    }
  }
}

TEST_CASE("each part does what it says, alone and beside any others") {
  for (const Norm norm : kNorms) {
    for (const std::int64_t cols : {1, 2, 33, 100}) {
      const Parts p(7, cols);
      for (unsigned parts = 0; parts < kWeight; ++parts) {
        if (parts & (kRowscale1 | kDropout1) && !(parts & kX1)) continue;
        for (const unsigned parameters : {0u, kWeight | kBias | kWeight1 | kBias1}) {
          CAPTURE(parts);
          const FusedForwardInput in = p.with(parts | parameters, norm);
          const Mask mask = mask_of(p, in.seeds, 0.5f);
          const Mask mask1 = mask_of(p, in.seeds1, 0.5f);
          const auto sum = each_element(p, [&](auto row, auto, auto i) {
            double first = p.x[i], second = parts & kX1 ? p.x1[i] : 0;
            if (parts & kRowscale) first *= p.rowscale[row];
            if (parts & kRowscale1) second *= p.rowscale1[row];
            if (parts & kDropout) first *= 2 * mask[i];
            if (parts & kDropout1) second *= 2 * mask1[i];
            return first + second + (parts & kResidual ? p.residual[i] : 0);
          });
          const auto out = fused_forward(in);
          CHECK(out.mask == mask);
          CHECK(out.mask1 == mask1);
          check_norm_of(sum, in, out);
          CHECK(out.y1 == (parameters
                               ? forward(norm, p.rows, cols, sum, p.weight1, p.bias1, in.eps).y
                               : Values{}));
        }
      }
    }
  }
}

TEST_CASE("weight1 or bias1 give a second output and leave the first alone") {
  const Parts p(7, 33);
  for (const Norm norm : kNorms) {
    for (const unsigned of_y1 : {0u, kWeight1, kBias1, kWeight1 | kBias1}) {
      const FusedForwardInput in = p.with(kWeight | of_y1, norm);
      const auto out = fused_forward(in);
      check_norm_of(p.x, in, out);
      const auto second = forward(norm, p.rows, p.cols, p.x, in.weight1, in.bias1, in.eps).y;
      CHECK(out.y1 == (of_y1 ? second : Values{}));
    }
  }
}

TEST_CASE("what is normalised is the sum as it is stored, rounded once") {
  const Parts p(5, 13);
  for (const Norm norm : kNorms) {
    FusedForwardInput in = p.with(kAll, norm);
    const FusedForward exact = fused_forward(in);
    in.rounded = [](double value) { return std::nearbyint(value); };
    const FusedForward out = fused_forward(in);
    Values stored = exact.sum;
    for (double& value : stored) value = std::nearbyint(value);
    CHECK(stored != exact.sum);
    CHECK(out.sum == stored);
    const auto normed = forward(norm, p.rows, p.cols, stored, p.weight, p.bias, in.eps);
    CHECK(out.y == normed.y);
    CHECK(out.mean == normed.mean);
    CHECK(out.rstd == normed.rstd);
    CHECK(out.y1 == forward(norm, p.rows, p.cols, stored, p.weight1, p.bias1, in.eps).y);
  }
}

TEST_CASE("kept elements are scaled by 1 / (1 - p), with p the float") {
  // 0.1f is 0.100000001490..., so 1 / (1 - p) is 1.7e-9 away from 1 / 0.9 - far more than the
  // rounding of a double.
  const Parts p(7, 33);
  for (const float dropout : {0.1f, 0.3f, 0.9f}) {
    const auto out = fused_forward(p.with(kDropout, Norm::Layer, dropout));
    CHECK(out.mask == mask_of(p, p.seeds, dropout));
    for (std::size_t i = 0; i < p.x.size(); ++i) {
      const double expected = out.mask[i] ? p.x[i] / (1 - double{dropout}) : 0;
      CHECK(std::abs(out.sum[i] - expected) <= 1e-15 * std::abs(expected));
    }
  }
}

TEST_CASE("an element is dropped where u equals p: the comparison is of floats, and strict") {
  const float u = triton_uniform(7, 0);
  const Values x{1};
  const Seeds seeds{7};
  FusedForwardInput in{.rows = 1, .cols = 1, .x = x, .dropout = u, .seeds = seeds};
  CHECK(fused_forward(in).mask == Mask{0});
  in.dropout = std::nextafter(u, 0.0f);
  CHECK(fused_forward(in).mask == Mask{1});
}

TEST_CASE("what is dropped is gone, NaN and infinity too, and no other row sees them") {
  const Parts clean(3, 64);
  Parts p = clean;
  const FusedForwardInput in = p.with(kDropout);
  const auto before = fused_forward(in);
  for (std::int64_t j = 0; j < 64; ++j) {
    if (!before.mask[64 + j]) p.x[64 + j] = j % 2 ? NAN : HUGE_VAL;
  }
  CHECK(fused_forward(in) == before);

  const auto kept = std::find(before.mask.begin() + 64, before.mask.end(), 1);
  p.x[kept - before.mask.begin()] = NAN;
  const auto out = fused_forward(in);
  for (std::int64_t i = 0; i < std::ssize(out.y); ++i) {
    if (i / 64 == 1) CHECK(std::isnan(out.y[i]));
    if (i / 64 != 1) CHECK(out.y[i] == before.y[i]);
  }
}

// ------------------------------------------------------------------------------------ masks

TEST_CASE("a mask keeps the fraction 1 - p, whole and in every row and column") {
  const Parts p(500, 2000);
  for (const float dropout : {0.0f, 0.1f, 0.5f, 0.9f}) {
    CAPTURE(dropout);
    const Mask mask = fused_forward(p.with(kDropout, Norm::Layer, dropout)).mask;
    const double kept = 1 - double{dropout};
    CHECK(std::abs(fraction_kept(mask) - kept) <= five_deviations(kept, mask.size()));

    std::vector<double> column(p.cols);
    for (std::int64_t row = 0; row < p.rows; ++row) {
      const auto mask_row = std::span(mask).subspan(row * p.cols, p.cols);
      CHECK(std::abs(fraction_kept(mask_row) - kept) <= five_deviations(kept, mask_row.size()));
      for (std::int64_t j = 0; j < p.cols; ++j) column[j] += mask_row[j];
    }
    for (const double sum : column) {
      const double fraction = sum / static_cast<double>(p.rows);
      CHECK(std::abs(fraction - kept) <= five_deviations(kept, p.rows));
    }
  }
}

TEST_CASE("masks of different seeds are independent, masks of one seed the same") {
  // Two independent masks agree in (1 - p)² + p² of the elements: both keep or both drop.
  constexpr std::int64_t kCols = 100000;
  Parts p(3, kCols);
  p.seeds = {1, 2, 1};
  p.seeds1 = {3, 2, 4};
  for (const float dropout : {0.1f, 0.5f}) {
    const double agree = (1 - double{dropout}) * (1 - double{dropout}) + double{dropout} * dropout;
    const auto independent = [&](std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
      return std::abs(fraction_equal(a, b) - agree) <= five_deviations(agree, a.size());
    };
    const auto out = fused_forward(p.with(kAll, Norm::Layer, dropout));
    const auto row = [](const Mask& mask, std::int64_t row) {
      return std::span(mask).subspan(row * kCols, kCols);
    };
    CHECK(independent(row(out.mask, 0), row(out.mask, 1)));
    CHECK(independent(row(out.mask1, 0), row(out.mask1, 2)));
    CHECK(independent(row(out.mask, 0), row(out.mask1, 0)));
    CHECK(fraction_equal(row(out.mask, 0), row(out.mask, 2)) == 1);   // seed 1, in another row
    CHECK(fraction_equal(row(out.mask, 1), row(out.mask1, 1)) == 1);  // seed 2, of another input
  }
}

TEST_CASE("the mask of x depends on seeds and p only, and that of x1 on seeds1 and p") {
  const Parts p(7, 33);
  const auto all = fused_forward(p.with(kAll));

  CHECK(fused_forward(p.with(kDropout, Norm::Rms)).mask == all.mask);

  FusedForwardInput other_seeds1 = p.with(kAll);
  other_seeds1.seeds1 = p.seeds;
  CHECK(fused_forward(other_seeds1).mask == all.mask);
  CHECK(fused_forward(other_seeds1).mask1 == all.mask);

  FusedForwardInput other_seeds = p.with(kAll);
  other_seeds.seeds = p.seeds1;
  CHECK(fused_forward(other_seeds).mask == all.mask1);
  CHECK(fused_forward(other_seeds).mask1 == all.mask1);
}

// ------------------------------------------------------------------------------- properties

TEST_CASE("no rows give empty outputs") {
  for (const Norm norm : kNorms) {
    const Parts p(0, 3);
    CHECK(fused_forward(p.with(kAll, norm)) == FusedForward{});
  }
}

TEST_CASE("chunks of rows give the results of the whole") {
  const Parts p(10, 33);
  for (const Norm norm : kNorms) {
    const FusedForwardInput whole = p.with(kAll, norm, 0.3f);
    FusedForward joined;
    for (std::int64_t first = 0; first < p.rows; first += 4) {
      const std::int64_t rows = std::min<std::int64_t>(4, p.rows - first);
      FusedForwardInput chunk = whole;
      chunk.rows = rows;
      for (auto* matrix : {&chunk.x, &chunk.x1, &chunk.residual}) {
        *matrix = matrix->subspan(first * p.cols, rows * p.cols);
      }
      chunk.rowscale = chunk.rowscale.subspan(first, rows);
      chunk.rowscale1 = chunk.rowscale1.subspan(first, rows);
      chunk.seeds = chunk.seeds.subspan(first, rows);
      chunk.seeds1 = chunk.seeds1.subspan(first, rows);
      const auto part = fused_forward(chunk);
      const auto append = [](auto& to, const auto& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      append(joined.y, part.y);
      append(joined.y1, part.y1);
      append(joined.sum, part.sum);
      append(joined.mean, part.mean);
      append(joined.rstd, part.rstd);
      append(joined.mask, part.mask);
      append(joined.mask1, part.mask1);
    }
    CHECK(joined == fused_forward(whole));
  }
}

TEST_CASE("any number of threads gives the same bits") {
  const Parts p(301, 17);
  for (const Norm norm : kNorms) {
    const auto in = p.with(kAll, norm, 0.3f);
    check_any_number_of_threads([&] { return fused_forward(in); });
    const auto saved = fused_forward(in);
    const auto back = p.backward_of(in, saved);
    check_any_number_of_threads([&] { return fused_backward(back); });
  }
}

// --------------------------------------------------------------------------------- backward

TEST_CASE("the fused backward gives the numbers worked out by hand") {
  // sum = [1 3]  mean 2  rstd 1/2  xhat = [-1/2 1/2], as in the forward case
  // w · dy + w1 · dy1 = [2 12] + [-4 -6] = [-2 6]  c1 = (1 + 3)/2 = 2  c2 = 2
  // dresidual = 1/2 [-2 + 1 - 2,  6 - 1 - 2] + dsum = [-3/2 3/2] + [1 2] = [-1/2 7/2]
  // dx = 2 · dresidual,  dx1 = 4 · dresidual
  const auto out = fused_backward({.rows = 1,
                                   .cols = 2,
                                   .dy = Values{1, 3},
                                   .dy1 = Values{2, -1},
                                   .dsum = Values{1, 2},
                                   .sum = Values{1, 3},
                                   .mean = Values{2},
                                   .rstd = Values{0.5},
                                   .weight = Values{2, 4},
                                   .weight1 = Values{-2, 6},
                                   .rowscale = Values{2},
                                   .rowscale1 = Values{4},
                                   .second_input = true});
  CHECK(out == FusedBackward{.dx = {-1, 7},
                             .dx1 = {-2, 14},
                             .dresidual = {-0.5, 3.5},
                             .dweight = {-0.5, 1.5},
                             .dbias = {1, 3},
                             .dweight1 = {-1, -0.5},
                             .dbias1 = {2, -1}});
}

TEST_CASE("forward and backward draw the same masks, and dx is 0 exactly where they dropped") {
  const Parts p(7, 100);
  for (const Norm norm : kNorms) {
    for (const float dropout : {0.1f, 0.5f, 0.9f}) {
      FusedForwardInput in = p.with(kAll, norm, dropout);
      const Values ones(p.rows, 1.0);  // a rowscale of 0 would hide the mask
      in.rowscale = in.rowscale1 = ones;
      const auto saved = fused_forward(in);
      auto back = p.backward_of(in, saved);
      const auto out = fused_backward(back);
      CHECK(out.mask == saved.mask);
      CHECK(out.mask1 == saved.mask1);
      for (std::size_t i = 0; i < p.x.size(); ++i) {
        CHECK((out.dx[i] != 0) == (saved.mask[i] == 1));
        CHECK((out.dx1[i] != 0) == (saved.mask1[i] == 1));
      }

      const Values no_numbers(p.x.size(), NAN);  // dropping is choosing, not multiplying by 0
      back.dsum = no_numbers;
      const auto lost = fused_backward(back);
      for (std::size_t i = 0; i < p.x.size(); ++i) {
        CHECK((lost.dx[i] == 0) == (saved.mask[i] == 0));
        CHECK(std::isnan(lost.dx[i]) == (saved.mask[i] == 1));
      }
    }
  }
}

// ------------------------------------------------------------------------ finite differences
//
// The loss is L = Σ dy · y + Σ dy1 · y1 + Σ dsum · sum, so that its gradients are what
// fused_backward returns. For one input value v,
//
//   dL/dv ≈ (L(v + h) - L(v - h)) / 2h
//
// with mean and rstd computed anew by forward on both sides. The masks follow from the seeds: they
// stay where they are while a value moves.
//
// The step for x. Let σ = 1/rstd = sqrt(var + eps): the length over which xhat bends. The error of
// the formula grows as (h/σ)², that of rounding as u σ/h, where u = 1.1e-16. Their sum is least
// near h = cbrt(u) σ = 5e-6 σ, and is then about u^(2/3) = 2e-11, relative to rstd · Σ |wdy|, the
// size of dx. Each row has its own σ, so each row gets its own step. The tests ask for 1e-7: room
// for constants, and for x - mean cancelling where σ is small beside x. A factor on the way into
// the sum stretches both. A lost c1 or c2 term is an error of about 1 on this scale.
//
// y is a straight line in w and in b: any step is exact, and h = 1 leaves only rounding.

double loss(const Parts& p, const FusedForwardInput& in) {
  const auto out = fused_forward(in);
  const auto product = [](const Values& a, const Values& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  return product(out.y, p.dy) + product(out.y1, p.dy1) +
         (in.residual.empty() ? 0.0 : product(out.sum, p.dsum));
}

// dL/dv by a central difference; `in` refers to v.
double loss_slope(const Parts& p, const FusedForwardInput& in, double& v, double step) {
  const double before = v, above = before + step, below = before - step;
  v = above;
  const double loss_above = loss(p, in);
  v = below;
  const double loss_below = loss(p, in);
  v = before;
  return (loss_above - loss_below) / (above - below);
}

void check_against_finite_differences(Parts& p, const FusedForwardInput& in) {
  const auto saved = fused_forward(in);
  const auto out = fused_backward(p.backward_of(in, saved));
  const double unit = std::numeric_limits<double>::epsilon() / 2;
  const double total = std::abs(loss(p, in)) + 1;
  for (std::int64_t row = 0; row < p.rows; ++row) {
    const double rstd = saved.rstd[row], step = std::cbrt(unit) / rstd;
    double terms = 0;  // that a dx of this row is made of
    for (std::int64_t i = row * p.cols; i < (row + 1) * p.cols; ++i) {
      const double w = in.weight.empty() ? 1 : in.weight[i % p.cols];
      const double w1 = in.weight1.empty() ? 1 : in.weight1[i % p.cols];
      terms += rstd * (std::abs(w * p.dy[i]) + std::abs(w1 * p.dy1[i])) + std::abs(p.dsum[i]);
    }
    // The whole loss is summed, so its rounding counts too, against a small step.
    const double tolerance = 1e-7 * terms + 64 * unit * total / step;
    constexpr double kLargestFactor = 10;  // a rowscale of up to 5/2, and 1 / (1 - 0.5)
    for (std::int64_t j = 0; j < p.cols; ++j) {
      CAPTURE(row);
      CAPTURE(j);
      const std::int64_t i = row * p.cols + j;
      const auto close = [&](double got, double& v) {
        CHECK(std::abs(got - loss_slope(p, in, v, step)) <= kLargestFactor * tolerance);
      };
      close(out.dx[i], p.x[i]);
      if (!in.x1.empty()) close(out.dx1[i], p.x1[i]);
      if (!in.residual.empty()) close(out.dresidual[i], p.residual[i]);
    }
  }
  for (std::int64_t j = 0; j < p.cols; ++j) {  // straight lines: any step is exact
    CAPTURE(j);
    const auto close = [&](double got, double& v) {
      CHECK(std::abs(got - loss_slope(p, in, v, 1.0)) <= 1e-12 * total * p.cols);
    };
    if (!in.weight.empty()) close(out.dweight[j], p.weight[j]);
    if (!in.bias.empty()) close(out.dbias[j], p.bias[j]);
    if (!in.weight1.empty()) close(out.dweight1[j], p.weight1[j]);
    if (!in.bias1.empty()) close(out.dbias1[j], p.bias1[j]);
  }
}

TEST_CASE("every gradient agrees with finite differences of the forward pass, masks fixed") {
  const Threads one(1);  // thousands of forwards of a few rows
  constexpr unsigned kBoth = kWeight | kBias;
  for (const Norm norm : kNorms) {
    for (const std::int64_t cols : {1, 2, 3, 17}) {
      for (const double eps : {1e-5, 0.5, 100.0}) {
        // Parameters alone, each part with them, then all parts, and all but these parameters.
        for (const unsigned parts : {0u, kWeight, kBias, kBoth, kBoth | kRowscale, kBoth | kDropout,
                                     kBoth | kX1, kBoth | kX1 | kRowscale1, kBoth | kX1 | kDropout1,
                                     kBoth | kResidual, kAll, kAll & ~kBoth}) {
          CAPTURE(static_cast<int>(norm));
          CAPTURE(cols);
          CAPTURE(eps);
          CAPTURE(parts);
          Parts p(4, cols);
          FusedForwardInput in = p.with(parts, norm);
          in.eps = eps;
          check_against_finite_differences(p, in);
        }
      }
    }
  }
}

TEST_CASE("backward: no rows, and chunks of rows") {
  for (const Norm norm : kNorms) {
    const Parts none(0, 3);
    const auto in_none = none.with(kAll, norm);
    const auto out_none = fused_backward(none.backward_of(in_none, fused_forward(in_none)));
    CHECK(out_none.dx.empty());
    CHECK(out_none.dweight == Values(3, 0.0));
    CHECK(out_none.dbias == Values(3, 0.0));

    const Parts p(301, 17);
    const auto in = p.with(kAll, norm, 0.3f);
    const auto saved = fused_forward(in);
    const auto back = p.backward_of(in, saved);
    const auto whole = fused_backward(back);
    auto chunk = back;
    chunk.rows = 101;
    for (auto* matrix : {&chunk.dy, &chunk.dy1, &chunk.dsum, &chunk.sum})
      *matrix = matrix->subspan(200 * 17);
    for (auto* column : {&chunk.rstd, &chunk.rowscale, &chunk.rowscale1})
      *column = column->subspan(200);
    if (norm == Norm::Layer) chunk.mean = chunk.mean.subspan(200);
    chunk.seeds = chunk.seeds.subspan(200);
    chunk.seeds1 = chunk.seeds1.subspan(200);
    const auto part = fused_backward(chunk);
    CHECK(part.dx == Values(whole.dx.begin() + 200 * 17, whole.dx.end()));
    CHECK(part.dx1 == Values(whole.dx1.begin() + 200 * 17, whole.dx1.end()));
    CHECK(part.mask1 == Mask(whole.mask1.begin() + 200 * 17, whole.mask1.end()));
  }
}

// -------------------------------------------------------------------------------- bad input

TEST_CASE("fused_backward names the argument that it cannot take") {
  const Parts p(2, 3);
  const Values four(4);
  const auto forward_in = p.with(kAll);
  const auto saved = fused_forward(forward_in);
  using In = FusedBackwardInput;
  const auto refuses = [&](const char* sentence, auto change) {
    In in = p.backward_of(forward_in, saved);
    change(in);
    CHECK_THROWS_WITH_AS(fused_backward(in), sentence, std::invalid_argument);
  };
  refuses("rows is -1, but it must be 0 or more.", [](In& in) { in.rows = -1; });
  refuses("cols is 0, but it must be 1 or more.", [](In& in) { in.cols = 0; });
  refuses("dy has 0 values, but it must have rows × cols = 6.", [](In& in) { in.dy = {}; });
  refuses("dy1 has 4 values, but it must have rows × cols = 6, or none.",
          [&](In& in) { in.dy1 = four; });
  refuses("dsum has 4 values, but it must have rows × cols = 6, or none.",
          [&](In& in) { in.dsum = four; });
  refuses("sum has 4 values, but it must have rows × cols = 6.", [&](In& in) { in.sum = four; });
  refuses("rowscale has 4 values, but it must have rows = 2, or none.",
          [&](In& in) { in.rowscale = four; });
  refuses("weight1 is given, but dy1 is not.", [](In& in) { in.dy1 = {}; });
  refuses("rowscale1 is given, but there is no second input.",
          [](In& in) { in.second_input = false; });
  refuses("seeds1 is given, but there is no second input.", [](In& in) {
    in.second_input = false;
    in.rowscale1 = {};
  });
  refuses("dropout is 1, but it must be at least 0 and below 1.", [](In& in) { in.dropout = 1; });
}

TEST_CASE("fused_forward names the argument that it cannot take, what it got and what it needs") {
  const Parts p(2, 3);
  const Values four(4);
  const Seeds four_seeds(4);
  using In = FusedForwardInput;
  const auto refuses = [&](const char* sentence, auto change) {
    In in = p.with(kAll);
    change(in);
    CHECK_THROWS_WITH_AS(fused_forward(in), sentence, std::invalid_argument);
  };
  refuses("rows is -1, but it must be 0 or more.", [](In& in) { in.rows = -1; });
  refuses("cols is 0, but it must be 1 or more.", [](In& in) { in.cols = 0; });
  refuses("rows is 4611686018427387904, but rows × cols with cols = 3 must fit in 63 bits.",
          [](In& in) { in.rows = std::int64_t{1} << 62; });
  refuses("rowscale has 2 values, but it must have rows = 3074457345618258602, or none.",
          [](In& in) { in.rows = 3074457345618258602; });  // times 3 it is the last that fits
  refuses("cols is 4294967297, but with dropout it must be 4294967296 or less.",
          [](In& in) { in.cols = 4294967297; });
  refuses("cols is 4294967297, but with dropout it must be 4294967296 or less.", [](In& in) {
    in.cols = 4294967297;
    in.seeds1 = {};  // one of the two is enough
  });
  refuses("x has 4 values, but it must have rows × cols = 6.", [&](In& in) { in.x = four; });
  refuses("x has 0 values, but it must have rows × cols = 6.", [](In& in) { in.x = {}; });
  refuses("rowscale has 4 values, but it must have rows = 2, or none.",
          [&](In& in) { in.rowscale = four; });
  refuses("seeds has 4 values, but it must have rows = 2, or none.",
          [&](In& in) { in.seeds = four_seeds; });
  refuses("x1 has 4 values, but it must have rows × cols = 6, or none.",
          [&](In& in) { in.x1 = four; });
  refuses("rowscale1 has 4 values, but it must have rows = 2, or none.",
          [&](In& in) { in.rowscale1 = four; });
  refuses("seeds1 has 4 values, but it must have rows = 2, or none.",
          [&](In& in) { in.seeds1 = four_seeds; });
  refuses("rowscale1 is given, but x1 is not.", [](In& in) { in.x1 = {}; });
  refuses("seeds1 is given, but x1 is not.", [](In& in) { in.x1 = in.rowscale1 = {}; });
  refuses("residual has 4 values, but it must have rows × cols = 6, or none.",
          [&](In& in) { in.residual = four; });
  refuses("weight has 4 values, but it must have cols = 3, or none.",
          [&](In& in) { in.weight = four; });
  refuses("bias has 4 values, but it must have cols = 3, or none.",
          [&](In& in) { in.bias = four; });
  refuses("weight1 has 4 values, but it must have cols = 3, or none.",
          [&](In& in) { in.weight1 = four; });
  refuses("bias1 has 4 values, but it must have cols = 3, or none.",
          [&](In& in) { in.bias1 = four; });
  refuses("eps is 0, but it must be a finite number above 0.", [](In& in) { in.eps = 0; });
  refuses("eps is nan, but it must be a finite number above 0.", [](In& in) { in.eps = NAN; });
  refuses("dropout is 1, but it must be at least 0 and below 1.", [](In& in) { in.dropout = 1; });
  refuses("dropout is -0.5, but it must be at least 0 and below 1.",
          [](In& in) { in.dropout = -0.5f; });
  refuses("dropout is nan, but it must be at least 0 and below 1.",
          [](In& in) { in.dropout = NAN; });
}
