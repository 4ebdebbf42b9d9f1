"""The object-store port, with a folder and obstore (S3, GCS, Azure, memory) behind it.

`open_store(url)` picks the adapter; everything else works against `ObjectStore`.
Blobs are objects named by their content, checked whenever they are read.
"""

from typing import TYPE_CHECKING

from mainspring.lazy import names_of

if TYPE_CHECKING:
    from mainspring.objects.blobs import (
        BLOBS,
        Blob,
        blob_of,
        blob_of_file,
        fetch_blob,
        get_blob,
        put_blob,
        put_blob_file,
    )
    from mainspring.objects.clocks import check_clock
    from mainspring.objects.direct import (
        DIRECT_BYTES,
        aligned_buffer,
        is_aligned,
    )
    from mainspring.objects.files import reported
    from mainspring.objects.grants import Access, Grants, SharedGrants, check_grants
    from mainspring.objects.open import open_store
    from mainspring.objects.port import (
        IN_MEMORY_BYTES_MAX,
        KEY_LENGTH_MAX,
        LISTED_MAX,
        Data,
        ObjectSeen,
        ObjectStore,
        checked_key,
    )
else:
    __getattr__, __dir__ = names_of(__name__)
