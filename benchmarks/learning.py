"""What a CPU second teaches: held-out scores against CPU seconds, ours and Hugging Face's.

    python -m benchmarks.learning --examples FOLDER [--recipe tiny] [--seconds 240 | --updates 1000]
        [--seeds 1 2 3] [--peers adamw lamb adamw,0.001,32]
        [--ours tiny "muon: training.optimizer=muon training.batch_size=32"]
        [--held-out 10000] [--pairs FOLDER] [--show] [--results FOLDER]

All learn from the examples of one folder, which the stage "examples" made, in the shape of one
recipe. The budget is CPU seconds of the thread that trains, with one thread of torch. Making
batches does not count, and neither does the evaluation, which is ours for all. Each run is a
process of its own. A short run, which is discarded, first measures how many updates fit into the
budget; so schedules end with the budget, and a run that turns out slower ends early. With
``--updates`` the budget is a number of updates. Other work on the machine then changes no score,
but contestants are only to be compared whose updates cost the same.

Ours is a recipe with overrides, trained by the loader, the update and the schedule of the product;
``num_steps`` only says what ``warmup_steps`` is a share of. The peer is `AlbertForPreTraining` with
its own loss, padded batches and a linear schedule, with torch's AdamW or our LAMB. ``adamw`` and
``lamb`` alone search the best rate with the first seed, and then learn with all.
The peer gets fresh n-gram masks like those of the evaluation.

Each run appends a line to learning.jsonl in the folder of results, which takes runs on one held-out
text only. The table is of all its lines; of two runs of the same name, budget and seed the later
counts. The picture, learning.svg, has the held-out loss against CPU seconds. ``--show`` makes both
without a run.
"""

import argparse
import json
import math
import shlex
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

from albert_core.conversion.huggingface import from_hf_state
from albert_core.model.albert import AlbertForPretraining
from albert_core.stage.manifest import MANIFEST
from albert_core.tasks.likelihoods import is_right
from albert_core.tasks.minimal_pairs import find_pairs, pair_scores, read_pairs, that_fit
from albert_core.text.seeds import derive_seed
from albert_core.text.tokenizer import Tokenizer
from albert_core.training.held_out import evaluate
from albert_core.training.loader import FreshMasks, UpdateBatch, UpdateLoader
from albert_core.training.optimizer import Lamb, learning_rate_at
from albert_core.training.order import example_order, order_seed
from albert_core.training.pretraining import initial_state, next_update
from albert_core.training.ranks import ALONE
from albert_core.training.shards import ExampleShards
from albert_core.training.step import PAIR_TASKS
from benchmarks import harness, pretraining
from flows.recipe import load_recipe

POINTS = (0.025, 0.05, 0.1, 0.175, 0.25, 0.5, 0.75, 1.0)
"""Shares of the budget at which a run is evaluated."""
RATES = {"adamw": (5e-4, 1e-3, 2e-3, 4e-3), "lamb": (2.5e-3, 5e-3, 1e-2, 2e-2)}
SEARCHED_BATCH_SIZE = 32
PEER_WARMUP_SHARE, PEER_WEIGHT_DECAY = 0.06, 0.01
CALIBRATION_SHARE = 0.05
"""Of the budget, to measure how many updates fit into it."""
_FIRST_UPDATES, _FEWEST_UPDATES, _MOST_UPDATES = 8, 16, 200
"""Of the calibration: to warm up; and of the short run."""
_UNFINISHED = 0.93
"""Share of the schedule or of the budget below which a run is marked."""

Update = Callable[[], int]
"""Does an update; returns its real pieces."""
Line = dict[str, Any]
"""What a run found, as the results keep it."""


class Learner(NamedTuple):
    """A model in training."""

    prepared_s: float
    """CPU seconds before the first update, of the budget."""
    updates: Generator[Update, None, None]
    """The updates in their order; the batch of each is there already."""
    model: Callable[[], AlbertForPretraining]
    """Returns the model as it would be delivered now, with all layers."""


