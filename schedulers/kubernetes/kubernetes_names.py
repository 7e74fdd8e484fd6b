"""Names of scheduling gates, labels and annotations in Kubernetes."""

from __future__ import annotations

GATE = "presage.dev/gang"  # scheduling gate of a pod that waits for the plan of its gang

# A gang, as sigs.k8s.io/scheduler-plugins defines it.
POD_GROUP_GROUP = "scheduling.x-k8s.io"
POD_GROUP_VERSION = "v1alpha1"
POD_GROUP_PLURAL = "podgroups"
POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"  # on a pod: the name of its PodGroup

# Annotations that users set on a pod or its PodGroup.
JOB_FEATURES = "presage.dev/job-features"  # as printed by `presage features --json`
JOB_CLASS = "presage.dev/job-class"  # "latency-sensitive", or "best-effort" (the default)

# Annotations that the gate and the extender set.
PLAN = "presage.dev/plan"  # on a PodGroup: the planned devices of each pod
RESERVATION = "presage.dev/reservation"  # on a PodGroup: reserved devices, and their expiry
ROLLBACKS = "presage.dev/rollbacks"  # on a PodGroup: number and time of the last one
DEVICES = "presage.dev/devices"  # on a pod: its planned devices, as in "n0/0,n0/1"
BIND_DEADLINE = "presage.dev/bind-deadline"  # on a pod: a pod unbound by then is deleted

# Labels on nodes: of NVIDIA's GPU feature discovery, and set by users.
PRODUCT = "nvidia.com/gpu.product"
MEMORY = "nvidia.com/gpu.memory"  # MiB of each device
REPLICAS = "nvidia.com/gpu.replicas"  # pods that may share a device
DEVICE_KIND = "presage.dev/device-kind"  # overrides the kind derived from the product
NODE_LAYOUT = "presage.dev/node-layout"  # links between a node's devices: nvswitch, pcie, ...
