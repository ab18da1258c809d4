#include "common/program/command_line.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <map>

namespace lnc {
namespace {

template <typename T>
CLI::Validator one_of(const char* what, const std::map<std::string, T>& values) {
  return {[what, values](std::string& input) -> std::string {
            const auto found = values.find(input);
            if (found != values.end()) {
              input = std::to_string(static_cast<int>(found->second));
              return {};
            }
            std::string known;
            for (const auto& [name, value] : values) known += (known.empty() ? "" : ", ") + name;
            return "there is no " + std::string(what) + " '" + input + "'; choose from " + known;
          },
          ""};
}

CLI::Validator number(const char* rule, bool (*valid)(double)) {
  return {[rule, valid](std::string& input) -> std::string {
            char* end = nullptr;
            const double value = std::strtod(input.c_str(), &end);
            if (end != input.c_str() && *end == '\0' && valid(value)) return {};
            return "must be " + std::string(rule) + ", not '" + input + "'";
          },
          ""};
}

CLI::Validator whole_number(std::int64_t low, std::int64_t high) {
  return {[low, high](std::string& input) -> std::string {
            std::int64_t value = 0;
            const char* const end = input.data() + input.size();
            const auto [stop, error] = std::from_chars(input.data(), end, value);
            if (error == std::errc{} && stop == end && value >= low && value <= high) return {};
            return "must be a whole number of at least " + std::to_string(low) + " and at most " +
                   std::to_string(high) + ", not '" + input + "'";
          },
          ""};
}

/// The problem sets of the benchmark. Each varies the shape and dtype of `like`.
std::vector<Problem> problem_set(const std::string& name, const Problem& like) {
  const auto with = [&like](DType dtype, std::int64_t rows, std::int64_t cols) {
    Problem problem = like;
    problem.dtype = dtype;
    problem.rows = rows;
    problem.cols = cols;
    return problem;
  };
  std::vector<Problem> problems;
  if (name == "progression") problems.push_back(with(DType::F32, 16 * 64, 2048));
  if (name == "sweep")
    for (int i = 2; i <= 31; ++i) problems.push_back(with(DType::F16, 4096, 512 * i));
  if (name == "large")
    for (const int cols : {1024, 2048, 4096, 8192})
      problems.push_back(with(DType::BF16, 131072, cols));
  if (name == "wide") {
    problems.push_back(with(DType::BF16, 8192, 4096));
    for (const std::int64_t cols : {4096, 16384, 65536, 262144}) {
      problems.push_back(with(DType::BF16, (std::int64_t{1} << 28) / cols, cols));
      problems.push_back(with(DType::F32, (std::int64_t{1} << 27) / cols, cols));
    }
  }
  if (name == "groups")
    for (int group = 1; group <= 512; group *= 2)
      for (Problem problem : {with(DType::F32, 1024, 2048), with(DType::BF16, 16384, 4096)}) {
        problem.group = group;
        problems.push_back(problem);
      }
  if (name == "fused")
    for (const int cols : {1024, 2048, 4096, 8192})
      for (const float dropout : {0.0f, 0.1f}) {
        Problem problem = with(DType::BF16, 131072, cols);
        problem.fusion.dropout = dropout;
        problem.fusion.residual = Residual::Same;
        problem.fusion.prenorm = true;
        problems.push_back(problem);
      }
  return problems;
}

}  // namespace

Options parse_options(int argc, char** argv) {
  Options options;
  Problem problem;
  std::vector<std::string> sets;
  bool no_affine = false, warm = false, parallel = false;
  double eps = problem.eps;

  CLI::App app{
      "Checks LayerNorm chapters against a double-precision CPU reference and times them.\n"
      "Exit status: 0 all checks passed, 1 a check or a launch failed, 2 the request was wrong."};
  app.get_formatter()->column_width(28);
  constexpr std::int64_t kMost = std::int64_t{1} << 53;
  auto* rows = app.add_option("--rows", problem.rows, "rows to normalise, M")
                   ->check(whole_number(0, kMost))
                   ->type_name("M")
                   ->capture_default_str()
                   ->group("Problem");
  auto* cols = app.add_option("--cols", problem.cols, "columns that each row is normalised over, N")
                   ->check(whole_number(1, kMost))
                   ->type_name("N")
                   ->capture_default_str()
                   ->group("Problem");
  auto* dtype = app.add_option("--dtype", problem.dtype,
                               "f32, f16 or bf16: the type of x, y, dy, dx, weight, bias")
                    ->transform(one_of<DType>(
                        "dtype", {{"f32", DType::F32}, {"f16", DType::F16}, {"bf16", DType::BF16}}))
                    ->type_name("TYPE")
                    ->default_str("f32")
                    ->group("Problem");
  app.add_option("--kind", problem.kind, "layer (mean and deviation) or rms (root mean square)")
      ->transform(one_of<Kind>("kind", {{"layer", Kind::Layer}, {"rms", Kind::Rms}}))
      ->type_name("KIND")
      ->default_str("layer")
      ->group("Problem");
  app.add_flag("--mixed", problem.mixed, "float weight and bias beside f16 or bf16 x")
      ->group("Problem");
  app.add_option("--offset", problem.offset, "mean of x, whose deviation is 1")
      ->check(number("a number that a float can hold",
                     [](double v) { return std::isfinite(static_cast<float>(v)); }))
      ->type_name("MEAN")
      ->capture_default_str()
      ->group("Problem");
  app.add_flag("--no-affine", no_affine, "without weight and bias")->group("Problem");
  app.add_option("--weight-scale", problem.weight_scale, "the weights are random about SCALE")
      ->check(number("a number that a float can hold",
                     [](double v) { return std::isfinite(static_cast<float>(v)); }))
      ->type_name("SCALE")
      ->capture_default_str()
      ->group("Problem");
  app.add_option("--eps", eps, "added to the variance")
      ->check(number("a number above 0 that a float can hold",
                     [](double v) {
                       return static_cast<float>(v) > 0 && std::isfinite(static_cast<float>(v));
                     }))
      ->type_name("EPS")
      ->capture_default_str()
      ->group("Problem");
  app.add_option("--seed", problem.seed, "of the random inputs")
      ->check(whole_number(0, kMost))
      ->type_name("SEED")
      ->capture_default_str()
      ->group("Problem");
  app.add_option(
         "--set", sets,
         "benchmark problem sets instead of one problem: progression (f32 1024x2048), "
         "sweep (f16, 4096 rows, 512*i columns for i = 2..31), large (bf16, 131072 rows, "
         "1024 to 8192 columns), wide (bf16 8192x4096, and 512 MiB of bf16 and of f32 in rows "
         "of 4096 to 262144 columns), fused (large with residual, prenorm and dropout 0 or "
         "0.1), groups (f32 1024x2048 and bf16 16384x4096 with --group 1, 2, 4, ... 512)")
      ->delimiter(',')
      ->check(CLI::Validator(
          [](std::string& input) {
            return problem_set(input, {}).empty()
                       ? "there is no set '" + input +
                             "'; choose from progression, sweep, large, wide, fused, groups"
                       : std::string();
          },
          ""))
      ->type_name("SET,...")
      ->excludes(rows)
      ->excludes(cols)
      ->excludes(dtype)
      ->group("Problem");
  app.add_option(
         "--group", problem.group,
         "rows a block, row groups or buffers, as the chapter's page says; 0: its own choice")
      ->check(whole_number(0, 1 << 20))
      ->type_name("G")
      ->capture_default_str()
      ->group("Problem");
  app.add_flag("--recompute-output", problem.recompute_output,
               "a backward pass that can writes y again, for recomputation")
      ->group("Problem");
  app.add_flag("--rowscale", problem.fusion.rowscale, "x (and x1) times a number for each row")
      ->group("Fused chapters");
  app.add_option("--dropout", problem.fusion.dropout,
                 "drop elements of x (and x1) with probability P, Philox by seed and column")
      ->check(number("at least 0 and below 1", [](double v) { return v >= 0 && v < 1; }))
      ->type_name("P")
      ->group("Fused chapters");
  app.add_flag("--parallel", parallel,
               "a second input x1, and a second output y1 with weight1, bias1")
      ->group("Fused chapters");
  app.add_option("--residual", problem.fusion.residual,
                 "add a residual of the type of x (same) or of float (f32)")
      ->transform(
          one_of<Residual>("residual type", {{"same", Residual::Same}, {"f32", Residual::F32}}))
      ->type_name("TYPE")
      ->group("Fused chapters");
  app.add_flag("--prenorm", problem.fusion.prenorm,
               "write the sum that is normalised, too; backward, take in its gradient")
      ->group("Fused chapters");
  app.add_option("--samples", options.sampling.samples, "timing samples at most; 0 only checks")
      ->check(whole_number(0, 1000000))
      ->type_name("COUNT")
      ->capture_default_str()
      ->group("Measuring");
  app.add_option("--budget-ms", options.sampling.budget_ms,
                 "time to spend on samples, each chapter")
      ->check(number("a number of at least 0", [](double v) { return v >= 0; }))
      ->type_name("MS")
      ->capture_default_str()
      ->group("Measuring");
  app.add_flag("--warm", warm, "leave L2 as the sample before left it")->group("Measuring");
  app.add_option("--json", options.json, "append the results to FILE, one JSON record a line")
      ->type_name("FILE")
      ->group("Output");
  app.add_option("--dump", options.dump,
                 "write inputs and outputs, dropout masks too, to DIR as .npy files, for NumPy")
      ->check(CLI::ExistingDirectory)
      ->type_name("DIR")
      ->group("Output");
  app.add_flag("--list", options.list, "list the chapters of this program and stop")
      ->group("Output");

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    std::exit(0);
  } catch (const CLI::ParseError& error) {
    std::cerr << error.what() << '\n';
    std::exit(2);
  }
  problem.eps = static_cast<float>(eps);
  problem.affine = !no_affine;
  problem.fusion.second_input = problem.fusion.second_affine = parallel;
  options.sampling.cold = !warm;
  problem.fusion.masks = options.dump && problem.fusion.dropout > 0.0f;
  for (const auto& set : sets)
    for (const auto& each : problem_set(set, problem)) options.problems.push_back(each);
  options.sweep = !sets.empty();
  if (sets.empty()) options.problems = {problem};
  return options;
}

}  // namespace lnc
