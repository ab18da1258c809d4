// A launch that must fail, for the test of its error message.
#include "common/kernel/launch.h"

template <typename T>
__global__ void does_nothing(T) {}

void launch_too_many_threads() { lnc::launch(does_nothing<int>, {3, 2000}, 1); }
