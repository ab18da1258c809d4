#!/usr/bin/env python3
"""committed_list.py CHAPTERS LIBRARY: joins what `chapters --list --json` and `library_kernels --list --json` wrote to
these files, and prints it without the reader's own chapters.

`make tables` writes notebooks/data/chapters.json so: the repository's kernels, whoever runs it.
"""

import json
import sys
from pathlib import Path

from common.tools.find_chapter import is_own


def committed(listed, of_library):
    return {**listed, "chapters": [chapter for chapter in listed["chapters"] if not is_own(chapter["id"])],
            "library": of_library["library"]}


if __name__ == "__main__":
    lists = (json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:])
    print(json.dumps(committed(*lists), indent=2, ensure_ascii=False))
