"""Stand-ins for services that no test may call, and for machines that no test has.

None of this is part of the package that users install.
"""
