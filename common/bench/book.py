"""Re-exports common/results/device.py, by its former names, for what still imports it from here."""

import measurements  # noqa: F401, I001  puts the root on the path

from common.results.chapters import CATALOGUE, OWN, Chapter, load_catalogue  # noqa: F401
from common.results.device import *  # noqa: F403
from common.results.device import DeviceResults as Book  # noqa: F401
from common.results.device import choose_results as choose_book  # noqa: F401
from common.results.device import make_results as make_book  # noqa: F401
from common.results.device import open_results as open_book  # noqa: F401
