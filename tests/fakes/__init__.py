"""Stand-ins for services that no test may call. None of this is part of the package that users install."""
