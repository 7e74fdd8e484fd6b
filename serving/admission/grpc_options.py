"""Options of gRPC that bound what one connection can cost a server."""

from __future__ import annotations

ChannelOptions = tuple[tuple[str, int], ...]


def bounded_options(most_message_bytes: int) -> ChannelOptions:
    """Return the options that every server has, which takes messages of at most so many bytes."""
    return (
        ("grpc.max_receive_message_length", most_message_bytes),
        # What gRPC cancels by itself, without a reason: far beyond what Backlog refuses with one.
        ("grpc.server.max_pending_requests", 10_000),
        ("grpc.server.max_pending_requests_hard_limit", 20_000),
        # Of each connection, for what is read; by itself gRPC takes up to 4 MiB.
        ("grpc.experimental.tcp_max_read_chunk_size", 64 * 1024),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_concurrent_streams", 256),  # of one connection; a client keeps the others back
        # Who connects and says nothing.
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    )