@dataclass(frozen=True)
class Ours:
    """A recipe with overrides, ``section.field=value`` each: the product's loader and update."""

    name: str
    overrides: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Ours":
        """Return that of ``name: overrides``, or of a name alone, which overrides nothing."""
        name, _, overrides = text.partition(":")
        return cls(name.strip(), tuple(shlex.split(overrides)))

    def learner(self, run: "Run", examples: ExampleShards, num_steps: int) -> Learner:
        """Return it before its first update, with the recipe's share of updates to warm up."""
        recipe = load_recipe(run.options.recipe, self.overrides)
        warmup_steps = round(num_steps * recipe.training.warmup_steps / recipe.training.num_steps)
        wanted = {"num_steps": num_steps, "warmup_steps": warmup_steps, "seed": run.seed}
        settings = recipe.training.model_copy(update=wanted)
        pair_task = PAIR_TASKS[examples.result.objective]
        begin = time.thread_time()
        state = initial_state(recipe.model, settings, examples, ALONE)
        prepared_s = time.thread_time() - begin

        def update(batch: UpdateBatch) -> int:
            next_update(state, batch, settings, ALONE, pair_task)
            return int(batch.sizes.num_pieces)

        def updates() -> Generator[Update, None, None]:
            state.model.train()
            loader = UpdateLoader(examples, settings, ALONE, first_example=0, num_updates=num_steps)
            with loader:
                yield from (partial(update, batch) for batch in loader)

        def model() -> AlbertForPretraining:
            encoder = state.model.encoder
            encoder.num_layers = encoder.settings.num_hidden_layers
            return state.model

        return Learner(prepared_s, updates(), model)


