"""The laws of the search on many simulated candidates, whose culprits are known: how the searches
of each family end.

    python -m benchmarks.laws [--count 2000] [--seeds 0,1,2] [--families flaky,rounding] [--jobs 2]

Exit 1 if a finding is wrong, or more than 2 % of a family are unresolved. *Unseen*: a candidate
that fails by chance, no run of which failed; in brackets, how many are to be expected of so many
runs.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from benchmarks.report import table
from fixtures.scenarios import FAMILIES, Tally, tally

STRIDE = 100_000  # between the scenarios of two seeds
UNRESOLVED = 0.02


def measured(count: int, case: tuple[str, int]) -> Tally:
    """The searches of a family with a seed."""
    family, seed = case
    return tally(family, range(seed * STRIDE, seed * STRIDE + count))


def row(family: str, found: list[Tally]) -> list[str]:
    """A family: its figures for each seed, by comma."""
    marks = [
        ", ".join(str(t.ended[how]) for t in found)
        for how in ("right", "incomplete", "unresolved", "wrong")
    ]
    luck = sum(t.luck for t in found)
    unseen = (
        ", ".join(str(t.ended["unseen"]) for t in found) + f" ({luck / len(found):.1f})"
        if luck
        else ""
    )
    return [
        family,
        *marks,
        unseen,
        f"{sum(t.runs for t in found) / sum(t.count for t in found):.1f}",
    ]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.laws", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--count", type=int, default=2000, help="scenarios of a family and seed")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args(arguments)
    seeds = list(map(int, asked.seeds.split(",")))
    families = asked.families.split(",")
    with ProcessPoolExecutor(asked.jobs) as pool:
        found = list(
            pool.map(partial(measured, asked.count), [(f, s) for f in families for s in seeds])
        )
    of_family = {f: found[k * len(seeds) : (k + 1) * len(seeds)] for k, f in enumerate(families)}
    head = ["family", "right", "incomplete", "unresolved", "wrong", "unseen (expected)", "runs"]
    print(table(head, [row(family, tallies) for family, tallies in of_family.items()]), flush=True)
    for family, tallies in of_family.items():
        if wrong := [seed for t in tallies for seed in t.wrong]:
            print(f"wrong: {family} {wrong}")
    return int(any(t.wrong or t.ended["unresolved"] > UNRESOLVED * t.count for t in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
