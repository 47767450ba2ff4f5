"""Which files a dataset URI means, for training and inference alike. Knows names, not what is in the files."""

from tpuctl.listing.files import ListedFile, list_files

__all__ = ["ListedFile", "list_files"]