@dataclass(frozen=True)
class Peer:
    """Hugging Face's `AlbertForPreTraining`, from the first weights that ours would have."""

    optimizer: Literal["adamw", "lamb"]
    rate: float
    batch_size: int

    @property
    def name(self) -> str:
        shown = {"adamw": "AdamW", "lamb": "LAMB"}[self.optimizer]
        return f"Hugging Face, {shown} {self.rate:g}, batch {self.batch_size}"

    def build(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer; vectors are not decayed, as in Hugging Face's `Trainer`."""
        weights = list(model.parameters())
        if self.optimizer == "lamb":
            return Lamb(weights, self.rate, PEER_WEIGHT_DECAY)
        groups = [
            {"params": [w for w in weights if w.ndim > 1], "weight_decay": PEER_WEIGHT_DECAY},
            {"params": [w for w in weights if w.ndim <= 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, self.rate)

    def learner(self, run: "Run", examples: ExampleShards, num_steps: int) -> Learner:
        """Return it before its first update, with the recipe's model and precision."""
        recipe, size = load_recipe(run.options.recipe), self.batch_size
        fresh = FreshMasks(examples.manifest, run.seed)
        torch.manual_seed(derive_seed(run.seed, "initial-weights"))
        ours = AlbertForPretraining(recipe.model, examples.result.vocab_size)
        theirs = pretraining.same_in_transformers(ours)
        optimizer = self.build(theirs)

        def update(step: int, batch: dict[str, torch.Tensor], num_pieces: int) -> int:
            warmup_steps = round(PEER_WARMUP_SHARE * num_steps)
            rate = learning_rate_at(step, self.rate, warmup_steps, num_steps, "linear")
            for group in optimizer.param_groups:
                group["lr"] = rate
            is_bfloat16 = recipe.training.precision == "bfloat16"
            pretraining.peer_update(theirs, optimizer, [batch], "cpu", is_bfloat16)
            return num_pieces

        def updates() -> Generator[Update, None, None]:
            for step in range(num_steps):
                first = step * size
                indices = example_order(first, size, len(examples), order_seed(run.seed))
                epochs = np.arange(first, first + size) // len(examples)
                rows = fresh.draw(examples.rows(indices), indices, epochs)
                yield partial(update, step, pretraining.padded(rows), int(rows.lengths.sum()))

        def model() -> AlbertForPretraining:
            weights = from_hf_state(theirs.state_dict(), recipe.model, "the peer", "albert")
            ours.load_state_dict(weights)
            return ours

        return Learner(0.0, updates(), model)


@dataclass(frozen=True)
class Run:
    """One contestant with one seed."""

    contestant: Ours | Peer
    seed: int
    options: argparse.Namespace
    """Of the command line."""


def learn(run: Run) -> Line:
    """Train for the budget; return the scores on the way and at the end."""
    torch.set_num_threads(1)
    options, name = run.options, run.contestant.name
    budget = None if options.updates else options.seconds
    train, held_out = (_shards(options, kind) for kind in ("train", "held_out"))
    pair_task = PAIR_TASKS[train.result.objective]
    num_steps = options.updates or _updates_within(options.seconds, run, train)
    learner = run.contestant.learner(run, train, num_steps)
    due, points, spent, num_pieces = list(POINTS), [], learner.prepared_s, 0
    with closing(learner.updates) as updates:
        for step, update in enumerate(updates, 1):
            pieces, seconds = _timed(update)
            spent, num_pieces = spent + seconds, num_pieces + pieces
            share = spent / budget if budget else step / num_steps
            is_last = step == num_steps or share >= 1
            if is_last or share >= due[0]:
                scores = evaluate(learner.model(), held_out, options.held_out, pair_task)
                # Not a number would win any comparison.
                values = {n: float(np.nan_to_num(s.value, nan=np.inf)) for n, s in scores.items()}
                points.append({"cpu_s": spent, "step": step, "pieces": num_pieces, **values})
                due = [later for later in due if later > share]
                said = f"{spent:,.1f} s, loss {values['masked_lm_loss']:.3f}"
                print(f"{name}, seed {run.seed}: {said}", file=sys.stderr)
            if is_last:
                break
    return {
        "name": name,
        "contestant": vars(run.contestant),
        "recipe": options.recipe,
        **_held_out_text(options, held_out),
        "unigram_nats": train.result.unigram_nats,
        "budget_s": budget,
        "seed": run.seed,
        "num_steps": num_steps,
        "points": points,
        "minimal_pairs": _pair_scores(learner.model(), train, options.pairs),
        "hardware": harness.hardware(),
    }


def _shards(options: argparse.Namespace, kind: Literal["train", "held_out"]) -> ExampleShards:
    return ExampleShards(f"{options.examples}/{MANIFEST}", kind)


def _held_out_text(options: argparse.Namespace, held_out: ExampleShards) -> dict[str, Any]:
    """Return what runs have to share, for their scores to be compared."""
    num_held_out = min(options.held_out, len(held_out))
    return {"examples": held_out.manifest.content, "num_held_out": num_held_out}


def _updates_within(budget: float, run: Run, examples: ExampleShards) -> int:
    """Return how many updates fit into CPU seconds, by a short run through the whole schedule."""
    prepared, seconds, number = 0.0, 0.0, _FIRST_UPDATES
    for _ in range(2):  # the first run fetches memory, and says how short the second may be
        learner = run.contestant.learner(run, examples, number)
        with closing(learner.updates) as updates:
            seconds = float(np.mean([_timed(update)[1] for update in updates]))
        prepared = learner.prepared_s
        fitting = int(CALIBRATION_SHARE * budget / seconds)
        number = min(max(fitting, _FEWEST_UPDATES), _MOST_UPDATES)
    return max(2, int((budget - prepared) / seconds))


def _timed(update: Update) -> tuple[int, float]:
    """Return the pieces of an update, and its CPU seconds in this thread."""
    begin = time.thread_time()
    num_pieces = update()
    return num_pieces, time.thread_time() - begin


def _pair_scores(
    model: AlbertForPretraining, examples: ExampleShards, folder: str
) -> dict[str, float]:
    """Return the share of right pairs of each set in a folder, the mean of its paradigms."""
    tokenizer = Tokenizer.of_examples(examples.manifest)
    num_positions = model.encoder.settings.max_position_embeddings
    model.eval()
    found = {}
    for name, uris in find_pairs(folder).items():
        pairs, _ = that_fit(name, read_pairs(name, uris), tokenizer, num_positions)
        right = is_right(model, tokenizer, pairs, ALONE.device)
        found[name] = pair_scores(pairs, right).accuracy.value
    return found


Curve = list[Line]
"""The runs of one contestant with one budget, one for each seed."""


def last(curve: Curve, score: str) -> list[float]:
    """Return each seed's score at the end of its run."""
    return [float(line["points"][-1][score]) for line in curve]


def seconds_to(loss: float, points: Sequence[dict[str, float]]) -> float:
    """Return when the loss is reached first; at the first point if it is lower there already.

    Between two points it is linear in the logarithm of time. Infinity if it is never reached.
    """
    reached = next((n for n, p in enumerate(points) if p["masked_lm_loss"] <= loss), None)
    if reached is None:
        return math.inf
    two = points[max(reached - 1, 0) : reached + 1][::-1]
    losses, logs = [p["masked_lm_loss"] for p in two], [math.log(p["cpu_s"]) for p in two]
    return math.exp(np.interp(loss, losses, logs))


def curves_of(lines: Iterable[Line]) -> list[Curve]:
    """Return the runs by name and budget, in the order in which each occurs first."""
    found: dict[tuple[str, str], dict[int, Line]] = {}
    for line in lines:
        found.setdefault((line["name"], budget_of(line)), {})[line["seed"]] = line
    return [list(by_seed.values()) for by_seed in found.values()]


def budget_of(line: Line) -> str:
    """Return what a run could spend, with its unit."""
    seconds = line["budget_s"]
    return f"{seconds:g} s" if seconds else f"{line['num_steps']:,} updates"


def is_peer(curve: Curve) -> bool:
    """Return whether the runs are Hugging Face's."""
    return "optimizer" in curve[0]["contestant"]


def tuned_peer(curves: Sequence[Curve]) -> Curve | None:
    """Return the best peer of the most CPU seconds, of those with the most seeds; or None."""

    def order(curve: Curve) -> tuple[float, ...]:
        loss = float(np.mean(last(curve, "masked_lm_loss")))
        return -curve[0]["budget_s"], -len(curve), loss

    timed = (curve for curve in curves if is_peer(curve) and curve[0]["budget_s"])
    return min(timed, key=order, default=None)


def mean_and_reach(values: Sequence[float]) -> str:
    """Return the mean with how far its 95 % t interval reaches; the mean alone of one value."""
    from scipy.stats import t

    mean = f"{np.mean(values):.3f}"
    if len(values) < 2 or not np.isfinite(values).all():
        return mean
    reach = t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    return f"{mean} ± {reach:.3f}"


def shown(lines: Sequence[Line]) -> str:
    """Return all curves in Markdown."""
    curves = curves_of(lines)
    tuned = tuned_peer(curves)
    sets = sorted({name for line in lines for name in line["minimal_pairs"]})
    rows: list[list[object]] = []
    for curve in curves:
        updates, pieces = (np.mean(last(curve, name)) for name in ("step", "pieces"))
        row: list[object] = [curve[0]["name"], budget_of(curve[0]), len(curve)]
        row += [f"{np.mean(last(curve, 'cpu_s')):,.0f}", f"{updates:,.0f}", f"{pieces / 1e6:.2f}"]
        row += [mean_and_reach(last(curve, n)) for n in ("masked_lm_loss", "masked_lm_accuracy")]
        for name in sets:
            of_set = [line["minimal_pairs"].get(name) for line in curve]
            row.append("" if None in of_set else mean_and_reach(of_set))
        is_compared = curve[0]["budget_s"] and not is_peer(curve)
        rows.append([*row, _ratio(curve, tuned) if tuned and is_compared else ""])
    head = ["contestant", "budget", "seeds", "CPU s", "updates", "million pieces"]
    head += ["loss at the end", "accuracy", *sets, "share of the peer's CPU s to its loss"]
    parts = [harness.table(head, rows)]
    parts.append(f"unigram loss {lines[0]['unigram_nats']:.3f}; ± is the 95 % t interval of seeds")
    if unfinished := [said for line in lines if (said := _said_if_unfinished(line))]:
        parts.append("ended early, budget or schedule unused: " + "; ".join(unfinished))
    return "\n\n".join(parts)


def draw(lines: Sequence[Line]) -> Figure:
    """Return the held-out loss against CPU seconds: the mean of each curve's seeds.

    A thin line is the way, a dot the end. What differs only in its budget has one color.
    """
    figure = Figure((9, 4.5), layout="constrained")
    axes = figure.subplots()
    colors: dict[str, str] = {}
    for curve in curves_of(lines):
        name = str(curve[0]["name"])
        label = None if name in colors else name
        color = colors.setdefault(name, f"C{len(colors)}")
        ways = [[(p["cpu_s"], p["masked_lm_loss"]) for p in line["points"]] for line in curve]
        seconds, losses = np.mean([way[-min(map(len, ways)) :] for way in ways], axis=0).T
        axes.plot(
            seconds, losses, "--" if is_peer(curve) else "-", color=color, lw=0.8, label=label
        )
        axes.plot(seconds[-1:], losses[-1:], "o", color=color, ms=5)
    unigram = lines[0]["unigram_nats"]
    axes.axhline(unigram, color="tab:gray", linestyle=":", label="unigram")
    axes.set(xscale="log", xlabel="CPU seconds", ylabel="held-out masked LM loss, nats")
    axes.set_ylim(top=unigram + 1)  # the first updates of a peer are above
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def _ratio(curve: Curve, tuned: Curve) -> str:
    loss = float(np.mean(last(tuned, "masked_lm_loss")))
    ratios = [seconds_to(loss, line["points"]) / tuned[0]["budget_s"] for line in curve]
    return mean_and_reach(ratios) if np.isfinite(ratios).all() else "not reached by all seeds"


def _said_if_unfinished(line: Line) -> str:
    step, seconds = line["points"][-1]["step"], line["points"][-1]["cpu_s"]
    budget = line["budget_s"] or seconds
    if min(step / line["num_steps"], seconds / budget) >= _UNFINISHED:
        return ""
    return (
        f"{line['name']}, seed {line['seed']}: {step} of {line['num_steps']} updates in "
        f"{seconds:.1f} of {budget:g} s"
    )


def read_lines(path: Path) -> list[Line]:
    """Return the runs of a results file, evaluated on the same examples; none without a file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if len({(line["examples"], line["num_held_out"]) for line in lines}) > 1:
        sys.exit(f"{path} has runs on several held-out examples: give each a folder by --results")
    return lines


def main() -> None:
    """Run the contestants, one after the other; print the table."""
    parser = harness.arguments(__doc__)
    parser.add_argument("--examples", help="folder of a result of the stage examples")
    parser.add_argument("--recipe", default="tiny", help="its model, and what ours changes")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--seconds", type=float, default=240.0, help="the budget of a run")
    budget.add_argument("--updates", type=int, help="the same, in updates")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--peers", nargs="*", default=[], help="OPTIMIZER or OPTIMIZER,RATE,BATCH")
    parser.add_argument("--ours", nargs="*", default=[], help="'NAME: section.field=value ...'")
    parser.add_argument("--held-out", type=int, default=10_000, help="examples of an evaluation")
    parser.add_argument("--pairs", default="", help="folder with sets of minimal pairs to score")
    parser.add_argument("--show", action="store_true", help="only the table, without a run")
    options = parser.parse_args()
    path = options.results / "learning.jsonl"
    if not options.show:
        if not options.examples:
            parser.error("--examples says what to learn from; --show needs no examples")
        text = _held_out_text(options, _shards(options, "held_out"))
        if not all(text.items() <= line.items() for line in read_lines(path)):
            parser.error(f"{path} has runs on other held-out examples: name another --results")
        options.results.mkdir(parents=True, exist_ok=True)
        run_all(options, path)
    if not (lines := read_lines(path)):
        sys.exit(f"{path} has no runs")
    print(shown(lines))
    with rc_context({"svg.hashsalt": "learning", "svg.fonttype": "none"}):
        draw(lines).savefig(options.results / "learning.svg", metadata={"Date": None})


def run_all(options: argparse.Namespace, path: Path) -> None:
    """Run each contestant with each seed, the peers to be searched with the first at all rates."""

    def losses(contestant: Ours | Peer, seeds: Sequence[int]) -> list[float]:
        found = []
        for seed in seeds:
            line = harness.alone(learn, Run(contestant, seed, options))
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")
            found.append(float(line["points"][-1]["masked_lm_loss"]))
        return found

    for text in options.ours:
        losses(Ours.parse(text), options.seeds)
    first, *others = options.seeds
    for text in options.peers:
        optimizer, *given = text.split(",")
        if given:
            losses(Peer(optimizer, float(given[0]), int(given[1])), options.seeds)
        else:
            peers = [Peer(optimizer, rate, SEARCHED_BATCH_SIZE) for rate in RATES[optimizer]]
            losses(min(peers, key=lambda peer: losses(peer, [first])[0]), others)


if __name__ == "__main__":
    main()
