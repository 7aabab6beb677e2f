"""A fitted head elsewhere: bundle, ONNX file, torch module and model card hold its parameters and run `formula`."""
