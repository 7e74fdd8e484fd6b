"""What reflection tells of the services, the inference protocol's private descriptors included."""

from __future__ import annotations

from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from presage.serving.oip import messages
from presage.serving.v1 import prediction_pb2


def descriptors() -> descriptor_pool.DescriptorPool:
    """A pool with the files of all services on the port, and of no other."""
    pool = descriptor_pool.DescriptorPool()
    for file in (
        prediction_pb2.DESCRIPTOR, messages.FILE, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR
    ):  # fmt: skip
        pool.AddSerializedFile(file.serialized_pb)
    return pool
