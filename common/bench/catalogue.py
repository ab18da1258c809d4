"""Re-exports common/results/chapters.py for what still imports it from here."""

import measurements  # noqa: F401, I001  puts the root on the path

from common.results.chapters import CATALOGUE, REMEDY, ROOT, dispatched, load_catalogue  # noqa: F401
