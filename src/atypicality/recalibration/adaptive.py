"""Adaptive temperature scaling: a temperature for every sample, read off its embedding by a small network."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atypicality import blocks
from atypicality.arrays import returns_like_input
from atypicality.estimators import check_is_fitted
from atypicality.formula import Given, LogitModel
from atypicality.recalibration.adaptive_network import Network, Targets, Training, train
from atypicality.recalibration.base import Errors, Inputs, Recalibrator
from atypicality.recalibration.solver import Problem
from atypicality.recalibration.temperature import fit_temperature
from atypicality.stored import Part, Record, kinds
from atypicality.validation import check_embeddings, check_finite, check_integer, check_number, require

__all__ = ["AdaptiveTemperatureScaling"]


class AdaptiveTemperatureScaling(Recalibrator):
    r"""Divide each row of logits by a temperature that a network reads off its embedding (AdaTS).

    A variational autoencoder with a Gaussian prior for each class learns a code of the embeddings; a small network on
    the code gives the temperature. They are trained together on the held-out rows: see
    `atypicality.recalibration.adaptive_network` for the loss. The temperature is positive, so the predicted class never
    changes. It starts from that of `TemperatureScaling`, so that logits of any scale are treated alike, and its
    cross-entropy has the same prior of one right and one wrong pseudo-row.

    Training needs torch (``pip install 'atypicality[torch]'``) and runs on the CPU; prediction needs NumPy only. The
    network has millions of parameters: expect a minute or more, and little gain over one temperature from few rows.

    Parameters
    ----------
    hidden : sequence of int, default=(1024, 512, 512)
        Widths of the encoder's layers; the decoder mirrors them.
    latent_dim : int, default=16
        Dimensions of the code.
    head : sequence of int, default=(128, 128)
        Widths of the layers that turn the code into a temperature.
    epochs : int, default=60
        Most passes over the rows; training ends earlier when the rows kept apart no longer gain.
    learning_rate : float, default=5e-4
        Of Adam.
    batch_size : int, default=128
    validation_fraction : float in [0, 1), default=0.1
        Share of the rows held out to select the epoch; with 0 the last epoch is taken.
    random_state : int, default=0
        Seed of initial weights, batches and codes. The global generators of torch and NumPy are not used.

    Attributes
    ----------
    temperature_ : float
        The single temperature that the network starts from.
    network_ : Network
        Encoder and head as NumPy arrays.
    errors_ : int
        Calibration rows whose label has not the largest logit.
    n_iter_ : int
        The epoch that was best; 0 means that no network was better than one temperature.

    References
    ----------
    Joy, Pinto, Lim, Torr, Dokania (2022). Sample-dependent adaptive temperature scaling for improved calibration.

    Examples
    --------
    >>> from atypicality.datasets.worlds import make_world
    >>> world = make_world(300, temperature=2.0)
    >>> scaling = AdaptiveTemperatureScaling(hidden=(32,), latent_dim=4, head=(8,), epochs=2)
    >>> scaling = scaling.fit(world.logits, world.labels, embeddings=world.embeddings)
    >>> bool((scaling.temperature(world.embeddings) > 0).all())
    True
    """

    temperature_: Annotated[float, kinds.Number(0, low_open=True)]
    network_: Annotated[Network, Part(Network)]
    errors_: Errors

    _device = False

    def __init__(
        self,
        *,
        hidden: Sequence[int] = (1024, 512, 512),
        latent_dim: int = 16,
        head: Sequence[int] = (128, 128),
        epochs: int = 60,
        learning_rate: float = 5e-4,
        batch_size: int = 128,
        validation_fraction: float = 0.1,
        random_state: int = 0,
    ) -> None:
        self.hidden = hidden
        self.latent_dim = latent_dim
        self.head = head
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.validation_fraction = validation_fraction
        self.random_state = random_state

    @returns_like_input
    def temperature(self, embeddings: ArrayLike) -> NDArray[np.float64]:
        """Temperature of every row, positive, of shape (n,), from embeddings of shape (n, d)."""
        check_is_fitted(self)
        return self._temperatures(check_embeddings(embeddings, width=self.network_.mean.size))

    def _fit(self, inputs: Inputs, labels: NDArray[np.intp], weight: NDArray[np.float64] | None) -> None:
        require("torch", extra="torch", feature=type(self).__name__)  # before any work
        training = self._training()
        embeddings = inputs.need_embeddings()
        check_finite(embeddings, "embeddings")
        problem = Problem(inputs.logits, labels, sample_weight=weight, pseudo_rows=True)
        solution = fit_temperature(problem)
        self._keep_errors(problem.n_errors, labels.size)
        self.temperature_ = 1 / float(solution.coefficients[0])
        scaled = blocks.empty(inputs.logits.shape)

        def scale(rows: slice) -> None:
            z = inputs.logits[rows].astype(np.float64)
            scaled[rows] = (z - z.max(axis=1, keepdims=True)) / self.temperature_

        blocks.for_rows(scale, len(labels), block=blocks.block_rows(8 * scaled.shape[1]))
        targets = Targets(labels, problem.rows.best, problem.rows.runner_up, problem.weights, problem.pseudo_weights)
        self.network_ = train(embeddings, scaled, targets, training)
        self._restore()

    def _restore(self) -> None:
        self.n_iter_ = self.network_.n_epochs

    _stored = Record(
        restore=_restore,
        hidden=kinds.TupleOf(kinds.Integer(1)),
        latent_dim=kinds.Integer(1),
        head=kinds.TupleOf(kinds.Integer(1)),
        epochs=kinds.Integer(1),
        learning_rate=kinds.Number(0),
        batch_size=kinds.Integer(1),
        validation_fraction=kinds.Number(0, 1),
        random_state=kinds.SEED,
    )

    def _training(self) -> Training:
        return Training(
            hidden=tuple(check_integer(width, "hidden", low=1) for width in self.hidden),
            latent_dim=check_integer(self.latent_dim, "latent_dim", low=1),
            head=tuple(check_integer(width, "head", low=1) for width in self.head),
            epochs=check_integer(self.epochs, "epochs", low=1),
            learning_rate=check_number(self.learning_rate, "learning_rate", low=0, low_open=True),
            batch_size=check_integer(self.batch_size, "batch_size", low=1),
            validation_fraction=check_number(
                self.validation_fraction, "validation_fraction", low=0, high=1, high_open=True
            ),
            seed=check_integer(self.random_state, "random_state", low=0),
        )

    def _temperatures(self, embeddings: NDArray[Any]) -> NDArray[np.float64]:
        result = np.empty(embeddings.shape[0])

        def score(rows: slice) -> None:
            check_finite(embeddings[rows], "embeddings", first_row=rows.start)
            result[rows] = self.temperature_ * self.network_.factor(embeddings[rows])

        widest = max(embeddings.shape[1], *(bias.size for _, bias in self.network_.encoder))
        blocks.for_rows(
            score, result.size, block=blocks.block_rows(4 * widest, budget=blocks.GEMM_BYTES), work=blocks.PRODUCTS
        )
        return result

    def formula(self) -> LogitModel:
        """The parameters of a prediction; see `atypicality.formula`."""
        return LogitModel(Given())

    def _columns(self, inputs: Inputs) -> dict[str, Any]:
        return {"multiplier": 1 / self._temperatures(inputs.need_embeddings(width=self.network_.mean.size))}
