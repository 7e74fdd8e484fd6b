"""HTTP/JSON for clients without gRPC: the same methods, by the JSON mapping of protobuf."""
