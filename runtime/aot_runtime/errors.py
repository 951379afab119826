"""The exceptions of this project, all under :class:`AotError`.

The builder adds its own in ``aot.errors``. Classes named in ``_RAISED_IN_C`` are raised by a bundle's
native code; the kind that C names is the first column.
"""

from __future__ import annotations

__all__ = [
    "AotError",
    "ArgumentError",
    "BundleError",
    "CaptureError",
    "CudaError",
    "DeviceError",
    "DigestError",
    "DriverError",
    "IncompleteBundleWarning",
    "ManifestError",
    "MissError",
    "PublicKeyError",
    "ServingWarning",
    "SignatureError",
    "register_with_tvm_ffi",
]


class AotError(Exception):
    """Base of everything this project raises on purpose. ``hint`` is one next step, if there is one."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        # Native code sends both in one text, the hint in its last line.
        if hint is None and "\nhint: " in message:
            message, hint = message.rsplit("\nhint: ", 1)
        self.message = message
        self.hint = hint
        super().__init__(message if hint is None else f"{message}\nhint: {hint}")


class BundleError(AotError):
    """A bundle is incomplete, damaged, or not one at all."""


class ManifestError(BundleError):
    """``manifest.json``, or a file it vouches for, is missing, malformed, of another protocol, or points elsewhere."""


class IncompleteBundleWarning(UserWarning):
    """A bundle that was loaded lacks kernels or variants, since they failed to build."""


class DigestError(BundleError):
    """A file is not the one the bundle was built with."""


class SignatureError(BundleError):
    """A key was given, and the bundle is unsigned, signed by another key, or not what was signed."""


class PublicKeyError(AotError, ValueError):
    """What was given as a public key is none."""


class DeviceError(AotError):
    """The bundle holds no code for the device of the call."""


class ArgumentError(AotError, TypeError, ValueError):
    """No variant takes the arguments; the message lists every candidate with the reason."""


class DriverError(AotError):
    """The CUDA driver is missing or refused."""


class CudaError(AotError, RuntimeError):
    """A CUDA call failed while code was loaded or launched."""


class CaptureError(CudaError):
    """A kernel was first used while its stream was being captured; preload it before."""


class MissError(AotError):
    """A bundle that is served does not have a call of ``cute.compile``; the message names the nearest one it has."""


class ServingWarning(UserWarning):
    """A bundle that is served does not have a call of ``cute.compile``, which is therefore compiled."""


_RAISED_IN_C: dict[str, type[AotError]] = {
    "AotArgumentError": ArgumentError,
    "AotBundleError": BundleError,
    "AotCaptureError": CaptureError,
    "AotCudaError": CudaError,
    "AotDeviceError": DeviceError,
    "AotDigestError": DigestError,
    "AotDriverError": DriverError,
}


def register_with_tvm_ffi() -> None:
    """Let TVM-FFI raise these classes for the error kinds that a bundle's native code names.

    Every generated package brings a copy of this module. What native code raises belongs to all copies in
    the process, so that each package's ``except`` catches it.
    """
    import tvm_ffi
    from tvm_ffi import core

    for kind, error in _RAISED_IN_C.items():
        other = core.ERROR_NAME_TO_TYPE.get(kind)
        if other is None or issubclass(error, other):
            tvm_ffi.register_error(kind, error)
        elif not issubclass(other, error):
            names = {"__module__": error.__module__, "__doc__": error.__doc__}
            tvm_ffi.register_error(kind, type(error.__name__, (error, other), names))
