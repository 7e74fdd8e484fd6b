"""Descriptors of all services for reflection, including those of the inference protocol."""

from __future__ import annotations

from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from presage.serving.oip import messages
from presage.serving.v1 import prediction_pb2


def descriptors() -> descriptor_pool.DescriptorPool:
    """Return a pool with only the files of the services on the port."""
    pool = descriptor_pool.DescriptorPool()
    for file in (
        prediction_pb2.DESCRIPTOR, messages.FILE, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR
    ):  # fmt: skip
        pool.AddSerializedFile(file.serialized_pb)
    return pool
