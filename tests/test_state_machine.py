"""Every policy under random requests, aborts and errors, on memory that is too small.

The machines count what happened to them: a run in which, say, hardly anybody was aborted while swapped out has tested
nothing of it, and fails.
"""

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from cell_model import CellModel, expected_tokens
from harness import EOS, LIMITS, POLICIES
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from minillm.clock import VirtualClock
from minillm.engine import Engine
from minillm.request import Request, SamplingParams
from minillm.scheduler import Refused
from minillm.schedulers.priority_queue import PriorityQueue, Waiting
from minillm.schedulers.vllm import Group
from minillm.sequence import Sequence, Status
from minillm.simulator.runner import SimulatedRunner

TOO_LONG = 300
LONGEST_OUTPUT = 12
STATES = [
    "before it arrived",
    "waiting",
    "in flight",
    "in its prompt",
    "decoding",
    "finished and undelivered",
    "preempted",
    "swapped",
]
NEWCOMERS = st.tuples(
    st.sampled_from([*range(1, 12), TOO_LONG]),  # prompt
    st.integers(1, LONGEST_OUTPUT),  # output
    st.sampled_from([1, 1, 1, 2, 3]),  # n
    st.sampled_from([0.0, 0.0, 0.3, 0.6, 2.0]),  # gap
    st.sampled_from([None] * 7 + [2, 9, 15]),  # fails_at
)

MACHINES = {
    "single": [{"columns": 30, "max_samples": 3}, {"columns": 20, "max_samples": 2}],
    "static": [{"max_batch_size": 4, "columns": 26}, {"max_batch_size": 3, "columns": 20}],
    "naive static": [
        {"max_batch_size": 3, "columns": 26, "passes_per_batch": LONGEST_OUTPUT},
        {"max_batch_size": 4, "columns": 20, "passes_per_batch": 6},
    ],
    "dynamic": [
        {"max_batch_size": 4, "columns": 26, "preferred_batch_sizes": [2, 3], "max_queue_delay": 1.5},
        {"max_batch_size": 3, "columns": 22, "queue_policies": [{"default_timeout": 25.0}]},
    ],
    "ragged": [
        {"max_batch_size": 3, "columns": 26, "max_queue_delay": 0.5},
        {"max_batch_size": 4, "columns": 22, "preferred_batch_sizes": [4], "max_queue_delay": 2.5},
    ],
    "orca": [{"max_bs": 2, "n_slots": 40}, {"max_bs": 4, "n_slots": 60}],
    "vllm": [
        {"num_blocks": 16, "block_size": 2, "swap_blocks": 40},
        {"num_blocks": 9, "block_size": 4, "swap_blocks": 30, "watermark": 1},
        {"num_blocks": 26, "block_size": 1, "swap_blocks": 20},
        {"num_blocks": 15, "block_size": 2, "swap_blocks": 4, "max_num_seqs": 4},
    ],
    "splitfuse": [
        {"num_blocks": 11, "block_size": 2, "token_budget": 5},
        {"num_blocks": 6, "block_size": 4, "token_budget": 3, "max_num_seqs": 3},
        {"num_blocks": 22, "block_size": 1, "token_budget": 8},
    ],
}


EVERYWHERE = [
    *("ended by stop", "ended by length", "ended by error", "ended by abort", "ended by refused", "refused at once"),
    *("aborted before it arrived", "aborted waiting", "aborted in flight", "aborted decoding"),
    "id reused while in flight",
]
RUN_TO_COMPLETION = ["aborted finished and undelivered"]
RECOMPUTING = ["recomputed", "ticks", "aborted preempted"]
SITUATIONS = {
    "single": ["held rows"],
    "static": ["held rows", *RUN_TO_COMPLETION],
    "naive static": ["held rows", *RUN_TO_COMPLETION],
    "dynamic": ["held rows", "ended by expired", *RUN_TO_COMPLETION],
    "ragged": RUN_TO_COMPLETION,
    "orca": [],
    "vllm": [
        *("preempted", *RECOMPUTING, "forked", "copied on write"),
        *("swapped out", "swapped in", "failed", "aborted swapped"),
    ],
    "splitfuse": ["reset", *RECOMPUTING, "prompts cut", "aborted in its prompt"],
}
SELDOM = 4


