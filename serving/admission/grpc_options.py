"""gRPC channel options that limit the cost of one connection for a server."""

from __future__ import annotations

ChannelOptions = tuple[tuple[str, int], ...]


def bounded_options(max_message_bytes: int) -> ChannelOptions:
    """Return the gRPC options of a server that accepts messages of at most that size."""
    return (
        ("grpc.max_receive_message_length", max_message_bytes),
        # Beyond these gRPC cancels calls without a reason; Backlog rejects them far earlier.
        ("grpc.server.max_pending_requests", 10_000),
        ("grpc.server.max_pending_requests_hard_limit", 20_000),
        # Read buffer of each connection; gRPC's default is up to 4 MiB.
        ("grpc.experimental.tcp_max_read_chunk_size", 64 * 1024),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_concurrent_streams", 256),  # per connection; clients queue further calls
        # Connections without a handshake.
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    )
