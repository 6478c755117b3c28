"""What it costs to choose settings in closed form, and how close choices come to hindsight.

python -m benchmarks.choices costs [--quick]
FEDGRAM_DATA=... python -m benchmarks.choices table [--source FILE] [--clients 100]
    [--dirichlet 0.1] [--partition dirichlet] [--seeds 0 1 2] [--width 0] [--equal-sizes]

`costs` prints ratios to one solve measured in the same run. `table` shows, for every method with
something to choose, the test accuracy (client mean, in %) of what is chosen on samples left out,
and in brackets that of the one setting that is best over all seeds in hindsight, which nobody could
have known.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product

import numpy as np

from fedgram import Features, Labels, Lift, Plan, Samples, Site, Space, Statistics, load, sites
from fedgram.candidates import CANDIDATES
from fedgram.gcv import RIDGES, SLACK, best_ridge
from fedgram.heads import Linear
from fedgram.loo import ALPHAS, BALANCES, STRENGTHS, Own, right
from fedgram.priors import TEMPERATURES, class_counts, counts_of, left_out_log_odds, log_odds
from fedgram.solve import Factor
from fedgram.whole import Whole

UNIT = 6 / 127
THIRTY = np.geomspace(1, 1e4, 30)
Setting = tuple[float | None, ...]  # alpha, intercept, refinement ridge, balance, temperature


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["costs", "table"])
    parser.add_argument("--quick", action="store_true", help="small sizes, to try the script")
    parser.add_argument("--source", default="cifar100_efficientnet_lite0.npz")
    parser.add_argument("--partition", default="dirichlet")
    parser.add_argument("--clients", type=int, nargs="*", default=[100])
    parser.add_argument("--dirichlet", type=float, nargs="*", default=[0.1])
    parser.add_argument("--equal-sizes", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--width", type=int, default=0, help="of a ReLU lift of the shared head")
    arguments = parser.parse_args()
    if arguments.what == "costs":
        for line in costs(quick=arguments.quick):
            print(line, flush=True)
        return
    data = load(arguments.source)
    for clients, dirichlet in product(arguments.clients, arguments.dirichlet):
        found = []
        for seed in arguments.seeds:
            plan = Plan(
                clients=None if arguments.partition in ("domain", "given") else clients,
                partition=arguments.partition,
                dirichlet=dirichlet,
                equal_sizes=arguments.equal_sizes,
                split="within-client",
                seed=seed,
            )
            found.append(judged(sites(data, plan).members, Lift(width=arguments.width)))
        report(f"{arguments.partition} {dirichlet:g}, {clients} clients", found)


# What it costs


def costs(*, quick: bool) -> Iterator[str]:
    width, classes, repeats = (128, 10, 3) if quick else (2048, 100, 3)
    total = made(width, classes, 4 * width)
    solve = best(lambda: total.solve(100.0), repeats)
    choose = best(lambda: best_ridge(total), repeats)
    yield f"the best of {len(RIDGES)} ridges, d = {width}: {choose / solve:.1f} solves (goal <= 12)"
    samples, count = 60 if quick else 450, 2_000 if quick else 20_000
    width = 128 if quick else 1280
    own = rows_of(width, classes, samples, seed=1)
    whole = Whole(total=made(width, classes, count), ridge=100.0)
    head, _ = whole.linear(Lift()), whole.factor
    unit = whole.total.space.unit

    def heavier() -> None:
        scores = Own.of(own, whole, Lift(), counted=True).reweighed()
        for alpha in THIRTY:
            right(scores(alpha), own.labels.codes)

    def streams(shared: Whole | Linear) -> Callable[[], None]:
        def leave_out() -> None:
            # Nobody but a client that leaves samples out needs the total's factor: it counts.
            fresh = Whole(total=shared.total, ridge=100.0) if shared is whole else shared
            mine = Own.of(own, fresh, Lift(), counted=True)
            refined = mine.refined(own.features.values.astype(np.float64))
            for ridge in STRENGTHS[1:6]:
                second = refined(ridge / unit**2)
                for balance in BALANCES[::2]:
                    right(mine.shared() + balance * second, own.labels.codes)

        return leave_out

    once = best(lambda: whole.reweighed(own, Lift(), 10.0), repeats)
    told = f"of 30 settings, {samples} samples, d = {width}, {classes} classes"
    yield (
        f"fedhip, samples left out {told}: {best(heavier, repeats) / once:.1f} personal solves "
        "(goal <= 10)"
    )
    once = best(lambda: head.refined(own, ridge=300.0, lift=Lift()), repeats)
    for name, shared in (("total and its factor", whole), ("head alone", head)):
        ratio = best(streams(shared), repeats) / once
        yield f"apfl, samples left out {told}, {name}: {ratio:.1f} personal solves (goal <= 10)"


def best(work: Callable[[], object], repeats: int) -> float:
    """Return the least processor time: solves run on one thread, and others may use the machine."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def rows_of(width: int, classes: int, count: int, seed: int) -> Samples:
    rng = np.random.default_rng(seed)
    space = Space(width=width + 1, unit=UNIT, bound=127)
    centres = np.random.default_rng(9).normal(0, 8, (classes, width))
    codes = rng.integers(0, classes, count)
    values = np.clip(np.rint(centres[codes] + rng.normal(0, 21, (count, width))), -127, 127)
    values = np.hstack([values, np.full((count, 1), 21)]).astype(np.int8)
    names = tuple(str(c) for c in range(classes))
    return Samples(Features(values, space), Labels(codes, names))


