"""Google Colab: recognising it, its Drive, its secrets, and its front end, which may be there or not."""
