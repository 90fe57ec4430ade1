"""Places that fsspec reaches: S3, Google Cloud Storage, SFTP and the rest, each through one small backend."""
