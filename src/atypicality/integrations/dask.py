"""Densities and recalibration on a Dask cluster: rows stay with the workers, statistics come to the client.

`fit` and `atypicality` take a Dask array or a list of files where the estimators' own methods take an array. The
work runs on the `client` that is given, else on the current one, else on a local cluster that ends with the call.
Parts are read in place, merged by a tree on the workers, and solved here. The tree depends on how the rows are
cut and on nothing else, so neither the number of workers nor the order in which they finish, nor a worker that dies
on the way, changes a digit of the result.

Files are opened by the workers under the paths as given: a file system that all of them share is assumed.

Dask runs whatever code its scheduler is sent: use it with clusters you trust, over TLS.
"""

import contextlib
from typing import Any

import numpy as np

from atypicality.density import distributed
from atypicality.density.family import DensityFamily
from atypicality.density.gaussian import GaussianAtypicality
from atypicality.density.neighbors import NeighborAtypicality
from atypicality.estimators import check_is_fitted
from atypicality.integrations.dask_cluster import (
    PartPlace,
    compute,
    connected,
    known_client,
    lazy_array,
    shared,
    task,
    tree,
)
from atypicality.integrations.dask_neighbors import ClusterNeighborAtypicality, scores_of
from atypicality.integrations.dask_recalibration import fit_recalibrator
from atypicality.integrations.dask_rows import DaskRows, aligned, is_paths, read, rows_of
from atypicality.recalibration.base import Recalibrator
from atypicality.recalibration.class_prior import is_estimated

__all__ = ["ClusterNeighborAtypicality", "atypicality", "fit", "predict_proba"]


def fit(
    estimator: Any,
    data: Any,
    labels: Any = None,
    *,
    atypicality: Any = None,
    class_log_density: Any = None,
    client: Any = None,
) -> Any:
    """A fitted copy of an estimator, from rows on a cluster.

    Parameters
    ----------
    estimator : GaussianAtypicality, NeighborAtypicality, DensityFamily, TemperatureScaling, VectorScaling or \
AtypicalityAwareRecalibration
        It is not changed. A `DensityFamily` is what a head chooses its density from, as `train`.
    data : dask.array of shape (n, d), or list of paths
        Embeddings, or logits for a recalibrator. Paths are .npy files, or files and folders of `ModelOutputs`. The
        rows of a Dask array may be in chunks of any size; columns are brought into one chunk.
    labels : dask.array or array-like of shape (n,), or list of .npy paths, optional
        Files of `ModelOutputs` hold their own.
    atypicality : like `labels`, optional
        For `AtypicalityAwareRecalibration`.
    class_log_density : dask.array or array-like of shape (n, k), or list of .npy paths, optional
        For `AtypicalityAwareRecalibration`.
    client : distributed.Client, optional
        The current one by default, or a local cluster for this call.

    Returns
    -------
    estimator
        Fitted, of the same kind, and independent of the cluster: it can score on this machine and be saved. A
        `NeighborAtypicality`, which is its training rows, becomes a `ClusterNeighborAtypicality`.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from atypicality import GaussianAtypicality
    >>> x, y = np.random.default_rng(0).normal(size=(600, 4)), np.arange(600) % 3
    >>> gaussian = fit(GaussianAtypicality(), da.from_array(x, chunks=(100, 2)), y)
    >>> bool(np.allclose(gaussian.covariance_, GaussianAtypicality().fit(x, y).covariance_, rtol=1e-12))
    True
    """
    if isinstance(estimator, Recalibrator):
        extra = {"atypicality": atypicality, "class_log_density": class_log_density}
        with connected(client) as own:
            return fit_recalibrator(estimator, data, labels, extra, own)
    if isinstance(estimator, NeighborAtypicality):
        return ClusterNeighborAtypicality(**estimator.get_params()).fit(data, labels, client=client)
    if not isinstance(estimator, (GaussianAtypicality, DensityFamily)):
        raise TypeError(
            "estimator must be a GaussianAtypicality, a NeighborAtypicality, a DensityFamily or a recalibrator; got "
            f"{type(estimator).__name__}."
        )
    if isinstance(estimator, GaussianAtypicality):
        estimator._check_parameters()
    with connected(client) as own:
        rows = rows_of(data, "embeddings", own)
        if rows.lazy:  # statistics have a matrix of the width squared: parts should not be smaller than that
            rows = rows_of(data, "embeddings", own, minimum=2 * rows.width)
        parts = zip(rows.values, aligned(labels, "labels", rows, own), rows.places, strict=True)
        statistics = compute(own, tree([_gather.later(estimator, *part) for part in parts], distributed.merge))
    return distributed.finish(estimator, statistics)


