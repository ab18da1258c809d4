"""The chapters' stopwatch (common/harness/stopwatch.h), called from Python."""

import ctypes
import gc
from pathlib import Path

from common.results.peers import quantile

LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int)


class Clock:
    """Samples of one call each, in microseconds: events on the default stream, with a cold L2.

    `library`: liblnc.so, beside which the clock's own library of the same build is found.
    """

    def __init__(self, library):
        clock = Path(library).resolve().with_name("liblnc_clock.so")
        if not clock.exists():
            raise FileNotFoundError(f"the clock, {clock}, is not built; `make peers` builds it")
        self.library = ctypes.CDLL(str(clock))
        self.library.lnc_clock_error.restype = ctypes.c_char_p

    def samples(self, run, count, with_launch=False):
        """(count samples, whether they include the host's time although they should not)

        `with_launch`: they should. The host waits until L2 is cold, so that a sample has all that it does for a call.
        """
        raised = []

        def launch():
            try:
                run()
            except BaseException as error:  # an interrupt, too: C++ lies between it and the caller
                raised.append(error)
            return len(raised)

        samples, late = (ctypes.c_double * count)(), ctypes.c_int()
        collecting = gc.isenabled()
        gc.disable()
        try:
            failed = self.library.lnc_clock_samples(LAUNCH(launch), count, with_launch, samples,
                                                    ctypes.byref(late))
        finally:
            if collecting:
                gc.enable()
        if raised:
            raise raised[0]
        if failed:
            raise RuntimeError(self.library.lnc_clock_error().decode())
        return list(samples), bool(late)

    def median(self, run, count=80, with_launch=False):
        return quantile(self.samples(run, count, with_launch)[0], 0.5)
