"""Costs of gang plans, and optimisers that find good ones (requirements B5, C and D)."""

from __future__ import annotations

from functools import cached_property
from itertools import permutations
from statistics import mean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from presage.schedulers.core.topology import Topology, Vertex, flat_topology
from presage.schedulers.policies.gang.distances import Distances
from presage.schedulers.policies.gang.optimisers.frog_leaping import FrogLeaping
from presage.schedulers.policies.gang.optimisers.greedy import Greedy
from presage.schedulers.policies.gang.optimisers.optimiser import Optimiser
from presage.schedulers.policies.gang.optimisers.ring import Ring
from presage.schedulers.policies.gang.optimisers.subtrees import Subtrees
from presage.schedulers.policies.gang.optimisers.swaps import Swaps
from presage.schedulers.policies.gang.optimisers.tree_optimum import TreeOptimum
from presage.schedulers.policies.gang.problem import Problem, Weights
from tests.schedulers.policies.gang.gang_enumeration import Enumeration
from tests.support.slow_tests import examples

SEARCHES: dict[str, Optimiser] = {
    "greedy": Greedy(), "swaps": Swaps(), "subtrees": Subtrees(), "frogs": FrogLeaping(),
    "as published": FrogLeaping.as_published(), "tree": TreeOptimum(), "all": Enumeration(),
}  # fmt: skip


def tree(*racks: tuple[int, ...]) -> Topology:
    """Return racks of nodes with so many devices; two sockets each from four devices on."""
    first, number, tops = 0, 0, []
    for r, sizes in enumerate(racks):
        nodes = []
        for size in sizes:
            there = range(first, first + size)
            below: tuple[Vertex | int, ...] = tuple(there)
            if size >= 4:
                half = first + size // 2
                below = (
                    Vertex(f"n{number}a", "numa", tuple(range(first, half))),
                    Vertex(f"n{number}b", "numa", tuple(range(half, there.stop))),
                )
            nodes.append(Vertex(f"n{number}", "node", below))
            first, number = there.stop, number + 1
        tops.append(Vertex(f"r{r}", "rack", tuple(nodes)))
    return Topology(Vertex("all", "cluster", tuple(tops)))


TREE = tree((2, 4), (8,), (1, 3))


@st.composite
def problems(draw, *, only_alike=False, most_members=4):
    """Draw small problems: some devices of a tree are free, each with a degradation."""
    free = sorted(draw(st.sets(st.integers(0, 17), min_size=1, max_size=8)))
    members = draw(st.integers(1, min(most_members, len(free))))
    rows = 1 if only_alike or draw(st.booleans()) else members
    values = st.sampled_from((0.0, 0.0, 0.1, 0.3, 0.5, 0.9))
    degradation = np.array([[draw(values) for _ in free] for _ in range(rows)])
    weights = Weights(
        draw(st.sampled_from((0.0, 1.0, 3.0))), draw(st.sampled_from((0.0, 1.0, 0.3))),
        draw(st.sampled_from(("mean", "max"))),
    )  # fmt: skip
    return Problem(
        np.broadcast_to(degradation, (members, len(free))), Distances(TREE, np.array(free)), weights
    )


def cost(problem, plan):
    return float(problem.costs(plan[None])[0])


@given(free=st.sets(st.integers(0, 17), min_size=1))
def test_distances_equal_those_of_the_tree(free):
    devices = np.array(sorted(free))
    places = np.arange(len(devices))
    found = Distances(TREE, devices)(places[:, None], places[None, :])
    assert np.array_equal(found, TREE.distances(devices))


@given(problem=problems())
def test_a_ring_returns_the_cost_of_inserting_another_device(problem):
    plan = np.arange(problem.members)
    ring = Ring(problem.distances, plan)
    length = problem.members * problem.communication(plan[None])[0]
    replaced = ring.replacements()
    for place in range(problem.members, problem.candidates):
        longer = np.append(plan, place)
        without_interference = Problem(
            np.zeros((len(longer), problem.candidates)), problem.distances, Weights()
        )
        assert ring.insertions()[place] == pytest.approx(
            len(longer) * without_interference.communication(longer[None])[0] - length
        )
        for member in range(problem.members if problem.members > 1 else 0):
            other = plan.copy()
            other[member] = place
            assert replaced[member, place] == pytest.approx(
                problem.members * problem.communication(other[None])[0] - length
            )


