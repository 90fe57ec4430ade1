"""The Hugging Face Hub: repositories (hf://owner/name) and buckets (hf://buckets/owner/name)."""
