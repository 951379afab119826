"""The errors of this project, all under :class:`AotError`: one list for Python, C and C++.

Each class that sets a ``code`` is a class of C++ too, and a code of C: ``DigestError`` is ``aot::DigestError`` and
``AOT_ERROR_DIGEST``. ``tools/errors.py`` writes them into the headers from here. A class without one of its own has that
of its base. The builder adds its own classes in ``aot.errors``.
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
    "HostError",
    "IncompleteBundleWarning",
    "ManifestError",
    "MissError",
    "NotFoundError",
    "PublicKeyError",
    "ServingWarning",
    "SignatureError",
    "TvmFfiError",
    "UsageError",
    "VersionError",
    "register_with_tvm_ffi",
]


class AotError(Exception):
    """Base of everything this project raises on purpose. ``hint`` is one next step, if there is one."""

    code = 13  # of C: AOT_ERROR_*

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        # Native code sends both in one text, the hint in its last line.
        if hint is None and "\nhint: " in message:
            message, hint = message.rsplit("\nhint: ", 1)
        self.message = message
        self.hint = hint
        super().__init__(message if hint is None else f"{message}\nhint: {hint}")


class UsageError(AotError):
    """A wrong call or option: a null pointer, an absent file, two that exclude each other."""

    code = 1


class BundleError(AotError):
    """A bundle is incomplete, damaged, or not one at all."""

    code = 3


class ManifestError(BundleError):
    """``manifest.json``, or a file it vouches for, is missing, malformed, of another protocol, or points elsewhere."""


class HostError(BundleError):
    """A bundle has no code for this CPU."""

    code = 4


class VersionError(ManifestError):
    """The bundle, its loader and TVM-FFI do not fit together: one is too old or too new."""

    code = 5


class IncompleteBundleWarning(UserWarning):
    """A bundle that was loaded lacks kernels or variants, since they failed to build."""


class DigestError(BundleError):
    """A file is not the one the bundle was built with."""

    code = 6


class SignatureError(BundleError):
    """The bundle is unsigned, signed by another key than was given, or not what was signed."""

    code = 14


class PublicKeyError(UsageError, ValueError):
    """What was given as a public key is none."""


class DeviceError(AotError):
    """The bundle holds no code for the device of the call."""

    code = 7


class ArgumentError(AotError, TypeError, ValueError):
    """No variant takes the arguments; the message lists every candidate with the reason."""

    code = 2


class DriverError(AotError):
    """The CUDA driver is missing or refused."""

    code = 8


class CudaError(AotError, RuntimeError):
    """A CUDA call failed while code was loaded or launched."""

    code = 9


class CaptureError(CudaError):
    """A kernel was first used while its stream was being captured; preload it before."""

    code = 10


class TvmFfiError(AotError):
    """TVM-FFI is not installed, or its library cannot be found."""

    code = 11


class NotFoundError(AotError, KeyError):
    """The bundle has no kernel of that name; the message lists those it has."""

    code = 12

    def __str__(self) -> str:
        return Exception.__str__(self)  # a KeyError shows its text in quotes


class MissError(AotError):
    """A bundle that is served does not have a call of ``cute.compile``; the message names the nearest one it has."""


class ServingWarning(UserWarning):
    """A bundle that is served does not have a call of ``cute.compile``, which is therefore compiled."""


# What a bundle's native code raises, which calls each class by its name after "Aot".
_RAISED_IN_C = (ArgumentError, BundleError, CaptureError, CudaError, DeviceError, DigestError, DriverError)


def register_with_tvm_ffi() -> None:
    """Let TVM-FFI raise these classes for the error kinds that a bundle's native code names.

    Every generated package brings a copy of this module. What native code raises belongs to all copies in
    the process, so that each package's ``except`` catches it.
    """
    import tvm_ffi
    from tvm_ffi import core

    for error in _RAISED_IN_C:
        kind = f"Aot{error.__name__}"
        other = core.ERROR_NAME_TO_TYPE.get(kind)
        if other is None or issubclass(error, other):
            tvm_ffi.register_error(kind, error)
        elif not issubclass(other, error):
            names = {"__module__": error.__module__, "__doc__": error.__doc__}
            tvm_ffi.register_error(kind, type(error.__name__, (error, other), names))