def test_d1_the_cost_of_a_plan_is_interference_plus_communication():
    # B5: the mean, or the largest. C2 to C4: a ring's edges, by the cost of the common ancestor.
    degradation = np.broadcast_to(np.array([0.0, 0.2, 0.4, 0.0]), (3, 4))
    distances = Distances(TREE, np.array([0, 2, 3, 6]))  # two nodes of a rack; another rack
    plan = np.array([2, 0, 1])
    edges = (10 + 4 + 10) / 3 / 40  # n0 to n1, within a socket of n1, back; 40 is the most
    both = Problem(degradation, distances, Weights(2.0, 3.0))
    assert both.interference(plan[None])[0] == pytest.approx(0.2)
    assert both.communication(plan[None])[0] == pytest.approx(edges)
    assert cost(both, plan) == pytest.approx(2 * 0.2 + 3 * edges)
    assert Problem(degradation, distances, Weights(reduce="max")).interference(plan[None])[0] == 0.4


@given(problem=problems(only_alike=True))
def test_b5_a_gangs_interference_is_the_mean_or_the_maximum_of_its_members(problem):
    plan = np.arange(problem.candidates)[-problem.members :]
    of_members = [float(problem.degradation[i, device]) for i, device in enumerate(plan)]
    expected = max(of_members) if problem.weights.reduce == "max" else mean(of_members)
    assert problem.interference(plan[None])[0] == pytest.approx(expected)


@settings(deadline=None)
@given(problem=problems(most_members=5))
def test_c2_communication_is_the_sum_over_pairs_of_distance_times_sent_bytes(problem):
    # C4: neighbours of the ring send each other 2 (m - 1) / m times the gradient, others nothing.
    plan, members = np.arange(problem.members), problem.members
    sent = 2 * (members - 1) / members * 4000.0
    between = problem.distances(plan[:, None], plan[None, :])  # msc

    def total(ring):
        muds = np.zeros((members, members))
        for i, j in zip(ring, (*ring[1:], ring[0]), strict=True):
            muds[i, j] += sent
        return float((between * muds).sum())

    found = float(problem.communication(plan[None])[0])
    assert 0 <= found <= 1
    if members > 1:
        dearest = members * problem.distances.most * sent
        # No way through the devices is shorter than that in the order of the tree.
        assert found == pytest.approx(min(map(total, permutations(range(members)))) / dearest)
    else:
        assert found == 0


@settings(deadline=None)
@given(problem=problems())
def test_d1_both_terms_are_within_0_and_1(problem):
    plans = np.array(list(permutations(range(problem.candidates), problem.members)))
    for term in (problem.interference(plans), problem.communication(plans)):
        assert 0 <= term.min() <= term.max() <= 1


@settings(deadline=None)
@given(problem=problems(), name=st.sampled_from(sorted(SEARCHES)), seed=st.integers(0, 99))
def test_every_search_plans_distinct_devices_and_is_deterministic(problem, name, seed):
    if name == "tree" and not problem.alike:
        with pytest.raises(ValueError, match="not interchangeable"):
            SEARCHES[name].plan(problem, np.random.default_rng(seed))
        return
    plan = SEARCHES[name].plan(problem, np.random.default_rng(seed))
    assert plan.shape == (problem.members,)
    assert len(set(plan.tolist())) == problem.members
    assert 0 <= plan.min() <= plan.max() < problem.candidates
    again = SEARCHES[name].plan(problem, np.random.default_rng(seed))
    assert np.array_equal(plan, again)


@settings(deadline=None)
@given(problem=problems())
def test_enumeration_finds_the_best(problem):
    everything = np.array(list(permutations(range(problem.candidates), problem.members)))
    plan = Enumeration().plan(problem, np.random.default_rng(0))
    assert cost(problem, plan) == pytest.approx(problem.costs(everything).min())


