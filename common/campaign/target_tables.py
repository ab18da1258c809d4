#!/usr/bin/env python3
"""Writes the tables of targets.md, or with --check says where they disagree with the data. `make tables` runs it."""

import sys

from common.campaign import targets
from common.results import tables
from common.results.peer_tables import WIDTHS_COMMAND
from common.results.rendering import table


@table("targets", WIDTHS_COMMAND)
def target_rows(results):
    """this project's targets: which are met, and where not"""
    records = results.with_widths().peers.records
    found = targets.standings(records)
    rows = [(target, target.bound, *targets.target_row(target, found)) for target in targets.targets()]
    measured = any(worst != "not measured" for *_, worst in rows)
    return {"rows": rows, "records": targets.judged_records(records, found)} if measured else None


@table("misses")
def misses(results):
    """what misses them, region by region"""
    found = targets.region_rows(targets.standings(results.with_widths().peers.records))
    return {"rows": [(region if at == 0 or found[at - 1][0] != region else "", target, target.bound, *more)
                     for at, (region, target, *more) in enumerate(found)]}


def main(argv):
    return tables.main(argv, texts_of=lambda root: [root / "common/campaign/targets.md"], figures_of=lambda results: ())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
