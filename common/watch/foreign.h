// The watcher of a program from elsewhere, whose launches call it (common/simt/foreign.h).
#pragma once

namespace lnc {

/// Starts watching, once, if the environment asks for it.
void watch_foreign();

}  // namespace lnc
