"""A repository on Baidu AI Studio's hub of models: aistudio://owner/repo, which can be reached from its notebooks."""
