"""
A PyTorch classifier, from training to reliable answers
=======================================================

Nothing about the network has to change. One pass over a loader collects its logits and
embeddings, a head learns from them, and a module behind the network answers at
inference, on whatever device the network is on.
"""

# %%
# A network
# ---------
# Any ``torch.nn.Module`` that ends in a linear layer will do. This one learns
# handwritten digits in a second or two.

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import atypicality as aty

torch.manual_seed(0)
X, y = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
data = TensorDataset(X.float() / 16, y)
train, calibration, test = torch.utils.data.random_split(data, [700, 700, 397])

network = nn.Sequential(
    nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10)
)
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
for _ in range(40):
    for inputs, labels in DataLoader(train, batch_size=128, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs), labels).backward()
        optimizer.step()

# %%
# Collect
# -------
# :func:`~atypicality.collect` finds the last linear layer by itself and keeps what goes
# in (embeddings) and what comes out (logits). With ``out=`` it writes to disk, and goes
# on where it was stopped.

outputs = {
    name: aty.collect(network, DataLoader(part, batch_size=256))
    for name, part in {"train": train, "calibration": calibration, "test": test}.items()
}
print(outputs["test"])

# %%
# A head
# ------

head = aty.ReliabilityHead().fit(
    train=outputs["train"], calibration=outputs["calibration"]
)
print(head.summary())
assert head.metrics_["after"]["nll"] < head.metrics_["before"]["nll"]

# %%
# Behind the network
# ------------------
# The head becomes a module: it has no parameters to train, moves with ``.to(device)``,
# and gives the numbers of ``head.predict``. ``behind`` puts it behind the network:
# images in, everything the head says about them out.

reliable = aty.ReliabilityModule.from_head(head).behind(network).eval()
images, labels = next(iter(DataLoader(test, batch_size=len(test))))
answer, said = reliable(images), head.predict(outputs["test"])
difference = np.abs(answer.proba.numpy() - said.proba).max()
print(f"largest difference to head.predict: {difference:.1e}")
print(f"accuracy {(answer.label == labels).double().mean():.3f}")
assert difference < 1e-5

# %%
# Digits that are rarer than half of the held-out ones are wrong more often.

wrong, rare = said.label != outputs["test"].labels, said.atypicality_quantile > 0.5
print(f"wrong: {wrong[~rare].mean():.1%} of typical, {wrong[rare].mean():.1%} of rare")
assert wrong[rare].mean() > wrong[~rare].mean()
evaluation = aty.evaluate({"head": head}, outputs["test"])
aty.charts.atypicality_distribution(evaluation, n_bins=20)
