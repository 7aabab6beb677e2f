"""
Ship a head: a folder, or one ONNX file
=======================================

A fitted head is small and travels without pickles: as a folder of numbers and text that
is checked when it is opened, or as an ONNX graph that runs where there is no Python.
"""

# %%
# A folder
# --------
# ``save`` writes the numbers (safetensors), their meaning (JSON) and a model card for
# people. Nothing in it can run code.

import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

import atypicality as aty

train, calibration, test = aty.datasets.load_fashion_mnist_lt()
head = aty.ReliabilityHead().fit(train=train, calibration=calibration)

workspace = tempfile.TemporaryDirectory()
folder = Path(workspace.name) / "my-head"
head.save(folder)
for file in sorted(folder.iterdir()):
    print(f"{file.stat().st_size:8,d} bytes  {file.name}")

# %%
# What comes back is the same head to the last bit.

said, again = head.predict(test), aty.load(folder).predict(test)
assert np.array_equal(said.proba, again.proba)
assert np.array_equal(said.prediction_set, again.prediction_set)
print("saved, loaded, and equal in all", said.proba.size, "probabilities")

# %%
# A damaged folder is refused
# ---------------------------
# One byte is changed, as a broken disk or somebody's hand might do.

numbers = max(folder.glob("*.safetensors"))
content = bytearray(numbers.read_bytes())
content[-1] ^= 1
numbers.write_bytes(content)
try:
    aty.load(folder)
except aty.BundleError as error:
    print(error)
else:
    raise AssertionError("a damaged bundle must not load")

# %%
# One ONNX file
# -------------
# The graph is compared with the head before it is written. Any runtime for ONNX can now
# answer for new logits and embeddings; what it says about a row is what Python says.

file = Path(workspace.name) / "head.onnx"
head.export_onnx(file)
session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
wanted = ["probabilities", "prediction_set"]
inputs = {"logits": test.logits, "embeddings": test.embeddings.astype(np.float32)}
probabilities, sets = session.run(wanted, inputs)

difference = np.abs(probabilities - said.proba).max()
other_sets = (sets != said.prediction_set).any(axis=1).sum()
print(f"{file.stat().st_size:,d} bytes")
print(f"largest difference in probability {difference:.1e}")
print(f"sets that differ: {other_sets} of {len(sets):,}")
assert difference < 1e-5
assert other_sets == 0
workspace.cleanup()

# %%
# What the shipped head guarantees, measured
# ------------------------------------------

kinds = aty.evaluate({"shipped head": (probabilities, sets)}, test, train=head.density_)
aty.charts.coverage_by_group(kinds)
