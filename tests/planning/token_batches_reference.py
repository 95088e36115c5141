"""docs/design/token-batches.md once more: one sample, one batch and one try at a time, in plain Python."""

import heapq

from planning import reference


def planned(lengths, max_tokens, per_step, *, padded=True, cost=(1, 0), long="error", max_samples=None, seed=0):
    """The batches of a window in order, each a list of sample numbers; ValueError for a sample over the budget."""
    if long == "error" and any(length > max_tokens for length in lengths):
        raise ValueError("over the budget")
    counted = [max(1, length) for length in lengths]
    kept = [one for one in range(len(lengths)) if counted[one] <= max_tokens or long == "alone"]
    kept.sort(key=lambda one: (-counted[one], one))
    sizes = [counted[one] for one in kept]
    units = cost_units(sizes, *cost)
    most = max_samples or len(sizes)
    if padded:
        batches = cut(sizes, max_tokens, per_step, most)
        costs = [len(batch) * units[batch[0]] if batch else 0 for batch in batches]
    else:
        batches = dealt(sizes, units, max_tokens, per_step, most)
        costs = [sum(units[one] for one in batch) for batch in batches]
    by_cost = sorted(range(len(batches)), key=lambda number: (-costs[number], number))
    return [[kept[one] for one in batches[by_cost[place]]] for place in places(len(batches), per_step, seed)]


def cost_units(sizes, linear, square):
    if square == 0:
        return sizes
    greatest = max(linear, square)
    costs = [size * (size * (square / greatest) + linear / greatest) for size in sizes]
    return [1 + int(cost / max(costs) * 2.0**38) for cost in costs]


def whole(batches, per_step):
    return (batches + per_step - 1) // per_step * per_step


def greedy(sizes, budget, most, kept):
    """The samples cut in turn; the first `kept` batches may take the budget, those behind them one token less."""
    batches, first = [], 0
    while first < len(sizes):
        allowed = budget if len(batches) < kept else budget - 1
        count = min(most, max(1, allowed // sizes[first]))
        batches.append(list(range(first, min(first + count, len(sizes)))))
        first += count
    return batches


def cut(sizes, max_tokens, per_step, most):
    wanted = whole(len(greedy(sizes, max_tokens, most, len(sizes))), per_step)
    if wanted >= len(sizes):
        return [[one] for one in range(len(sizes))] + [[] for _ in range(wanted - len(sizes))]
    budget = 0
    while len(greedy(sizes, budget, most, len(sizes))) > wanted:
        budget += 1
    kept = 0
    while len(greedy(sizes, budget, most, kept)) > wanted:
        kept += 1
    return greedy(sizes, budget, most, kept)


def dealt(sizes, units, max_tokens, per_step, most):
    alone = sum(size > max_tokens for size in sizes)
    rest = sizes[alone:]
    lower = [sum(rest) / max_tokens, len(rest) / most if rest else 0, sum(size > max_tokens // 2 for size in rest)]
    first = min(steps for steps in range(len(sizes) + 2) if all(steps * per_step - alone >= bound for bound in lower))
    last = whole(len(sizes), per_step) // per_step

    def attempt(steps):
        for measure in (units, sizes):
            batches = deal(measure, sizes, alone, steps * per_step, max_tokens, most)
            if batches:
                return batches
        return None

    if not sizes:
        return []
    failed, tried, further = first - 1, first, 1
    while not attempt(tried):
        failed, tried, further = tried, min(last, tried + further), further * 2
    while tried - failed > 1:
        middle = (failed + 1 + tried) // 2
        if attempt(middle):
            tried = middle
        else:
            failed = middle
    return attempt(tried)


def deal(measure, sizes, alone, num_batches, max_tokens, most):
    """Each sample to the batch that has least so far; None where that is over the budget."""
    batches = [[one] for one in range(alone)] + [[] for _ in range(num_batches - alone)]
    waiting = [(0, number) for number in range(alone, num_batches)]
    for one in range(alone, len(sizes)):
        if not waiting:
            return None
        load, number = heapq.heappop(waiting)
        batches[number].append(one)
        if sum(sizes[held] for held in batches[number]) > max_tokens:
            return None
        if len(batches[number]) < most:
            heapq.heappush(waiting, (load + measure[one], number))
    return batches


def places(num_batches, per_step, seed):
    """Which batch, counted from the dearest, stands at each place."""
    rank = reference.whole_or_some(num_batches, reference.derive_seed(seed, "batches"), range(num_batches))
    num_steps = num_batches // per_step
    steps = reference.whole_or_some(num_steps, reference.derive_seed(seed, "steps"), range(num_steps))
    order = []
    for step in steps:
        order += sorted(range(step * per_step, (step + 1) * per_step), key=lambda place: rank[place])
    return order