@dataclass
class Client:
    """A request, and what came back for each of its branches."""

    request: Request
    fails_at: int
    forks: bool
    tokens: dict = field(default_factory=lambda: defaultdict(list))
    endings: dict = field(default_factory=dict)
    ended: bool = False

    def receive(self, output):
        if output.finish_reason in ("abort", "refused"):
            self.ended = True
            return
        assert output.branch not in self.endings
        self.tokens[output.branch] += output.token_ids
        if output.finish_reason:
            self.endings[output.branch] = output.finish_reason
            self.check(output)
        before_the_fork = self.forks and self.fails_at <= len(self.request.prompt_token_ids)
        self.ended = len(self.endings) == (1 if before_the_fork else self.request.params.n)

    def check(self, output):
        tokens, due = self.tokens[output.branch], expected_tokens(self.request, output.branch)
        before_the_error = max(0, self.fails_at - len(self.request.prompt_token_ids))
        match output.finish_reason:
            case "stop" | "length" as reason:
                assert reason == ("stop" if due[-1] == EOS else "length")
                assert tokens == due[:before_the_error]
            case "error" if "swap" not in output.error:
                assert tokens == due[:before_the_error] and len(due) > before_the_error
            case _:
                assert tokens == due[: len(tokens)]


def queued(item):
    """Every sequence in a scheduler's queues, once for each place that it has there."""
    match item:
        case Sequence():
            yield item
        case Group(sequences=inner) | Waiting(samples=inner):
            yield from queued(inner)
        case list() | deque() | dict() | PriorityQueue():
            for entry in item:
                yield from queued(entry)


