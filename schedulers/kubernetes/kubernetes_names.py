"""What Presage and a cluster's users call things in Kubernetes."""

from __future__ import annotations

GATE = "presage.dev/gang"  # scheduling gate of a pod that waits for its gang's plan

# A gang, as sigs.k8s.io/scheduler-plugins defines it.
POD_GROUP_GROUP = "scheduling.x-k8s.io"
POD_GROUP_VERSION = "v1alpha1"
POD_GROUP_PLURAL = "podgroups"
POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"  # of a pod: the name of its PodGroup

# Annotations that users write, on a pod or its PodGroup.
JOB = "presage.dev/job"  # features of a pod's job, as `presage features --json` prints them
CLASS = "presage.dev/class"  # "latency-sensitive" goes before "best-effort", the default

# Annotations that the gate and the extender write.
PLAN = "presage.dev/plan"  # of a PodGroup: where each of its pods is to be
RESERVED = "presage.dev/reserved"  # of a PodGroup: devices that it keeps, and until when
ROLLED_BACK = "presage.dev/rolled-back"  # of a PodGroup: how often, and when last
DEVICES = "presage.dev/devices"  # of a pod: the devices it is to have, as "n0/0,n0/1"
BIND_BY = "presage.dev/bind-by"  # of a pod of no PodGroup: when it is given up

# Labels of nodes: those of NVIDIA's GPU feature discovery, and what only people know.
PRODUCT = "nvidia.com/gpu.product"
MEMORY = "nvidia.com/gpu.memory"  # MiB of each device
REPLICAS = "nvidia.com/gpu.replicas"  # pods that may share a device
KIND = "presage.dev/device-kind"  # where the product's name does not say it
WITHIN = "presage.dev/within"  # how a node's devices are linked: nvswitch, pcie, ...
