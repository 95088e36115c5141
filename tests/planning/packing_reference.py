"""docs/design/packing.md once more: one document, one row and one token at a time, in plain Python."""

from planning import reference


def packed(lengths, capacity, strategy="best_fit", long="split", seed=0):
    """(rows, counts). A row is a list of (document, start, stop)."""
    kept, counts = [], {"dropped_documents": 0, "dropped_tokens": 0, "empty_documents": 0}
    for document, length in enumerate(lengths):
        if length == 0:
            counts["empty_documents"] += 1
        elif length > capacity and long == "drop":
            counts["dropped_documents"] += 1
            counts["dropped_tokens"] += length
        elif length > capacity and long == "error":
            raise ValueError(document)
        else:
            kept.append((document, length))
    if strategy == "concat":
        rows = concatenated(kept, capacity)
    else:
        pieces = [piece for document, length in kept for piece in cut(document, length, capacity)]
        rows = (best_fit if strategy == "best_fit" else first_fit)(pieces, capacity)
        rows = [sorted(rows[reference.permuted(len(rows), seed, place)]) for place in range(len(rows))]
    counts["split_documents"] = sum(
        sum(piece[0] == document for row in rows for piece in row) > 1 for document, _ in kept
    )
    return rows, counts


def cut(document, length, capacity):
    """Whole rows of a long document, and what is left."""
    start = 0
    while length - start > capacity:
        yield document, start, start + capacity
        start += capacity
    yield document, start, length


def room(row, capacity):
    return capacity - sum(stop - start for _, start, stop in row)


def first_fit(pieces, capacity):
    rows = []
    for piece in pieces:
        size = piece[2] - piece[1]
        for row in rows:
            if room(row, capacity) >= size:
                row.append(piece)
                break
        else:
            rows.append([piece])
    return rows


def best_fit(pieces, capacity):
    rows = []
    changed = []  # when each row got its last piece
    for now, piece in enumerate(sorted(pieces, key=lambda piece: piece[1] - piece[2])):  # stable: the longest first
        size = piece[2] - piece[1]
        fitting = [number for number, row in enumerate(rows) if room(row, capacity) >= size]
        if not fitting:
            rows.append([])
            changed.append(now)
            fitting = [len(rows) - 1]
        best = min(fitting, key=lambda number: (room(rows[number], capacity), changed[number]))
        rows[best].append(piece)
        changed[best] = now
    return rows


def concatenated(kept, capacity):
    tokens = [(document, place) for document, length in kept for place in range(length)]
    rows = []
    for begin in range(0, len(tokens), capacity):
        row = []
        for document, place in tokens[begin : begin + capacity]:
            if row and row[-1][0] == document:
                row[-1] = (document, row[-1][1], place + 1)
            else:
                row.append((document, place, place + 1))
        rows.append(row)
    return rows
