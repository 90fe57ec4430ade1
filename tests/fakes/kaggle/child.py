"""The child process of the Kaggle store, with Kaggle's client pointed at the server given as the first argument.

kagglehub asks IPython whether this is Colab, which it never is: this process is spared that import, a fifth of the
second that it takes to begin.

kagglesdk knows its addresses from a private table only. The entry of the real service is changed: with the one that
KAGGLE_API_ENVIRONMENT=TEST chooses, kagglehub prints every answer, and so has each download in memory as a whole.
"""

from __future__ import annotations

import sys

sys.modules["IPython"] = None  # type: ignore[assignment]

from kagglesdk import kaggle_env  # noqa: E402

from colabkeep.stores.kaggle.child import main  # noqa: E402

if __name__ == "__main__":
    kaggle_env._env_to_endpoint[kaggle_env.KaggleEnv.PROD] = sys.argv[1]
    main()
