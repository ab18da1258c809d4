// The number of threads in tests of the reference.
#pragma once

#include <doctest/doctest.h>
#include <omp.h>

/// Runs what comes in this scope in so many threads.
class Threads {
 public:
  explicit Threads(int count) { omp_set_num_threads(count); }
  ~Threads() { omp_set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_ = omp_get_max_threads();
};

/// `call()` gives the same bits in any number of threads.
template <typename Call>
void check_any_number_of_threads(const Call& call) {
  const Threads one(1);
  const auto expected = call();
  for (const int count : {2, 3, 7}) {
    CAPTURE(count);
    const Threads threads(count);
    CHECK(call() == expected);
  }
}