class Serving(RuleBasedStateMachine):
    """One policy, its engine, and its clients. Requests are told apart by their seeds: an id may be used again."""

    policy: str
    counts: Counter

    @initialize(data=st.data(), depth=st.sampled_from([1, 3]))
    def start(self, data, depth):
        self.scheduler = POLICIES[self.policy](**data.draw(st.sampled_from(MACHINES[self.policy])))
        self.fails_at = {}
        self.model = CellModel(self.scheduler.memory, self.fails_at)
        self.engine = Engine(self.scheduler, SimulatedRunner(self.execute, self.cost, depth), VirtualClock(), LIMITS)
        self.add_to_scheduler, self.scheduler.add = self.scheduler.add, self.arrive
        self.clients = {}
        self.arrived = {}  # seeds in the order of arrival
        self.started = {}  # seeds in the order in which their first passes were launched
        self.passes = Counter()
        self.memory_at_launch = {}
        self.preempted = set()
        self.seed = self.work = self.turns = self.seen = self.received = 0

    def arrive(self, request, now):
        assert now == request.arrival
        self.add_to_scheduler(request, now)
        self.arrived[request.params.seed] = None

    def execute(self, batch):
        for span in batch.spans:
            sequence = span.sequence
            self.started.setdefault(sequence.request.params.seed)
            self.counts["recomputed"] += span.start == 0 < self.passes[sequence]
            self.passes[sequence] += 1
            self.memory_at_launch[span] = memory_of(sequence)
        return self.model(batch)

    @staticmethod
    def cost(batch):
        return 1.0 + batch.computed_tokens / 8

    @rule(
        newcomers=st.lists(NEWCOMERS, max_size=4),
        turns=st.integers(0, 3),
        state=st.sampled_from([None, *STATES, "in flight"]),
        pick=st.integers(0, 5),
        reuse=st.sampled_from([True, True, False]),
    )
    def serve(self, newcomers, turns, state, pick, reuse):
        """Take newcomers, run some turns, and then, perhaps, abort somebody who is in a given state."""
        for newcomer in newcomers:
            self.submit(f"r{self.seed}", *newcomer)
        for _ in range(turns):
            self.turn()
        name = self.wait_for_one(state, pick) if state else None
        if name:
            self.abort(name)
            self.counts[f"aborted {state}"] += 1
        if name and reuse and state == "in flight":
            self.submit(name, prompt=6, output=5)
            self.counts["id reused while in flight"] += 1

    def wait_for_one(self, state, pick):
        for _ in range(5):
            names = [name for name in self.clients if self.state(name) == state]
            if names:
                return names[pick % len(names)]
            self.turn()
        return None

    def abort(self, name):
        self.receive(self.engine.abort(name))
        assert name not in self.clients
        assert not self.engine.abort(name)

    def submit(self, name, prompt, output, n=1, gap=0.0, fails_at=None):
        self.seed += 1
        token_ids = tuple((self.seed + 7 * i) % EOS for i in range(prompt))
        params = SamplingParams(n=n, max_tokens=output, seed=self.seed)
        request = Request(name, token_ids, params, self.engine.clock.now() + gap)
        self.fails_at[name] = fails_at or LIMITS.max_context
        try:
            self.engine.add(request)
        except Refused:
            self.counts["refused at once"] += 1
            return
        self.clients[name] = Client(request, self.fails_at[name], forks=self.policy == "vllm")
        self.work += n * (prompt + LONGEST_OUTPUT)

    def turn(self):
        self.receive(self.engine.step())
        for record in self.engine.steps[self.seen :]:
            self.observe(record)
        self.seen = len(self.engine.steps)
        self.turns += 1
        self.nothing_is_lost_or_owned_twice()

    def state(self, name):
        request = self.clients[name].request
        sequences = [sequence for sequence in self.sequences() if sequence.request is request]
        if not sequences:
            return "before it arrived"
        if any(sequence.in_flight for sequence in sequences):
            return "in flight"
        if any(self.undelivered(sequence) for sequence in sequences):
            return "finished and undelivered"
        first = next(sequence for sequence in sequences if not sequence.finished)
        if first.status is Status.SWAPPED:
            return "swapped"
        if first.status is Status.WAITING:
            return "preempted" if first.name in self.preempted else "waiting"
        return "decoding" if first.output_length else "in its prompt"

    def receive(self, outputs):
        for output in outputs:
            assert output.request_id in self.clients, f"{output} came after the end"
            client = self.clients[output.request_id]
            client.receive(output)
            self.received += len(output.token_ids)
            if output.finish_reason:
                self.counts[f"ended by {output.finish_reason}"] += 1
            if client.ended:
                del self.clients[output.request_id]

    def observe(self, record):
        for event in record.events:
            self.counts[event.kind] += 1
            self.preempted.add(event.sequence)
        self.counts["copied on write"] += record.copied
        self.counts["held rows"] += len(record.held)
        self.counts["ticks"] += not record.computed_tokens
        for span in record.spans:
            self.counts["forked"] += span.samples > 1
            self.counts["prompts cut"] += span.samples == 0

    def sequences(self):
        return list(queued(list(vars(self.scheduler).values())))

    def undelivered(self, sequence):
        return sequence.finished and sequence in self.engine._streams

    @invariant()
    def nothing_is_lost_or_owned_twice(self):
        self.scheduler.check_integrity()
        load = self.scheduler.load()
        assert 0 <= load.filled <= load.reserved <= self.scheduler.memory.capacity
        self.every_branch_stands_in_one_place()
        self.what_is_in_flight_keeps_its_memory()
        self.first_come_first_served()

    def every_branch_stands_in_one_place(self):
        sequences = self.sequences()
        assert len(sequences) == len(set(sequences))
        branches = Counter()
        for sequence in sequences:
            if not sequence.finished or self.undelivered(sequence):
                branches[sequence.request.id] += sequence.branches
        for name, client in self.clients.items():
            arrived = client.request.params.seed in self.arrived
            assert branches.pop(name, 0) == arrived * (client.request.params.n - len(client.endings))
        assert not branches

    def what_is_in_flight_keeps_its_memory(self):
        for flight in self.engine._in_flight:
            for span in flight.batch.spans:
                assert span.sequence.in_flight
                assert memory_of(span.sequence) == self.memory_at_launch[span]

    def first_come_first_served(self):
        assert list(self.started) == [seed for seed in self.arrived if seed in self.started]
        if self.policy == "orca":
            passes = [self.passes[sequence] for sequence in (*self.scheduler.running, *self.scheduler.waiting)]
            assert all(earlier >= later for earlier, later in pairwise(passes))
        if self.policy == "vllm":
            waiting = [group.order for group in self.scheduler.waiting]
            assert waiting == sorted(waiting)

    def teardown(self):
        while self.engine.has_work or self.engine._in_flight:
            self.turn()
            assert self.turns <= 200 + self.work, "no end is in sight"
        assert not self.clients
        assert not self.sequences()
        assert self.received == sum(tokens for step in self.engine.steps for _, tokens in step.delivered)


def memory_of(sequence):
    return tuple(sequence.memory) if isinstance(sequence.memory, list) else sequence.memory


@pytest.mark.parametrize("policy", MACHINES)
def test_nothing_is_lost_whatever_happens(policy):
    counts = Counter()
    machine = type("Machine", (Serving,), {"policy": policy, "counts": counts})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=15 * len(MACHINES[policy]),
            stateful_step_count=20,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],  # shrinking takes minutes: add it to hunt a failure down
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(policy, dict(sorted(counts.items())))
    seldom = {what: counts[what] for what in (*EVERYWHERE, *SITUATIONS[policy]) if counts[what] < SELDOM}
    assert not seldom, f"too seldom to have been tested: {seldom}"
