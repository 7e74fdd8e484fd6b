"""gRPC server of an arbiter."""
