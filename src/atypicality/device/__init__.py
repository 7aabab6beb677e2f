"""The same work where the arrays lie: on an accelerator, in the array API namespace of the caller's arrays.

Estimators and metrics look whether their first array is on a device (`atypicality.arrays.on_device`) and, if so, call
the functions of this package. Those take arrays of torch, CuPy or any other library that `array_api_compat` knows,
import none of them, and run on the CPU too, which is how they are tested. What is small (class means, a covariance,
coefficients, thresholds) comes back to the host, where the estimators keep it: an estimator fitted on a device and one
fitted on the CPU are the same kind of object.
"""
