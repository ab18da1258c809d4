"""What the programs say of themselves: the chapters, the library's kernels, the types, and which kernel the dispatch
chooses.

notebooks/data/chapters.json is what `chapters --list --json` and `library_kernels --list --json` printed; `make tables`
writes it anew.
Scripts read it here in place of the C++ source.
"""

import json

from measurements import CATALOGUE, ROOT, DataError, MissingData

REMEDY = "`make tables` writes it anew"


def load_catalogue(root=ROOT):
    """{"version", "chapters": [{"id", "file", "title", …}], "library": […], "types": […], "dispatch": […]}.

    Raises MissingData, or DataError where the file is no such list.
    """
    path = root / CATALOGUE
    try:
        catalogue = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingData(f"{path} is not there yet; {REMEDY}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path} ({error}); {REMEDY}") from error
    missing = [key for key in ("chapters", "library", "types", "dispatch")
               if not isinstance(catalogue, dict) or not isinstance(catalogue.get(key), list)]
    if missing:
        raise DataError(f"{path} has no list of {missing[0]}; {REMEDY}")
    return catalogue


def dispatched(catalogue):
    """The ids of the kernels that the dispatch chooses from, each once."""
    return list(dict.fromkeys(choice["chapter"] for choice in catalogue["dispatch"]))
