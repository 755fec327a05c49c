"""The integer programme of a placement in HiGHS: solved for one aim after the other."""

from __future__ import annotations

import math
from dataclasses import dataclass

import highspy
import numpy as np

from planner.placement.formulation import Formulation
from planner.placement.problem import Problem

THREADS = 1  # HiGHS keeps one thread pool per process: another number elsewhere in it would be refused
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Counts:
    """Replicas by (choice, class), nodes bought by class, share unserved by workload."""

    replicas: dict[tuple[int, int], int]
    bought: dict[int, int]
    unserved: dict[int, float]


@dataclass(frozen=True, slots=True)
class Solved:
    """What HiGHS answered. ``bound`` is the proven lower bound of the objective in USD an hour."""

    counts: Counts | None
    objective: float
    bound: float
    proven: bool
    unserved: dict[int, float]  # as the programme counts it: what a second stage may hold on to


def unserved_shares(problem: Problem, replicas: dict[tuple[int, int], int]) -> dict[int, float]:
    """Share of each workload's demand, spare included, that ``replicas`` leave out; recomputed without tolerances."""
    left = {}
    for number, workload in enumerate(problem.workloads):
        own = [(problem.choices[i], count) for (i, _), count in replicas.items() if count]
        own = [(choice, count) for choice, count in own if choice.workload == number]
        reserve = max((choice.share for choice, _ in own), default=0.0) if workload.n_plus_1 else 0.0
        if sum(choice.share * count for choice, count in own) - reserve >= 1 - _TOLERANCE:
            left[number] = 0.0
        else:
            parts = sum(count / choice.needed for choice, count in own)
            left[number] = min(1.0, max(1 - parts, min((1 / choice.needed for choice, _ in own), default=1.0)))
    return left


class _QuietHighs(highspy.Highs):
    """HiGHS prints its banner from ``enableCallbacks``, before any option can be set: silence it first."""

    def enableCallbacks(self) -> None:  # noqa: N802
        """See ``highspy.Highs``."""
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()


class Programme:
    """One HiGHS model of a problem: solved for least unserved, then least spent on new nodes, then least cost."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self._problem = problem
        self._h = _QuietHighs()
        for key, value in (
            ("threads", THREADS),
            ("random_seed", seed),
            ("mip_feasibility_tolerance", _TOLERANCE),
        ):
            self._h.setOptionValue(key, value)
        self._form = Formulation(problem)
        self._load()

    @property
    def may_buy(self) -> bool:
        """Whether there are nodes to buy."""
        return bool(self._form.b)

    def minimise_unserved(self, weights: dict[int, float], time_limit_s: float) -> Solved:
        """Least weighted share of demand left out."""
        cost = np.zeros(len(self._form.cost))
        for workload, column in self._form.s.items():
            cost[column] = weights[workload]
        return self._solve(cost, {}, time_limit_s, 1e-4, None)

    def minimise_spend(
        self, unserved: dict[int, float], time_limit_s: float, gap: float, start: Counts | None
    ) -> Solved:
        """Least USD an hour of nodes bought: what is owned is paid for, so it is used before anything is bought."""
        cost = np.zeros(len(self._form.cost))
        if self._form.spend is not None:
            cost[self._form.spend] = 1.0
        return self._solve(cost, self._served(unserved), time_limit_s, gap, start)

    def minimise_cost(
        self,
        unserved: dict[int, float],
        time_limit_s: float,
        gap: float,
        start: Counts | None,
        spend_usd_per_hour: float | None = None,
    ) -> Solved:
        """Cheapest plan that leaves no more than ``unserved`` of each workload out. ``start`` is a known plan.

        ``spend_usd_per_hour`` is the most that nodes bought may cost.
        """
        bounds = self._served(unserved)
        if spend_usd_per_hour is not None and self._form.spend is not None:
            bounds[self._form.spend] = (0.0, spend_usd_per_hour * (1 + _TOLERANCE))
        return self._solve(np.array(self._form.cost), bounds, time_limit_s, gap, start)

    def _served(self, unserved: dict[int, float]) -> dict[int, tuple[float, float]]:
        return {
            self._form.s[workload]: (0.0, share + _TOLERANCE if share else 0.0) for workload, share in unserved.items()
        }

    def _load(self) -> None:
        count = len(self._form.cost)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = count, len(self._form.rows)
        lp.col_cost_ = np.array(self._form.cost)
        lp.col_lower_, lp.col_upper_ = np.zeros(count), np.array(self._form.upper)
        lp.row_lower_ = np.array([low for low, _, _ in self._form.rows])
        lp.row_upper_ = np.array([high for _, high, _ in self._form.rows])
        starts, index, value = [0], [], []
        for _, _, terms in self._form.rows:
            for column, factor in sorted(terms.items()):
                index.append(column)
                value.append(factor)
            starts.append(len(index))
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_, lp.a_matrix_.index_ = np.array(starts), np.array(index)
        lp.a_matrix_.value_ = np.array(value)
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kInteger if whole else kinds.kContinuous for whole in self._form.integer]
        self._h.passModel(lp)

    def _solve(
        self,
        cost: np.ndarray,
        bounds: dict[int, tuple[float, float]],
        time_limit_s: float,
        gap: float,
        start: Counts | None,
    ) -> Solved:
        count = len(self._form.cost)
        everything = np.arange(count, dtype=np.int32)
        self._h.changeColsCost(count, everything, cost)
        for column, (low, high) in bounds.items():
            self._h.changeColBounds(column, low, high)
        self._h.setOptionValue("time_limit", max(time_limit_s, 0.1) + self._h.getRunTime())
        self._h.setOptionValue("mip_rel_gap", gap)
        if start is not None:
            self._set_start(start)
        self._run()
        if start is not None and not self._consistent(cost):
            self._h.clearSolver()
            self._run()
        info = self._h.getInfo()
        proven = self._h.getModelStatus() == highspy.HighsModelStatus.kOptimal
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return Solved(None, math.inf, info.mip_dual_bound, proven, {})
        values = self._h.getSolution().col_value
        unserved = {workload: max(0.0, values[column]) for workload, column in self._form.s.items()}
        return Solved(self._counts(values), info.objective_function_value, info.mip_dual_bound, proven, unserved)

    def _run(self) -> None:
        if self._h.run() == highspy.HighsStatus.kError:  # the thread pool was made with another number of threads
            highspy.Highs.resetGlobalScheduler(True)
            self._h.run()

    def _consistent(self, cost: np.ndarray) -> bool:
        """Whether the objective HiGHS states is that of its solution. HiGHS 1.16 may count a start too cheap; it then
        prunes what is better and states a bound that is none.
        """
        info = self._h.getInfo()
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return True
        value = float(np.dot(self._h.getSolution().col_value, cost))
        return math.isclose(value, info.objective_function_value, rel_tol=1e-6, abs_tol=1e-6)

    def _counts(self, values: list[float]) -> Counts:
        replicas = {key: round(values[column]) for key, column in self._form.n.items() if values[column] > 0.5}
        bought = {key: round(values[column]) for key, column in self._form.b.items() if values[column] > 0.5}
        return Counts(replicas, bought, unserved_shares(self._problem, replicas))

    def _set_start(self, start: Counts) -> None:
        """Give HiGHS the integer part of a known plan; it completes the rest."""
        columns = {self._form.n[key]: float(start.replicas.get(key, 0)) for key in self._form.n}
        columns |= {self._form.b[key]: float(start.bought.get(key, 0)) for key in self._form.b}
        indexes = np.array(list(columns), dtype=np.int32)
        self._h.setSolution(len(indexes), indexes, np.array(list(columns.values())))
