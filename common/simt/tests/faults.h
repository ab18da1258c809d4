// What tests ask of a fault's message.
#pragma once

#include <doctest/doctest.h>

#include <string>

#include "common/simt/machine.h"

namespace simt {

/// The message of the fault that `action` must raise.
template <typename Action>
std::string fault_of(Action action) {
  try {
    action();
  } catch (const Fault& fault) {
    return fault.what();
  }
  FAIL("no fault was found");
  return "";
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace simt
