"""Mean distance to the five nearest training rows, fit included."""

import numpy as np

from atypicality import NeighborAtypicality
from benchmarks import authors
from benchmarks.data import clusters, text_of
from benchmarks.rows import AUTHORS, Peer, Row, contest

N_NEIGHBORS, TILE, CHECKED = 5, 8192, 100


def rows(quick: bool = False) -> list[Row]:
    if quick:
        return size_rows(5000, 200, 32, 50, target=1.5)
    return size_rows(100_000, 2000, 512, 1000, target=1.5) + size_rows(40_000, 1000, 256, 200, target=1.8)


def size_rows(n_train: int, n_queries: int, width: int, n_clusters: int, *, target: float) -> list[Row]:
    """Training rows and queries around the same centres, `target` times as fast as scikit-learn."""
    train, _, queries = clusters(n_train, n_queries, width, n_clusters)
    expected = exact(queries[:CHECKED], train)
    tile = np.empty((n_queries, TILE), np.float32)

    def bare() -> None:
        for start in range(0, n_train, TILE):
            part = train[start : start + TILE]
            np.matmul(queries, part.T, out=tile[:, : len(part)])

    return contest(
        "5 nearest, fit and score",
        f"{n_queries:,} queries, {text_of(*train.shape, 'float32')}, {n_clusters:,} clusters",
        lambda: NeighborAtypicality(N_NEIGHBORS).fit(train).atypicality(queries),
        [
            Peer(
                "scikit-learn",
                'NearestNeighbors(algorithm="brute")',
                scikit(train, queries),
                target=f"ratio >= {target:g}",
            ),
            Peer(
                "faiss-cpu",
                "IndexFlatL2",
                faiss_flat(train, queries),
                if_slower="faiss ranks and returns float32 distances, whose error stands beside ours; "
                "ours are exact: candidates are ranked again in float64",
            ),
            Peer(AUTHORS, "torch.cdist, topk", lambda: authors.neighbor_distances(queries, train)),
        ],
        bare=bare,
        bare_of="float32 product",
        accuracy="largest relative error",
        error=lambda found: float(np.abs(found[:CHECKED] / expected - 1).max()),
        slack=1e-12,
        repeats=2,
    )


def exact(queries: np.ndarray, train: np.ndarray) -> np.ndarray:
    """By differences in float64; no product that could cancel."""
    found = []
    for query in queries.astype(np.float64):
        squares = sum(((train[:, j : j + 64] - query[j : j + 64]) ** 2).sum(axis=1) for j in range(0, query.size, 64))
        found.append(np.sqrt(np.partition(squares, N_NEIGHBORS)[:N_NEIGHBORS]).mean())
    return np.array(found)


def scikit(train: np.ndarray, queries: np.ndarray):
    from sklearn.neighbors import NearestNeighbors

    return lambda: (
        NearestNeighbors(n_neighbors=N_NEIGHBORS, algorithm="brute").fit(train).kneighbors(queries)[0].mean(1)
    )


def faiss_flat(train: np.ndarray, queries: np.ndarray):
    def run() -> np.ndarray:
        import faiss

        index = faiss.IndexFlatL2(train.shape[1])
        index.add(train)
        return np.sqrt(np.maximum(index.search(queries, N_NEIGHBORS)[0], 0)).mean(axis=1)

    return run
