"""gRPC server: services, request handling, logs and metrics."""
