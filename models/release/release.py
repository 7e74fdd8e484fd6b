"""The release: the unit that is registered, promoted, served and rolled back.

A release is a folder with an ONNX file for each quantity, which includes preprocessing and
calibration, and ``release.json``, which describes the training and has the sha256 of each file.
This module needs neither torch nor onnxruntime: the server imports it.

ONNX contract
-------------
Solo quantities of :mod:`presage.features.quantities.quantity_registry` (``memory.onnx``, ...)
    ``features`` float32 (rows, columns), raw units, columns as in ``release.columns``
    -> ``quantiles`` float32 (rows, levels), calibrated, in the target's unit, nondecreasing.
``interference``
    ``members`` float32 (co-locations, members, ``MEMBER_COLUMNS`` of
    :mod:`presage.features.colocation_member`), with the medians of the solo predictors, and
    ``mask`` float32 (co-locations, members), 1 for a member and 0 for padding
    -> ``quantiles`` float32 (co-locations, members, levels): slowdowns, at least 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from presage.errors import (
    ConfigError,
    ForeignReleaseError,
    InvalidJobError,
    ReleaseError,
    UnknownDeviceError,
    one_line,
)
from presage.features.columns.schema import columns, schema_hash
from presage.features.device.device import Device, find_device
from presage.features.device.device_class import device_class
from presage.features.quantities.quantity_registry import (
    INTERFERENCE,
    QUANTITIES,
    required_quantities,
)
from presage.features.scaling.scaling_law import ScalingLaw, parse_law
from presage.models.calibration.margins import DEVICE, JOB, NOVELTIES
from presage.models.calibration.training_domain import Domain, classify, contains, parse_domain
from presage.models.release.manifest import (
    parse_devices,
    parse_guarantees,
    parse_integer,
    parse_job_digests,
    parse_levels,
    parse_margins,
    parse_numbers,
    parse_object,
    parse_text,
    parse_texts,
    read_manifest,
)
from presage.models.release.probes import Probes, parse_probes
from presage.models.release.release_id import content_id
from presage.system.arrays import FloatMatrix, Ints, Mask

# 1 to 3 had no device classes, 4 no probes; the id of 5 covers folder names; 5 and 6 have one
# margin for all that is new in a request.
FORMAT = NOVELTY_FORMAT = 7
READABLE_FORMATS = (5, 6, FORMAT)
MANIFEST = "release.json"
SIGNATURE = "release.json.sig"  # of a signed release, see presage.models.release.signature

# Margins by lower level, by device class.
ByClass = Mapping[str, Mapping[float, float]]


@dataclass(frozen=True, slots=True)
class Release:
    """Release folder whose files have been verified.

    Attributes
    ----------
    release_id : str
        Digest of the content (:func:`presage.models.release.release_id.content_id`): equal bytes
        have equal ids.
    levels : tuple of float
        Quantile levels of every predictor's output, increasing, 0.5 among them.
    devices : mapping of str to Device
        Measured devices, calibrated; they take precedence over the catalogue.
    trained_devices : mapping of str to frozenset of str
        Device kinds in the training of each predictor.
    max_members : mapping of str to int
        Members of the largest co-location in training, by device class.
    domains : mapping of str to Domain
        Training domain, by device class.
    trained_releases : mapping of str to frozenset of float
        Framework releases (:func:`presage.features.job.framework_version.framework_release`) in
        training, by device class; empty in a release of an older version.
    novelty_margins : mapping of str to mapping of str to ByClass
        Further widening of intervals by what is new in a request
        (:data:`presage.models.calibration.margins.NOVELTIES`): by predictor, novelty, device class
        and lower level; in logarithms of a scale or log-odds of a fraction.
    setup_s : mapping of str to tuple of float
        Start-up seconds at each level, by device kind; "" has those over all kinds.
    probes : Probes
        Inputs with recorded outputs.
    guarantees : mapping of str to mapping of str to mapping of str to float
        Calibration guarantee (expected coverage and error on unseen jobs) by predictor and slice,
        see :data:`presage.models.drift.drift_test.Guarantees`; empty if the release has none.
    trained_on : frozenset of str, or None
        Digests of the training jobs (:func:`presage.models.release.manifest.job_digest`); None if
        the release, of an older version, does not record them.
    scaling_law : ScalingLaw or None
        Law of the step time on several GPUs that was fitted for the release; None without one.
    manifest : mapping
        Content of ``release.json``.
    """

    folder: Path
    release_id: str
    columns: tuple[str, ...]
    levels: tuple[float, ...]
    devices: Mapping[str, Device]
    trained_devices: Mapping[str, frozenset[str]]
    max_members: Mapping[str, int]
    domains: Mapping[str, Domain]
    trained_releases: Mapping[str, frozenset[float]]
    novelty_margins: Mapping[str, Mapping[str, ByClass]]
    setup_s: Mapping[str, tuple[float, ...]]
    probes: Probes
    guarantees: Mapping[str, Mapping[str, Mapping[str, float]]]
    trained_on: frozenset[str] | None
    scaling_law: ScalingLaw | None
    manifest: Mapping[str, Any]

    @property
    def predictors(self) -> tuple[str, ...]:
        """Names of the predicted quantities, in the order of the registry."""
        return tuple(name for name in QUANTITIES if name in self.trained_devices)

    @property
    def search_params(self) -> Mapping[str, str]:
        """Values by which MLflow finds the release."""
        return {
            "levels": ", ".join(f"{level:g}" for level in self.levels),
            "trained_devices": ", ".join(sorted(set().union(*self.trained_devices.values()))),
        }

    def find_device_class(self, kind: str) -> str:
        """Return the class of a device kind."""
        return device_class(find_device(kind, self.devices))

    def classes(self, predictor: str) -> frozenset[str]:
        """Return the device classes that a predictor was trained on."""
        return frozenset(map(self.find_device_class, self.trained_devices[predictor]))

    def contains(self, features: FloatMatrix, precisions: Ints) -> Mask:
        """Return whether the job of each row is in the training domain.

        ``features`` has the shape (rows, columns); ``precisions`` are positions in ``PRECISIONS``.
        """
        return contains(self.domains, features, precisions)

    def classify(self, features: FloatMatrix, precisions: Ints) -> tuple[Mask, Mask]:
        """Return which jobs are in the training domain, and which of them are near training.

        The parameters are those of :meth:`contains`; both masks have shape (rows,).
        """
        return classify(self.domains, features, precisions)

    def model_path(self, predictor: str) -> Path:
        """Return the path of a predictor's ONNX file."""
        return self.folder / f"{predictor}.onnx"

    def interval_levels(self, coverage: float) -> tuple[int, int]:
        """Return the positions, in ``levels``, of the ends of the interval with this coverage.

        Raises
        ------
        InvalidJobError
            The release has no such interval.
        """
        for low, level in enumerate(self.levels):
            for high, upper in enumerate(self.levels):
                if (
                    low < high
                    and abs(upper - level - coverage) < 1e-6
                    and abs(level + upper - 1) < 1e-6
                ):
                    return low, high
        known = sorted({round(1 - 2 * level, 6) for level in self.levels if level < 0.5})
        raise InvalidJobError(
            f"no {coverage:g} interval in release {self.release_id}; request one of "
            f"{', '.join(f'{c:g}' for c in known)}"
        )


