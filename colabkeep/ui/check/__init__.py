"""The check: gather the facts of this session (`facts`), judge the accelerator (`verdict`), advise (`advice`)."""
