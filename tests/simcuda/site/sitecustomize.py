"""In the path of a process that a simulated one begins: it has the simulated devices, too, if SIMCUDA says how."""

from __future__ import annotations

import os
import traceback

if "SIMCUDA" in os.environ:
    try:
        from tests.simcuda.device import start_as_told

        start_as_told()
    except BaseException:  # noqa: BLE001  # whatever it is
        traceback.print_exc()
        os._exit(70)  # Python would go on without
