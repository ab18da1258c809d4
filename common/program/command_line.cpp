#include "common/program/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/harness/gpus.h"
#include "common/kernel/gpu.h"
#include "common/library/dispatch.h"

namespace lnc {
namespace {

/// The spelling of an option: --weight-scale for "weight_scale".
std::string spelt(std::string_view name) {
  std::string text = "--" + std::string(name);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

[[noreturn]] void refuse(const std::string& option, const std::string& why) {
  throw CLI::ValidationError(option, why);
}

/// Parses a text as a number; none unless the whole text is one.
template <typename V>
std::optional<double> parse_number(const std::string& text) {
  if constexpr (std::is_integral_v<V>) {
    std::int64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc{} || stop != end) return std::nullopt;
    return static_cast<double>(value);
  } else {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (end == text.c_str() || *end != '\0') return std::nullopt;
    return static_cast<float>(value);
  }
}

/// Parses a text as a number within a range. @throws CLI::ValidationError
template <typename V>
V number_within(const std::string& option, const Range& range, const std::string& text) {
  const std::optional<double> value = parse_number<V>(text);
  if (!value || !within(range, *value))
    refuse(option, "must be " + std::string(range.words) + ", not '" + text + "'");
  return static_cast<V>(*value);
}

/// Sets an option of the problem. @throws CLI::ValidationError
void set(const Option& option, const std::string& text) {
  std::visit(
      [&]<typename V>(V* field) {
        if constexpr (std::is_enum_v<V>) {
          if (set_by_name(field, text)) return;
          refuse(spelt(option.name), "there is no " + std::string(option.name) + " '" + text +
                                         "'; choose from " + list_of(names_of(field)));
        } else if constexpr (!std::is_same_v<V, bool>) {
          *field = number_within<V>(spelt(option.name), option.range, text);
        }
      },
      option.field);
}

std::string default_of(const Option& option) {
  return std::visit(
      [&]<typename V>(V* field) -> std::string {
        if constexpr (std::is_enum_v<V>) {
          return value_of(option).get<std::string>();
        } else {
          std::ostringstream text;
          text << *field;
          return text.str();
        }
      },
      option.field);
}

/// Adds an option of the problem to the command line.
CLI::Option* add(CLI::App& app, const Option& option) {
  const char* const group = option.fused ? "Fused chapters" : "Problem";
  if (bool* const* flag = std::get_if<bool*>(&option.field)) {
    bool* const field = *flag;
    if (!*field)
      return app.add_flag(spelt(option.name), *field, std::string(option.help))->group(group);
    return app
        .add_flag_callback(
            spelt("no_" + std::string(option.name)), [field] { *field = false; },
            "without " + std::string(option.help))
        ->group(group);
  }
  return app
      .add_option_function<std::string>(
          spelt(option.name), [option](const std::string& text) { set(option, text); },
          std::string(option.help))
      ->type_name(std::string(option.value))
      ->default_str(default_of(option))
      ->group(group);
}

/// What Chapter::group counts, as an option: --rows-per-block for "rows a block".
std::string option_of_group(std::string_view group) {
  std::string words(group);
  if (const auto at = words.find(" a "); at != std::string::npos) words.replace(at, 3, " per ");
  std::replace(words.begin(), words.end(), ' ', '-');
  return "--" + words;
}

/// Each meaning of Problem::group in this program, with the ids of the chapters that use it.
std::map<std::string_view, std::vector<std::string>> groups_of_chapters() {
  std::map<std::string_view, std::vector<std::string>> groups;
  for (const Chapter& chapter : chapters())
    if (!chapter.group.empty()) groups[chapter.group].emplace_back(chapter.id);
  return groups;
}

/// Adds an option for each meaning that Problem::group has in this program; a command may use at
/// most one of them. Parsing sets `asked` to the meaning of the option that was given.
void add_groups(CLI::App& app, const Option& option, std::string_view& asked) {
  std::vector<CLI::Option*> added;
  for (const auto& [group, takers] : groups_of_chapters()) {
    const std::string name = option_of_group(group);
    const std::string of_whom = chapters().size() > 1 ? " of " + list_of(takers) : "";
    const auto take = [name, option, group = group, &asked](const std::string& text) {
      *std::get<int*>(option.field) = number_within<int>(name, option.range, text);
      asked = group;
    };
    CLI::Option* const own =
        app.add_option_function<std::string>(
               name, take, std::string(group) + of_whom + "; 0: the chapter's own choice")
            ->type_name(std::string(option.value))
            ->default_str(default_of(option))
            ->group("Problem");
    for (CLI::Option* const other : added) own->excludes(other);
    added.push_back(own);
  }
}

/// Why a word of the command line is unknown, and which options there are instead.
std::string unknown(const std::string& word) {
  std::vector<std::string> own;
  for (const auto& [group, takers] : groups_of_chapters()) own.push_back(option_of_group(group));
  const bool one = chapters().size() == 1;
  std::string text = one ? std::string(chapters().front().id) + " does not take "
                         : std::string("no chapter takes ");
  text += word;
  if (!own.empty() && one) text += "; its own option is " + list_of(own);
  if (!own.empty() && !one) text += "; options of some chapters are " + list_of(own);
  return text + (own.empty() ? "; --help lists its options" : ", and --help lists all");
}

/// Adds a number that is not an option of a problem.
template <typename V>
CLI::Option* add_number(CLI::App& app, const char* name, V& to, Range range, const char* help) {
  return app
      .add_option_function<std::string>(
          name,
          [name, &to, range](const std::string& text) { to = number_within<V>(name, range, text); },
          help)
      ->default_str(CLI::detail::to_string(to))
      ->group("Measuring");
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw RequestError("cannot read '" + path + "': is it a file with problem sets?");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The requested sets, in the requested order.
std::vector<ProblemSet> choose_sets(const std::vector<std::string>& asked,
                                    std::vector<ProblemSet> known) {
  std::vector<ProblemSet> chosen;
  for (const std::string& name : asked) {
    const auto set = std::find_if(known.begin(), known.end(),
                                  [&](const ProblemSet& each) { return each.name == name; });
    if (set == known.end()) {
      std::vector<std::string> names;
      for (const ProblemSet& each : known) names.push_back(each.name);
      throw RequestError("--set: there is no set '" + name + "'; choose from " + list_of(names));
    }
    chosen.push_back(*set);
  }
  return chosen;
}

/// A program's default problem: the same number of elements for every chapter, and all GPUs.
Problem usual_problem() {
  Problem problem;
  if (chapters().size() > 1) return problem;
  const std::int64_t elements = problem.rows * problem.cols;
  problem.cols = chapters().front().usual_cols;
  if (chapters().front().split != Split::None) problem.gpus = usual_gpus();
  problem.rows = elements / problem.cols;
  return problem;
}

}  // namespace

CommandLine parse_command_line(int argc, char** argv) {
  CommandLine line;
  Problem problem = usual_problem();
  std::vector<std::string> sets;
  std::optional<std::string> set_file;
  bool warm = false;
  bool parallel = false;

  CLI::App app{
      "Checks LayerNorm kernels against a double-precision CPU reference and times them.\n"
      "Exit status: 0 all checks passed, 1 a check or a launch failed, 2 the request was wrong."};
  app.get_formatter()->column_width(28);
  app.set_version_flag("--version", "layernorm_chapters " LNC_VERSION);
  std::vector<CLI::Option*> shape;
  for (const Option& option : options(problem)) {
    if (option.name == "group") {
      add_groups(app, option, line.group);
      continue;
    }
    CLI::Option* const added = add(app, option);
    if (option.name == "rows" || option.name == "cols" || option.name == "dtype")
      shape.push_back(added);
  }
  app.add_flag("--parallel", parallel, "both --second-input and --second-affine")
      ->group("Fused chapters");
  std::vector<std::string> set_names;
  for (const ProblemSet& set : parse_problem_sets(built_in_problem_sets(), "problem_sets.json", {}))
    set_names.push_back(set.name);
  auto* const set = app.add_option("--set", sets,
                                   "problem sets of the benchmark, with one line per result: " +
                                       list_of(set_names))
                        ->delimiter(',')
                        ->type_name("SET,...")
                        ->group("Sets");
  app.add_option("--set-file", set_file,
                 "read the sets from FILE, in the form of common/harness/problem_sets.json")
      ->type_name("FILE")
      ->needs(set)
      ->group("Sets");
  for (CLI::Option* const option : shape) set->excludes(option);
  add_number(app, "--samples", line.sampling.samples,
             {0, 1000000, "a whole number of at least 0 and at most 1000000"},
             "the most timing samples to take; 0 only checks")
      ->type_name("COUNT");
  add_number(app, "--budget-ms", line.sampling.budget_ms,
             {0, HUGE_VAL, "a number of at least 0", false, true},
             "time to spend on the samples of each chapter")
      ->type_name("MS");
  app.add_flag("--warm", warm, "leave L2 as the previous sample left it")->group("Measuring");
  app.add_option("--json", line.json, "append the results to FILE, one JSON record per line")
      ->type_name("FILE")
      ->group("Output");
  app.add_option("--dump", line.dump,
                 "write inputs and outputs, and dropout masks, to DIR as .npy files for NumPy")
      ->check(CLI::ExistingDirectory)
      ->type_name("DIR")
      ->group("Output");
  app.add_flag(
         "--list", line.list,
         "list this program's kernels and stop; the program of the library's kernels also prints "
         "which one the dispatch chooses for the problem, and why. With --json: kernels, types and "
         "the dispatch's table, as JSON")
      ->group("Output");

  // --json takes no file after --list.
  const bool asks_for_list = std::any_of(
      argv, argv + argc, [](const char* word) { return std::string_view(word) == "--list"; });
  if (asks_for_list) app.get_option("--json")->expected(0, 1);
  try {
    app.parse(argc, argv);
    line.list_json = line.list && app.count("--json") > 0;
    if (parallel) problem.fusion.second_input = problem.fusion.second_affine = true;
    line.sampling.cold = !warm;
    problem.fusion.masks = line.dump && problem.fusion.dropout > 0.0f;
    line.sweep = !sets.empty();
    if (sets.empty())
      line.sets = {{"", "", {problem}}};
    else
      line.sets = choose_sets(
          sets, set_file
                    ? parse_problem_sets(text_of(*set_file), *set_file, problem)
                    : parse_problem_sets(built_in_problem_sets(), "problem_sets.json", problem));
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    std::exit(0);
  } catch (const CLI::CallForVersion& version) {
    std::cout << version.what() << '\n';
    std::exit(0);
  } catch (const CLI::ExtrasError&) {
    std::cerr << unknown(app.remaining().front()) << '\n';
    std::exit(2);
  } catch (const std::exception& error) {  // CLI::ParseError or RequestError
    std::cerr << error.what() << '\n';
    std::exit(2);
  }
  return line;
}

std::string refusal_of_group(const CommandLine& line, const Chapter& chapter) {
  if (line.group.empty() || line.group == chapter.group) return "";
  const std::string asked = option_of_group(line.group);
  const std::string id(chapter.id);
  if (chapter.group.empty()) return id + " does not take " + asked;
  return id + " takes " + option_of_group(chapter.group) + ", not " + asked;
}

namespace {

/// "; the library has a kernel for it: make run LIB=fwd_ring", for a problem that a chapter does
/// not take.
std::string other_kernel(const Chapter& chapter, const Problem& problem) {
  if (chapter.in_library() || chapter.direction() == Direction::Copy ||
      refusal(chapter, problem).empty())
    return "";
  const std::string_view id = kernel_for({.direction = chapter.direction(),
                                          .problem = problem,
                                          .from_y = chapter.from_y,
                                          .gpu = current_gpu()});
  constexpr std::string_view kLibrary = "lib_";
  if (!id.starts_with(kLibrary)) return "";
  return "; the library has a kernel for it: make run LIB=" +
         std::string(id.substr(kLibrary.size()));
}

}  // namespace

std::string in_words(const Refusal& refusal, const Chapter& chapter, const Problem& given) {
  const std::string other = other_kernel(chapter, given);
  if (refusal.option.empty()) return refusal.sentence + other;
  Problem problem = given;
  std::string option = spelt(refusal.option);
  const nlohmann::ordered_json unusual = to_json(problem)["options"];
  for (const Option& each : options(problem)) {
    const std::string name(each.name);
    if (refusal.option == "fusion" && each.fused && unusual.contains(name)) option = spelt(name);
    if (refusal.option == name && std::holds_alternative<bool*>(each.field) &&
        !*std::get<bool*>(each.field))
      option = spelt("no_" + name);
  }
  return refusal.sentence + " (" + option + ")" + other;
}

}  // namespace lnc
