"""Words shared by every storey: small frozen records and pure decisions.

Nothing here touches a file or a third-party package. Two modules reach out: `system` reads the environment and the
clock and lowers the priority of threads, `timeouts` waits for calls in threads of their own.
"""
