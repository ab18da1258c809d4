// The orders of threads and blocks that tests go through.
#pragma once

#include <vector>

#include "common/simt/machine.h"

namespace simt {

inline const std::vector<Schedule> kSchedules = {
    {Order::Forward}, {Order::Reverse}, {Order::Random, 1}, {Order::Random, 2}, {Order::Random, 3}};

/// Sets the schedule of the launches to come, until the end of the scope.
class Under {
 public:
  explicit Under(Schedule schedule) : before_(simt::schedule()) { set_schedule(schedule); }
  ~Under() { set_schedule(before_); }
  Under(const Under&) = delete;
  Under& operator=(const Under&) = delete;

 private:
  Schedule before_;
};

}  // namespace simt
