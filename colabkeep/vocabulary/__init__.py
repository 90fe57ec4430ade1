"""Words shared by every storey: small frozen records and pure decisions.

Nothing here touches a file, a clock, a thread or a third-party package.
"""
