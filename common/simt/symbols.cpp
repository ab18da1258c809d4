#include "common/simt/symbols.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string_view>

#include "common/simt/machine.h"

namespace simt {
namespace {

bool is_of_a_library(std::string name) {
  if (name.starts_with("_ZZ")) name.erase(1, 1);  // of a function: "_ZZN4simt3runEvE5pools"
  constexpr std::string_view kStarts[] = {"_ZN4simt", "_ZN3lnc",     "_ZNSt",
                                          "_ZSt",     "_ZN9__gnu",   "_ZGV",
                                          "_ZT",      "_ZN7doctest", "_ZN5boost"};
  const bool is_cpp = name.starts_with("_Z");
  return std::any_of(std::begin(kStarts), std::end(kStarts),
                     [&](std::string_view start) { return name.starts_with(start); }) ||
         (!is_cpp && (name.starts_with("_") || name.find_first_of(".@") != std::string::npos)) ||
         name == "stdout" || name == "stderr" || name == "stdin" || name == "environ";
}

template <typename T>
std::span<const T> table(const std::vector<char>& file, std::size_t offset, std::size_t bytes) {
  if (offset + bytes > file.size()) return {};
  return {reinterpret_cast<const T*>(file.data() + offset), bytes / sizeof(T)};
}

std::vector<Variable> read() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&volume), &info) == 0) return {};
  std::ifstream stream(info.dli_fname, std::ios::binary);
  const std::vector<char> file(std::istreambuf_iterator<char>(stream), {});
  if (file.size() < sizeof(Elf64_Ehdr)) return {};
  const auto& header = table<Elf64_Ehdr>(file, 0, sizeof(Elf64_Ehdr))[0];
  const auto sections =
      table<Elf64_Shdr>(file, header.e_shoff, header.e_shnum * sizeof(Elf64_Shdr));
  std::vector<Variable> found;
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_type != SHT_SYMTAB) continue;
    const Elf64_Shdr& texts = sections[section.sh_link];
    for (const auto& symbol : table<Elf64_Sym>(file, section.sh_offset, section.sh_size)) {
      const auto type = ELF64_ST_TYPE(symbol.st_info);
      if ((type != STT_OBJECT && type != STT_TLS) || symbol.st_size == 0) continue;
      if (symbol.st_shndx >= sections.size()) continue;
      if ((sections[symbol.st_shndx].sh_flags & SHF_WRITE) == 0) continue;
      const char* const name = file.data() + texts.sh_offset + symbol.st_name;
      if (type == STT_OBJECT && is_of_a_library(name)) continue;
      if (std::string_view(name).find("B8constant") != std::string_view::npos) continue;
      const auto* const begin = static_cast<const std::byte*>(info.dli_fbase) + symbol.st_value;
      found.push_back({name, type == STT_TLS ? nullptr : begin, symbol.st_size,
                       type == STT_TLS ? symbol.st_value : 0});
    }
  }
  return found;
}

}  // namespace

const std::vector<Variable>& variables() {
  static const std::vector<Variable> known = read();
  return known;
}

std::size_t static_shared_bytes(const Launch& launch) {
  // "k[abi:kernel]<float>(float*)" has those of "k[abi:kernel]<float>(float*)::tile".
  static const std::map<std::string, std::size_t> of_functions = [] {
    std::map<std::string, std::size_t> sums;
    for (const Variable& each : variables()) {
      if (each.begin != nullptr || !each.name.starts_with("_ZZ")) continue;
      const std::string name = demangled(each.name);
      sums[name.substr(0, name.rfind("::"))] += each.bytes;
    }
    return sums;
  }();
  Dl_info info;
  if (launch.kernel != nullptr) {
    if (dladdr(launch.kernel, &info) == 0 || info.dli_saddr != launch.kernel) return 0;
    std::string name = demangled(info.dli_sname);
    if (name.starts_with("void ")) name.erase(0, 5);
    const auto found = of_functions.find(name);
    return found == of_functions.end() ? 0 : found->second;
  }
  if (launch.name == nullptr) return 0;
  std::string name = launch.name;  // "ns::k<3>": that of the template which has most
  name = name.substr(0, name.find('<'));
  if (const auto colon = name.rfind(':'); colon != std::string::npos) name.erase(0, colon + 1);
  name += "[abi:kernel]";
  std::size_t most = 0;
  for (const auto& [function, bytes] : of_functions) {
    const std::size_t at = function.find(name);
    if (at == 0 || (at != std::string::npos && function[at - 1] == ':'))
      most = std::max(most, bytes);
  }
  return most;
}

std::string demangled(const std::string& name) {
  if (!name.starts_with("_Z")) return name;  // __cxa_demangle takes "g" for a type's name
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? text.get() : name;
}

}  // namespace simt
