"""Imported by the process that parties are forked from: what commands import on the way besides what is asked for.

The first optimiser alone imports 850 modules. It is done once here, and not in every process.
"""

from __future__ import annotations

import gc
from importlib import import_module

_MODULES = (
    "scripts.bench.faulty",
    "splitvfl.app.console",
    "splitvfl.app.deployment",
    "splitvfl.app.experiment",
    "splitvfl.attacks",
    "splitvfl.defenses",
    "splitvfl.leakage.own_columns",
    "splitvfl.models",
    "splitvfl.report.findings",
    "splitvfl.report.tables",
    "grpc._channel",
    "grpc._server",
    "pyarrow.pandas_compat",
    "sklearn.datasets",
    "tensorboard.compat.proto.event_pb2",
    "tensorboard.summary.writer.record_writer",
    "torch._dynamo",
    "torch.utils.tensorboard",
    "torch.utils.serialization.config",
)

# Nothing that is imported is garbage, nor becomes it in who is forked: each process would search 400,000 objects in
# vain, and copy every page that they lie on.
gc.disable()
for _module in _MODULES:
    import_module(_module)
import_module("splitvfl.cli").main(["--version"])  # builds all commands
gc.freeze()
gc.set_threshold(2000, 20, 50)
gc.enable()
