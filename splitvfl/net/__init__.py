"""Transport between processes: identities, links, and the driver of one party's half."""

import os

# gRPC's core writes to the terminal, past Python's logging, about every connection that fails; what matters comes as an
# error. It reads this once, before its first use.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