def load_release(folder: Path) -> Release:
    """Load the release at ``folder``, and verify every file.

    Raises
    ------
    ReleaseError
        A file is missing or was changed, or the manifest is malformed. The release must not be
        served.
    ForeignReleaseError
        The release has another format or feature schema, and its manifest is intact: it matches
        its id.
    """
    content = read_manifest(folder / MANIFEST)
    try:
        recorded_id = parse_text(content["release_id"], "release_id")
        is_intact = content_id(content) == recorded_id
        # A single changed byte can make a manifest look like that of another version.
        foreign = ForeignReleaseError if is_intact else ReleaseError
        if content["format"] not in READABLE_FORMATS:
            raise foreign(
                f"{folder}: release format {one_line(content['format'])}, this version reads "
                f"{' and '.join(map(str, READABLE_FORMATS))}; train it again, or serve it with "
                "the version that wrote it"
            )
        if content["schema_hash"] != schema_hash("full"):
            raise foreign(
                f"{folder}: its feature schema is {one_line(content['schema_hash'])}, this "
                f"version has {schema_hash('full')}; train it again with `dvc repro`"
            )
        _check_files(folder, content)
        if not is_intact:
            raise ReleaseError(
                f"{folder / MANIFEST}: content does not match its release_id {recorded_id}; "
                "restore the folder from the registry"
            )
        return _parse_release(folder, content)
    except (*_MALFORMED, InvalidJobError, UnknownDeviceError) as error:
        raise ReleaseError(
            f"{folder / MANIFEST}: not a release manifest ({type(error).__name__}: "
            f"{one_line(error)}); restore the folder from the registry, or rebuild it"
        ) from error


# Exceptions of parsing a manifest with unexpected types or values.
_MALFORMED = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip


def _parse_release(folder: Path, content: dict[str, Any]) -> Release:
    """Return the release that a manifest describes."""
    levels, predictors = parse_levels(content["levels"]), _parse_predictors(content)
    _check_schema(content)
    release = Release(
        folder=folder,
        release_id=content["release_id"],
        columns=tuple(content["columns"]),
        levels=levels,
        devices=parse_devices(content["devices"]),
        trained_devices={
            name: frozenset(
                parse_texts(content["trained_devices"][name], f"trained_devices.{name}")
            )
            for name in predictors
        },
        max_members={
            name: parse_integer(n, f"max_members.{name}")
            for name, n in parse_object(content["max_members"], "max_members").items()
        },
        domains={
            name: parse_domain(found)
            for name, found in parse_object(content["domains"], "domains").items()
        },
        trained_releases={
            name: frozenset(parse_numbers(found, f"trained_releases.{name}"))
            for name, found in parse_object(
                content.get("trained_releases", {}), "trained_releases"
            ).items()
        },
        novelty_margins={
            name: _parse_novelty_margins(content, name, levels) for name in predictors
        },
        setup_s={
            kind: parse_numbers(found, f"setup_s.{kind}")
            for kind, found in parse_object(content["setup_s"], "setup_s").items()
        },
        probes=parse_probes(content["probes"], len(content["columns"]), len(levels), predictors),
        guarantees=parse_guarantees(content.get("promises", {})),
        trained_on=parse_job_digests(content.get("trained_on")),
        scaling_law=_parse_scaling_law(content.get("scaling_law")),
        manifest=content,
    )
    _check_device_classes(release)
    return release


def _parse_novelty_margins(
    content: Mapping[str, Any], predictor: str, levels: tuple[float, ...]
) -> dict[str, ByClass]:
    """Return a predictor's widening by novelty; formats 5 and 6 have one for job and device."""
    if content["format"] < NOVELTY_FORMAT:
        where = f"stranger_margins.{predictor}"
        old = parse_margins(content["stranger_margins"][predictor], where, levels)
        return dict.fromkeys((JOB, DEVICE), old)
    where = f"novelty_margins.{predictor}"
    by_novelty = parse_object(content["novelty_margins"][predictor], where)
    if not by_novelty.keys() <= set(NOVELTIES):
        raise ValueError(f"{where} has a key that is none of {', '.join(NOVELTIES)}")
    return {
        name: parse_margins(found, f"{where}.{name}", levels) for name, found in by_novelty.items()
    }


def _parse_scaling_law(content: Any) -> ScalingLaw | None:
    try:
        return None if content is None else parse_law(parse_object(content, "scaling_law"))
    except ConfigError as error:
        raise ValueError(str(error)) from error


def _check_schema(content: Mapping[str, Any]) -> None:
    """Raise an error unless columns, operator kinds and metrics are well-formed."""
    if content["columns"] != columns("full"):
        raise ValueError("columns differ from those of the feature schema")
    parse_texts(content["op_kinds"], "op_kinds")
    parse_object(content["metrics"], "metrics")


def _check_device_classes(release: Release) -> None:
    """Raise an error if a trained device is unknown, or ``max_members`` lacks its class."""
    for name in release.predictors:
        classes = release.classes(name)
        if name == INTERFERENCE.name and not classes <= release.max_members.keys():
            raise ValueError("max_members lacks a device class that interference was trained on")


def _parse_predictors(content: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the registered quantities that a manifest names.

    A quantity without fields in ``presage.v1`` may be missing, because the release was trained
    before it was registered.

    Raises
    ------
    KeyError
        Another quantity is missing.
    """
    known = content["predictors"]
    for name, quantity in QUANTITIES.items():
        if quantity.in_proto and name not in known:
            raise KeyError(name)
    return tuple(name for name in QUANTITIES if name in known)


def release_files(folder: Path) -> tuple[str, ...]:
    """Return the names of the files that the manifest in a folder names, its own name first.

    Names come from the registry of quantities, never from the manifest. If the manifest is
    corrupt, all required quantities are named: :func:`load_release` reports the fault.
    """
    try:
        names = _parse_predictors(read_manifest(folder / MANIFEST))
    except (*_MALFORMED, ReleaseError):
        names = tuple(required_quantities())
    return (MANIFEST, *(f"{name}.onnx" for name in names))


def _check_files(folder: Path, content: Mapping[str, Any]) -> None:
    for name in _parse_predictors(content):
        path = folder / f"{name}.onnx"
        expected = content["predictors"][name]["sha256"]
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise ReleaseError(
                f"{path}: cannot be read ({error.strerror}); restore the folder from the registry"
            ) from error
        if found != expected:
            raise ReleaseError(
                f"{path}: sha256 is {found[:12]}..., the manifest says {expected[:12]}...; "
                "the file was changed: restore the folder from the registry"
            )
