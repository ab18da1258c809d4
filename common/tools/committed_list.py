#!/usr/bin/env python3
"""committed_list.py FILE: prints what `chapters --list --json` wrote to FILE, without the reader's own chapters.

`make tables` writes notebooks/data/chapters.json so: the repository's chapters, whoever runs it.
"""

import json
import sys
from pathlib import Path

from find_chapter import is_own


def committed(listed):
    return {**listed, "chapters": [chapter for chapter in listed["chapters"] if not is_own(chapter["id"])]}


if __name__ == "__main__":
    listed = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(json.dumps(committed(listed), indent=2, ensure_ascii=False))