def atypicality(estimator: Any, embeddings: Any, *, client: Any = None) -> Any:
    """Atypicality (n,) of rows on a cluster, larger is rarer.

    Parameters
    ----------
    estimator : GaussianAtypicality or NeighborAtypicality
        Fitted, here or by `fit`.
    embeddings : dask.array of shape (n, d), or list of paths
    client : distributed.Client, optional

    Returns
    -------
    dask.array or ndarray of shape (n,)
        A lazy Dask array for a Dask array; NumPy for files, 8 bytes for each row.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from atypicality import GaussianAtypicality
    >>> x, y = np.random.default_rng(0).normal(size=(600, 4)), np.arange(600) % 3
    >>> gaussian = GaussianAtypicality().fit(x, y)
    >>> scores = atypicality(gaussian, da.from_array(x, chunks=(100, 4)))
    >>> bool(np.allclose(scores.compute(), gaussian.atypicality(x)))
    True
    """
    if isinstance(estimator, ClusterNeighborAtypicality):
        return estimator.atypicality(embeddings, client=client)
    if not isinstance(estimator, (GaussianAtypicality, NeighborAtypicality)):
        raise TypeError(
            f"estimator must be a GaussianAtypicality or a NeighborAtypicality; got {type(estimator).__name__}."
        )
    check_is_fitted(estimator)

    def score(rows: DaskRows, known: Any) -> list[Any]:
        node = shared(known, estimator)
        return [_score.later(node, *part) for part in zip(rows.values, rows.places, strict=True)]

    return scores_of(score, embeddings, estimator.n_features_in_, client)


def predict_proba(
    recalibrator: Recalibrator,
    logits: Any,
    *,
    atypicality: Any = None,
    class_log_density: Any = None,
    client: Any = None,
) -> Any:
    """Recalibrated probabilities (n, k) of rows on a cluster, as a lazy Dask array.

    Parameters
    ----------
    recalibrator : fitted recalibrator
    logits : dask.array of shape (n, k), or list of paths
    atypicality, class_log_density : dask.array, array-like or list of .npy paths, optional
        What the recalibrator was fitted with.
    client : distributed.Client, optional

    Returns
    -------
    dask.array of shape (n, k)
        Lazy for files, too: it is as large as the logits.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from atypicality import TemperatureScaling
    >>> logits, labels = np.eye(3)[np.arange(60) % 3] * 4, np.where(np.arange(60) % 4, np.arange(60) % 3, 0)
    >>> scaling = TemperatureScaling().fit(logits, labels)
    >>> predict_proba(scaling, da.from_array(logits, chunks=(20, 3))).compute().shape
    (60, 3)
    """
    check_is_fitted(recalibrator)
    if is_estimated(getattr(recalibrator, "class_prior", None)):
        raise ValueError(
            'class_prior="estimate" needs all rows at once, and rows on a cluster are predicted part by part. Estimate '
            "the mix from some of them with estimate_class_mix, and state it as class_prior."
        )
    known, given = known_client(client), (logits, atypicality, class_log_density)
    with connected(known) if any(map(is_paths, given)) else contextlib.nullcontext() as reader:
        rows = rows_of(logits, "logits", reader)
        uses = atypicality is not None or (rows.outputs and "atypicality" in getattr(recalibrator, "covariates", ()))
        dense = class_log_density is not None
        rarity = aligned(atypicality, "atypicality", rows, reader, wanted=uses)
        density = aligned(class_log_density, "class_log_density", rows, reader, wanted=dense)
    node, each = shared(known, recalibrator), zip(rows.values, rarity, density, rows.places, strict=True)
    dtype = np.result_type(rows.dtype, np.float32 if rows.dtype.kind == "f" else np.float64)
    parts = [_recalibrate.later(node, *part) for part in each]
    return lazy_array(parts, rows.lengths, (recalibrator.n_classes_,), dtype)


@task
def _gather(estimator: Any, value: Any, labels: Any, place: PartPlace) -> Any:
    with place.named():
        return distributed.part_statistics(estimator, read(value), read(labels))


@task
def _score(estimator: Any, value: Any, place: PartPlace) -> Any:
    with place.named():
        return estimator.atypicality(read(value))


@task
def _recalibrate(recalibrator: Any, value: Any, atypicality: Any, class_log_density: Any, place: PartPlace) -> Any:
    with place.named():
        return recalibrator.predict_proba(
            read(value), atypicality=read(atypicality), class_log_density=read(class_log_density)
        )
