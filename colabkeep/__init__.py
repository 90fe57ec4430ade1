"""Training on free GPU notebooks that survives the disconnect."""

from colabkeep._version import __version__

__all__ = ["__version__"]