@pytest.mark.parametrize(("most_members", "count"), [(5, 250), (6, 50)])
def test_the_tree_optimum_is_the_optimum(most_members, count):
    @settings(deadline=None, max_examples=examples(count))
    @given(problem=problems(only_alike=True, most_members=most_members))
    def check(problem):
        best = cost(problem, Enumeration().plan(problem, np.random.default_rng(0)))
        found = cost(problem, TreeOptimum().plan(problem, np.random.default_rng(0)))
        assert found == pytest.approx(best)

    check()


def test_the_tree_optimum_of_thousands_of_sibling_nodes():
    nodes = 3000
    flat = flat_topology(Vertex(f"n{i}", "node", (2 * i, 2 * i + 1)) for i in range(nodes))
    degradation = np.full(2 * nodes, 0.5)
    degradation[-3:] = 0.0
    problem = Problem(
        np.broadcast_to(degradation, (3, 2 * nodes)),
        Distances(flat, flat.depth_first),
        Weights(alpha=1.0, beta=0.1),
    )
    plan = TreeOptimum().plan(problem, np.random.default_rng(0))
    assert plan.tolist() == [2 * nodes - 3, 2 * nodes - 2, 2 * nodes - 1]


class Watched(Problem):
    """It remembers which plans were evaluated, call by call."""

    @cached_property
    def seen(self):
        return []

    def costs(self, plans, communication_factor=1.0):
        self.seen.append(plans.copy())
        return super().costs(plans, communication_factor)


def watched(members, candidates):
    """Return a problem with distinct members, on devices of a node each."""
    flat = flat_topology(Vertex(f"n{i}", "node", (i,)) for i in range(candidates))
    degradation = np.random.default_rng(0).random((members, candidates))
    return Watched(degradation, Distances(flat, flat.depth_first), Weights(1.0, 0.0))


def test_d2_as_published_there_are_as_many_frogs_as_tasks_and_16_iterations():
    published = FrogLeaping.as_published()
    assert (published.iterations, FrogLeaping().iterations) == (16, 16)
    problem = watched(5, 50)
    published.plan(problem, np.random.default_rng(0))
    assert len(problem.seen[0]) == 5
    assert len(problem.seen) == 1 + 16 * 3 + 1  # 16 times: to F_b, to F_g, random; the best last


def test_d2_it_ends_when_the_best_plan_improves_by_less_than_z():
    problem = watched(5, 50)
    FrogLeaping(frogs_per_member=2, fewest_frogs=1, convergence=1.0, from_greedy=False).plan(
        problem, np.random.default_rng(0)
    )
    assert len(problem.seen) == 1 + 1 * 3 + 1  # no plan is better by as much


def came_from(plans, own, leaders):
    """Return which plans have each gene from their own or their leader's; none is repaired."""
    assert ((plans == own) | (plans == leaders)).all()
    assert (plans != own).any()


def test_d3_d4_frogs_are_dealt_by_fitness_and_leap_to_the_best_of_their_memeplex_then_of_all():
    # So many devices that no two of these frogs meet on one.
    problem = watched(4, 5000)
    search = FrogLeaping(
        frogs_per_member=3, fewest_frogs=1, memeplexes=3, iterations=1, from_greedy=False
    )
    best = search.plan(problem, np.random.default_rng(0))
    frogs, to_best_of_mine, to_best_of_all, redrawn, _ = problem.seen
    assert len(np.unique(frogs)) == frogs.size
    frogs = frogs[np.argsort(Problem.costs(problem, frogs), kind="stable")]
    costs = Problem.costs(problem, frogs)

    # Dealt like cards: the three best are the best of a memeplex each, the first of all.
    came_from(to_best_of_mine, frogs[1:], frogs[np.arange(1, 12) % 3])
    worse = 1 + np.flatnonzero(Problem.costs(problem, to_best_of_mine) >= costs[1:])
    came_from(to_best_of_all, frogs[worse], frogs[[0]])
    still = worse[Problem.costs(problem, to_best_of_all) >= costs[worse]]
    assert len(redrawn) == sum(still >= 3) > 0  # leaders of a memeplex stay
    everything = np.concatenate(problem.seen[:-1])
    assert cost(problem, best) == Problem.costs(problem, everything).min()


