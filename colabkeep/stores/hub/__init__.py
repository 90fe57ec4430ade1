"""Repositories on hubs of models: the Hugging Face Hub (hf://owner/name, hf://buckets/owner/name) and Baidu AI
Studio's (aistudio://owner/repo).
"""

from __future__ import annotations
