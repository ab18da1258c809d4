#include "common/simt/places.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>

#include "common/simt/block.h"
#include "common/simt/symbols.h"
#include "common/simt/words.h"

namespace simt {
namespace {

// ": while (*flag == 0) {}", or nothing.
std::string text_of(const std::string& file, unsigned long line) {
  std::ifstream source(file);
  std::string text;
  for (unsigned long i = 0; i < line; ++i)
    if (!std::getline(source, text)) return "";
  const std::size_t first = text.find_first_not_of(" \t");
  return first == std::string::npos ? "" : ": " + text.substr(first);
}

// What addr2line says: "file:line" of the place and of each call around it that was inlined.
std::string asked(Place place) {
  Dl_info info;
  if (dladdr(place, &info) == 0) return "";
  const auto offset =
      static_cast<const char*>(place) - static_cast<const char*>(info.dli_fbase) - 1;
  std::ostringstream command;
  command << "addr2line -i -e '" << info.dli_fname << "' 0x" << std::hex << offset
          << " 2>/dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.str().c_str(), "r"), pclose);
  std::string lines;
  char part[512];
  while (pipe && std::fgets(part, sizeof part, pipe.get()) != nullptr) lines += part;
  return lines;
}

bool is_of_a_kernel(const std::string& file) {
  const auto has = [&](const char* part) { return file.find(part) != std::string::npos; };
  return !file.starts_with("??") && !file.starts_with("/usr/") && !has("/site-packages/") &&
         (!has("common/simt/") || has("common/simt/tests/"));
}

}  // namespace

std::string line_at(const std::source_location& where) {
  return to_string(where) + text_of(where.file_name(), where.line());
}

std::string line_at(Place place) {
  static std::mutex mutex;
  static std::map<Place, std::string> known;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(place); found != known.end()) return found->second;
  std::istringstream lines(asked(place));
  std::string answer;
  for (std::string line; answer.empty() && std::getline(lines, line);) {
    const std::size_t colon = line.rfind(':');
    if (colon == std::string::npos) continue;
    const std::string file = line.substr(0, colon);
    const unsigned long number = std::strtoul(line.c_str() + colon + 1, nullptr, 10);
    if (is_of_a_kernel(file) && number > 0)
      answer = in_repository(file) + ":" + std::to_string(number) + text_of(file, number);
  }
  return known[place] = answer;
}

std::string memory_at(const void* address) {
  const auto* const p = static_cast<const std::byte*>(address);
  if (const DeviceBuffer* const buffer = device_buffer_of(p))
    return "byte " + std::to_string(p - buffer->begin) + " of a buffer of " +
           std::to_string(buffer->bytes) + " bytes";
  if (current_block != nullptr && current_block->shared().holds(p)) return "shared memory";
  Dl_info info;
  if (dladdr(address, &info) != 0 && info.dli_sname != nullptr)
    return "`" + demangled(info.dli_sname) + "`";
  std::ostringstream out;
  out << "the address " << address;
  return out.str();
}

}  // namespace simt
