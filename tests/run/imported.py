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
    "splitvfl.team.gpus",
    "splitvfl.team.workers",
    "encodings.idna",
    "grpc._channel",
    "grpc._server",
    "grpc._utilities",
    "importlib.readers",
    "pyarrow.pandas_compat",
    "sklearn.datasets.data",
    "sklearn.datasets.descr",
    "tensorboard.compat.proto.event_pb2",
    "tensorboard.plugins.hparams.plugin_data_pb2",
    "tensorboard.summary.writer.record_writer",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.utils.tensorboard",
    "torch.utils.serialization.config",
    # What tests bring along: pytest alone would take each process a tenth of a second.
    "pytest",
    "scripts.bench.faults",
    "splitvfl.net.certs",
    "tests.commands",
    "tests.run.parties",
)

_FILE = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:7000"}
  lab: {role: passive, columns: rest}
model: {name: mlp, bottom: [8], top_hidden: []}
defenses: [{name: isotropic, sigma: 1.0}]
attacks: [norm]
network: {listen: "127.0.0.1:7000", certificates: certs}
"""

# Nothing that is imported is garbage, nor becomes it in who is forked: each process would search 400,000 objects in
# vain, and copy every page that they lie on.
gc.disable()
for _module in _MODULES:
    import_module(_module)
import_module("splitvfl.cli").main(["--version"])  # builds all commands
# Reads one file: what does it builds the readers of all sections first.
import_module("splitvfl.config.sections").parse_config(_FILE, source="run.yaml")
gc.freeze()
gc.set_threshold(2000, 20, 50)
gc.enable()