def made(width: int, classes: int, count: int) -> Statistics:
    rows = rows_of(width, classes, count, seed=0)
    return Statistics.of(rows.features, rows.labels)


# What it reaches


def judged(members: list, lift: Lift) -> dict:
    """Return the test accuracy of what is chosen and of all it is chosen from, by method."""
    total = Statistics.zero()
    for site in members:
        total = total + Statistics.of(lift(site.train.features), site.train.labels)
    whole, heavier = (
        Whole(total=total, ridge=best_ridge(total, slack=slack)) for slack in (SLACK, 0.0)
    )
    ridges = sorted({whole.ridge, *RIDGES[4:26:2]})
    heads = [Linear.of(total, ridge=ridge, lift=lift) for ridge in ridges]
    by_ridge = np.mean(
        [
            [right(head(site.test.features), site.test.labels.codes).mean() for head in heads]
            for site in members
            if len(site.test)
        ],
        axis=0,
    )
    found = {"afl (ridge)": told(dict(zip(ridges, by_ridge, strict=True)), whole.ridge)}
    grids = {name: grid for name, grid in methods().items() if name != "fedhip"}
    found |= compared(members, whole, lift, grids)
    return found | compared(members, heavier, lift, {"fedhip": methods()["fedhip"]})


def compared(members: list, whole: Whole, lift: Lift, grids: dict[str, list[Setting]]) -> dict:
    """Return the same for methods that choose on samples left out."""
    grid = list(dict.fromkeys(setting for tried in grids.values() for setting in tried))
    left_out, tested = np.zeros(len(grid)), []
    for site in members:
        before, after = hits(site, whole, lift, grid)
        left_out += before.sum(axis=0)
        if len(site.test):
            tested.append(after.mean(axis=0))
    counted = dict(zip(grid, left_out, strict=True))
    accuracy = dict(zip(grid, np.mean(tested, axis=0), strict=True))
    found = {}
    for name, tried in grids.items():
        chosen = max(tried, key=counted.__getitem__)  # the first of equal ones
        found[name] = told({setting: accuracy[setting] for setting in tried}, chosen)
    return found


def told(tried: dict, chosen: object) -> dict:
    """Return what a method reached with its choice, and with everything it chose among."""
    percent = {str(setting): 100 * float(share) for setting, share in tried.items()}
    return {"chosen": percent[str(chosen)], "setting": str(chosen), "tried": percent}


