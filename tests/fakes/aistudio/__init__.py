"""AI Studio's hub on this machine, for the real aistudio-sdk. Never shipped."""