@settings(deadline=None)
@given(members=st.integers(1, 6), spare=st.integers(0, 3), seed=st.integers(0, 99))
def test_d5_a_leap_never_leaves_two_members_on_a_device(members, spare, seed):
    problem = watched(members, members + spare)
    FrogLeaping(fewest_frogs=12, from_greedy=False).plan(problem, np.random.default_rng(seed))
    for plans in problem.seen:
        in_order = np.sort(plans, axis=1)
        assert (np.diff(in_order, axis=1) > 0).all()
        assert not plans.size or 0 <= plans.min() <= plans.max() < members + spare


@settings(deadline=None)
@given(problem=problems(), seed=st.integers(0, 9))
def test_d6_the_default_is_never_worse_than_greedy(problem, seed):
    greedy, swaps, frogs = (
        cost(problem, SEARCHES[name].plan(problem, np.random.default_rng(seed)))
        for name in ("greedy", "swaps", "frogs")
    )
    assert frogs <= swaps + 1e-9
    assert swaps <= greedy + 1e-9


@pytest.mark.parametrize(("members", "frogs"), [(4, 60), (20, 80)])
def test_d6_the_default_has_60_frogs_or_four_a_task_including_greedy(members, frogs):
    problem = watched(members, 50)
    greedy = Greedy().plan(problem, np.random.default_rng(0))
    FrogLeaping().plan(problem, np.random.default_rng(0))
    assert max(map(len, problem.seen)) == frogs
    assert any((plan == greedy).all() for plans in problem.seen[:2] for plan in plans)


def test_d6_the_published_settings_end_far_from_the_optimum_and_the_default_at_it():
    # 4 members, 8 candidates, 30 gangs: 31 % above the best with the document's own defaults.
    gaps: dict[str, list[float]] = {}
    topology = tree((8,), (8,))
    for seed in range(30):
        draws = np.random.default_rng(seed)
        devices = np.sort(draws.choice(16, 8, replace=False))
        degradation = draws.beta(1, 3, 8) * (draws.random(8) < 0.6)
        problem = Problem(
            np.broadcast_to(degradation, (4, 8)), Distances(topology, devices), Weights()
        )
        best = cost(problem, Enumeration().plan(problem, draws))
        for name in ("greedy", "swaps", "frogs", "as published", "tree"):
            plan = SEARCHES[name].plan(problem, np.random.default_rng(seed))
            gaps.setdefault(name, []).append(cost(problem, plan) / best - 1)
    gap = {name: mean(of) for name, of in gaps.items()}
    assert gap["tree"] == pytest.approx(0.0, abs=1e-9)
    assert gap["frogs"] < 0.01
    assert gap["as published"] > 0.1
    assert gap["swaps"] <= gap["greedy"]


def test_interference_decides_if_no_level_has_a_cost():
    free = Topology(Vertex("n", "node", (0, 1, 2)), {"node": 0.0})
    problem = Problem(
        np.broadcast_to(np.array([0.5, 0.0, 0.1]), (2, 3)), Distances(free, np.arange(3)), Weights()
    )
    for search in SEARCHES.values():
        plan = search.plan(problem, np.random.default_rng(0))
        assert sorted(plan.tolist()) == [1, 2]
        assert cost(problem, plan) == pytest.approx(0.05)


def test_more_members_than_candidates_are_an_error():
    problem = Problem(np.zeros((3, 2)), Distances(TREE, np.array([0, 1])), Weights())
    for name, search in SEARCHES.items():
        with pytest.raises(ValueError, match="a gang of 3 members has 2 candidates"):
            search.plan(problem, np.random.default_rng(0))
        assert name