def methods() -> dict[str, list[Setting]]:
    """Return the settings that each method chooses among, in its order."""
    names = ("alpha", "intercept", "refinement_ridge", "balance", "temperature")
    return {
        "prior": [(None, None, None, None, t) for t in TEMPERATURES],
        "closed-ditto": [(None, None, s, 1.0, None) for s in STRENGTHS],
        "apfl": [(None, None, s, b, None) for s in STRENGTHS for b in BALANCES],
        "auto": [tuple(candidate.get(name) for name in names) for candidate in CANDIDATES],
        "fedhip": [(a, None, None, None, None) for a in ALPHAS],
    }


def hits(site: Site, whole: Whole, lift: Lift, grid: list[Setting]) -> list[np.ndarray]:
    """Return which samples each setting gets right: own ones left out, and test samples."""
    parts, everybody = (site.train, site.test), class_counts(whole.total)[0]
    counts = counts_of(site.train.labels)
    odds = (
        left_out_log_odds(parts[0].labels.codes, counts, everybody, 1.0, counted=True),
        log_odds(counts, everybody, 1.0),
    )
    cores: dict[tuple, tuple] = {}
    core = scorer(site, whole, lift)
    found = [np.empty((len(part), len(grid)), bool) for part in parts]
    for place, (*which, temperature) in enumerate(grid):
        if tuple(which) not in cores:
            cores[tuple(which)] = core(*which)
        for k, (scores, part) in enumerate(zip(cores[tuple(which)], parts, strict=True)):
            shifted = scores if temperature is None else scores + odds[k] / temperature
            found[k][:, place] = right(shifted, part.labels.codes)
    return found


def scorer(site: Site, whole: Whole, lift: Lift) -> Callable[..., tuple]:
    """Return a function from settings to scores: of own samples left out, and of test samples."""
    own = Own.of(site.train, whole, lift, counted=True)
    rows, new = (s.features.values.astype(np.float64) for s in (site.train, site.test))
    squared = site.train.features.space.unit**2
    refined, reweighed = cache(lambda: own.refined(rows)), cache(own.reweighed)
    constant = own.refined(np.ones((len(rows), 1)))
    shared, white = whole.rows(site.test, lift), own.white
    near = whole.factor.whitened(shared)
    shared = shared @ whole.head
    second = cache(lambda: solver(rows, own.residual))
    heavier = cache(lambda: solver(white, own.residual))
    streams: dict[float, tuple] = {}

    def scores(alpha, intercept, ridge, balance) -> tuple:
        if alpha:
            return reweighed()(alpha), shared + near @ heavier()(1 / alpha)
        if intercept:
            shift = own.residual.sum(axis=0) / (len(rows) + intercept)
            return own.shared() + constant(intercept), shared + shift
        if not balance:
            return own.shared(), shared
        if ridge not in streams:
            streams[ridge] = refined()(ridge / squared), new @ second()(ridge / squared)
        return tuple(
            a + balance * b for a, b in zip((own.shared(), shared), streams[ridge], strict=True)
        )

    return scores


def solver(rows: np.ndarray, targets: np.ndarray) -> Callable[[float], np.ndarray]:
    """Return ridge regressions on the same rows, by another way than what is judged."""
    if len(rows) < rows.shape[1]:
        products = rows @ rows.T
        return lambda ridge: rows.T @ Factor.of(products, ridge).solve(targets)
    gram, moment = rows.T @ rows, rows.T @ targets
    return lambda ridge: Factor.of(gram, ridge).solve(moment)


def report(name: str, found: list[dict]) -> None:
    """Print what was chosen, each seed for itself, and one setting for all seeds in hindsight."""
    print(f"{name}, {len(found)} seeds", flush=True)
    for method in found[0]:
        each = [seed[method] for seed in found]
        common = set.intersection(*(set(seed["tried"]) for seed in each))
        hindsight = max(np.mean([seed["tried"][key] for seed in each]) for key in common)
        chosen = np.mean([seed["chosen"] for seed in each])
        settings = "; ".join(dict.fromkeys(seed["setting"] for seed in each))
        print(f"  {method:15} {chosen:.2f} ({hindsight:.2f})  {settings}", flush=True)


if __name__ == "__main__":
    main()
